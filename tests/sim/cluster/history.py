"""The committed entries, as far as any node has ever shown: one log for each raft group.

Everything that the nodes apply, answer or keep is compared with it. An entry is added when the
first node counts it as committed, and stays.
"""

from bisect import bisect_right
from typing import NamedTuple

from pixy.entry_ids import ProposalId
from pixy.errors import PixyError
from pixy.multiraft.dedup_table import DedupTable
from pixy.multiraft.raft_group import FIRST_PARTITION_GROUP
from pixy.proto.state_pb2 import PartitionCommand, ProposerRow
from pixy.raft import Entry
from pixy.records import offsets_of, read_header, read_records, split_batches
from pixy.storage import EntryType
from tests.sim.cluster.counters import Counters
from tests.sim.kit.failure import require
from tests.sim.kit.messages import message_id

_BATCHES = (EntryType.RECORD_BATCH, EntryType.RECORD_BATCHES)


class Committed(NamedTuple):
    """The content of a committed entry."""

    term: int
    type: int
    kind: int
    data: bytes
    proposal: ProposalId | None


class GroupHistory:
    """The committed log of one raft group.

    Attributes:
        entries: the committed entries; that of index 1 is the first.
        leaders: the leader of each term.
        rows, digests, ends, begins: results of the last proposals, digest of the state machine, end
            offset and log begin offset behind each entry; those of index 0 come first.
        results: result and index of each command, by its id.
        offsets: offset of each message of a client, by its id.
        records: all record batches, back to back.
        places: position in `records` of the batch that begins with an offset.
    """

    def __init__(self, raft_group: int) -> None:
        self.raft_group = raft_group
        self.entries: list[Committed] = []
        self.leaders: dict[int, int] = {}
        self.machine = Counters()
        self._rows = DedupTable()
        self._begin = self._end = 0
        self._identities: dict[ProposalId, int] = {}
        self.rows: list[list[ProposerRow]] = [[]]
        self.digests = [0]
        self.ends = [0]
        self.begins = [0]
        self.results: dict[bytes, tuple[int | PixyError, int]] = {}
        self.offsets: dict[bytes, int] = {}
        self.records = bytearray()
        self.places: dict[int, int] = {}

    @property
    def last(self) -> int:
        """Index of the last entry."""
        return len(self.entries)

    def term(self, index: int) -> int:
        """Term of an entry, 0 for index 0."""
        return self.entries[index - 1].term if index else 0

    def add(self, entry: Entry) -> None:
        """Add the next entry, and check that it repeats nothing and leaves no hole.

        Raises:
            ClusterFailure: it does.
        """
        require(entry.index == self.last + 1, f"entry {entry.index} is committed behind entry {self.last}")
        require(entry.term >= self.term(self.last), f"entry {entry.index}: its term is below the one before")
        data = bytes(entry.data)
        committed = Committed(entry.term, int(entry.type), entry.kind, data, entry.proposal)
        self.entries.append(committed)
        if entry.proposal is not None:
            other = self._identities.setdefault(entry.proposal, entry.index)
            require(
                other == entry.index,
                f"raft group {self.raft_group}: {entry.proposal} is committed as entries {other} and {entry.index}",
            )
        result = self._effect(committed)
        if entry.proposal is not None:
            self._rows.record(entry.proposal, result)
        self.rows.append(self._rows.snapshot().encoded())
        self.digests.append(self.machine.digest)
        self.ends.append(self._end)
        self.begins.append(self._begin)

    def _effect(self, entry: Committed) -> int | PixyError | None:
        """Apply an entry; returns the result for its proposer."""
        if entry.kind in _BATCHES:
            first = self._end
            for batch in split_batches(memoryview(entry.data)):
                self._add_batch(bytes(batch), entry.term)
            return first
        if entry.kind != EntryType.COMMAND:
            return None
        if self.raft_group >= FIRST_PARTITION_GROUP:
            offset = PartitionCommand.FromString(entry.data).set_log_begin_offset.offset
            self._begin = max(self._begin, min(offset, self._end))
            return None
        result = self.machine.apply(entry.data)
        id = entry.data.split()[-1]
        require(id not in self.results, f"command {id!r} is applied twice")
        self.results[id] = result, self.last
        return result

    def _add_batch(self, batch: bytes, term: int) -> None:
        begin, end = offsets_of(batch)
        require(
            begin == self._end,
            f"raft group {self.raft_group}: entry {self.last} has offset {begin} behind {self._end}",
        )
        epoch = read_header(batch).leader_epoch
        require(epoch == term, f"a batch of term {term} has epoch {epoch}")
        self.places[begin] = len(self.records)
        self.records += batch
        self._end = end
        for record in read_records(batch):
            id = message_id(record.value or b"")
            require(id not in self.offsets, f"message {id!r} is in the log twice")
            self.offsets[id] = record.offset

    def index_of_offset(self, offset: int) -> int:
        """Index of the entry that has a record."""
        return bisect_right(self.ends, offset)

    def records_from(self, offset: int, size: int) -> bytes:
        """Bytes of the batches from the one on that begins with an offset."""
        at = self.places.get(offset)
        require(at is not None, f"raft group {self.raft_group}: no batch begins with offset {offset}")
        assert at is not None
        return bytes(self.records[at : at + size])

    def check(self, entry: Entry, where: str) -> None:
        """Check an entry that a node counts as committed.

        Raises:
            ClusterFailure: it is another one than the history has.
        """
        known = self.entries[entry.index - 1]
        found = Committed(entry.term, int(entry.type), entry.kind, bytes(entry.data), entry.proposal)
        require(
            found == known,
            f"{where}: raft group {self.raft_group}, entry {entry.index}: committed {_short(found)}, elsewhere {_short(known)}",
        )


def _short(entry: Committed) -> str:
    return f"{entry.term}/{EntryType(entry.kind).name} of {entry.proposal}, {entry.data[:70]!r}"
