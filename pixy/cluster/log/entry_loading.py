"""Entries of raft groups that are not in memory any more, for followers that lag: read from the
journal by another thread.
"""

from collections.abc import Callable
from functools import partial

import structlog

from pixy.multiraft import RaftGroup, WantedEntries, entry_of
from pixy.raft import Entry
from pixy.storage import (
    VERSION_WITH_OFFSETS,
    EntriesRead,
    EntryRange,
    Journal,
    JournalReader,
    Worker,
    parts_with,
)

log = structlog.get_logger(__name__)

Loaded = Callable[[RaftGroup, list[Entry] | None], None]
"""Gets the entries of a group, at least the first wanted one, or None."""


class EntryLoading:
    """Loads entries of the raft groups of one node.

    Args:
        journal: the node's journal.
        reader: reads its files.
        files: the thread that reads.
    """

    def __init__(self, journal: Journal, reader: JournalReader, files: Worker) -> None:
        self._journal = journal
        self._reader = reader
        self._files = files

    def load(self, group: RaftGroup, wanted: WantedEntries, loaded: Loaded) -> None:
        """Read entries; `loaded` gets None if the first one is not there, or not readable.

        Files whose batches have no offsets are not read: followers behind them need a snapshot.
        """
        lo, hi, max_bytes = wanted
        files = [file for file in self._journal.files if file.version >= VERSION_WITH_OFFSETS]
        parts = parts_with(files, group.raft_group, lo, hi)
        entries = EntryRange(group.raft_group, lo, hi, group.storage.term_runs())
        self._files.submit(
            partial(self._reader.entries, parts, entries, max_bytes), partial(self._read, group, loaded)
        )

    def _read(
        self, group: RaftGroup, loaded: Loaded, read: EntriesRead | None, error: BaseException | None
    ) -> None:
        if error is not None:
            log.error(
                "old entries of a raft group cannot be read", raft_group=group.raft_group, error=str(error)
            )
        entries = [] if read is None else [entry_of(record) for record in read.entries]
        loaded(group, entries or None)
