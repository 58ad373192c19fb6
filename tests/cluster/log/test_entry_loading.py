"""Entries of raft groups that are not in memory any more, loaded from the journal."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from pixy.cluster.log.entry_loading import EntryLoading
from pixy.multiraft.raft_group import RaftGroup
from pixy.multiraft.raft_storage import WantedEntries
from pixy.raft import NO_LIMIT, ConfChange, ConfChangeType, Entry, Message, MessageType, RaftEntryType
from pixy.raft.wire import encode_conf_change
from pixy.storage import JournalReader
from pixy.storage.journal import journal_path
from tests.cluster.drivers import COMMAND, GROUP, DriverNode, NodeSetup
from tests.fakes.disk import RecordingDisk
from tests.fakes.worker import StepWorker
from tests.storage.journals import CLUSTER

SIZE = 100


class LoadingNode(DriverNode):
    """Node 1 of three, and the loading of entries from its journal."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, setup=NodeSetup((1, 2, 3)))
        self.files = StepWorker()
        self.loading = EntryLoading(
            self.journal, JournalReader(RecordingDisk(), directory, (CLUSTER, 1)), self.files
        )
        self.loads: list[list[Entry] | None] = []

    async def take(self, leader: int, entries: Sequence[Entry], before: tuple[int, int] = (0, 0)) -> None:
        """Take an append of a leader; its entries are on disk afterwards."""
        log_term, index = before
        message = Message(MessageType.APP, 1, leader, entries[-1].term, log_term, index, list(entries))
        self.driver.step(GROUP, message)
        await self.settle()

    def begin(self, wanted: WantedEntries) -> None:
        def loaded(group: RaftGroup, entries: list[Entry] | None) -> None:
            assert group is self.group
            self.loads.append(entries)

        self.loading.load(self.group, wanted, loaded)

    def load(self, lo: int, hi: int, max_bytes: int = NO_LIMIT) -> list[Entry] | None:
        """Load entries [lo, hi)."""
        self.begin((lo, hi, max_bytes))
        self.files.step()
        return self.loads.pop()


def commands(term: int, first: int, count: int) -> list[Entry]:
    return [
        Entry(term, index, data=b"%d" % index + bytes(SIZE - 1), kind=COMMAND)
        for index in range(first, first + count)
    ]


@pytest.fixture
async def loading(tmp_path: Path) -> AsyncIterator[LoadingNode]:
    """With entries 1 to 5 of term 1."""
    node = LoadingNode(tmp_path / "node")
    node.bind()
    await node.take(2, commands(1, 1, 5))
    yield node
    node.close()


async def test_entries_are_loaded_as_they_were_stored(loading: LoadingNode) -> None:
    assert loading.load(2, 5) == commands(1, 2, 3)


async def test_a_change_of_the_configuration_is_one_again(loading: LoadingNode) -> None:
    change = encode_conf_change(ConfChange(ConfChangeType.ADD_LEARNER_NODE, 4))
    entry = Entry(1, 6, RaftEntryType.CONF_CHANGE, change)
    await loading.take(2, [entry], before=(1, 5))
    assert loading.load(6, 7) == [entry]


async def test_entries_that_another_leader_has_replaced_are_not_loaded(loading: LoadingNode) -> None:
    await loading.take(3, commands(2, 4, 3), before=(1, 3))
    assert loading.load(3, 7) == [*commands(1, 3, 1), *commands(2, 4, 3)]


async def test_entries_are_loaded_up_to_a_size_but_one_at_least(loading: LoadingNode) -> None:
    sizes = [len(loading.load(1, 6, max_bytes) or ()) for max_bytes in (0, SIZE, 3 * SIZE, 100 * SIZE)]
    assert sizes == [1, 1, 3, 5]


async def test_the_files_are_read_by_the_other_thread(loading: LoadingNode) -> None:
    loading.begin((1, 6, NO_LIMIT))
    assert (loading.loads, len(loading.files)) == ([], 1)


async def test_what_no_file_has_cannot_be_loaded(loading: LoadingNode) -> None:
    assert loading.load(7, 9) is None


async def test_a_file_that_is_removed_meanwhile_cannot_be_loaded(loading: LoadingNode) -> None:
    loading.begin((1, 6, NO_LIMIT))
    journal_path(loading.directory, 1).unlink()
    loading.files.step()
    assert loading.loads == [None]


async def test_a_damaged_file_cannot_be_loaded(loading: LoadingNode) -> None:
    path = journal_path(loading.directory, 1)
    content = bytearray(path.read_bytes())
    content[content.index(b"3" + bytes(SIZE - 1)) + 50] ^= 1
    path.write_bytes(content)
    assert loading.load(3, 5) is None


async def test_nothing_is_loaded_from_files_of_version_1(loading: LoadingNode) -> None:
    loading.journal.files[0].version = 1
    assert loading.load(1, 6) is None
