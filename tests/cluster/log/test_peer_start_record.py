"""Starts of peers in the journal: when they are written, and what a restart knows of them."""

from pathlib import Path

import pytest

from pixy.cluster.log.peer_start_record import PeerStartRecord
from pixy.cluster.log.peer_starts import PeerStart, PeerStarts, StartClaim
from pixy.proto.state_pb2 import NodeStart, NodeStarts
from pixy.storage import RecordKind
from tests.cluster.held_journal import HeldJournal
from tests.cluster.node_logs import open_log
from tests.cluster.nodes import Cluster
from tests.fakes.clock import FakeClock


class Recording:
    """A record of starts on a journal that is held, behind a start that has found `recovered`."""

    def __init__(self, recovered: bytes = b"", file: int = 0) -> None:
        self.journal = HeldJournal()
        self.clock = FakeClock()
        self.record = PeerStartRecord(self.journal.as_journal(), self.clock, recovered, file)

    def ride(self) -> PeerStart | None:
        """Begin a flush: the start of node 2 that rides with it."""
        passenger = self.journal.as_journal().passenger
        assert passenger is not None
        unit = passenger()
        if unit is None:
            return None
        records, token = unit
        self.journal.append(records, token)
        return self.written()[-1]

    def written(self) -> list[PeerStart]:
        """The start of node 2 in each record."""
        found = []
        for [(kind, _, _, _, _, _, _, payload)] in self.journal.units:
            assert kind == RecordKind.PEER_STARTS
            starts = PeerStarts()
            starts.restore(bytes(payload))
            start = starts.newest(2)
            assert start is not None
            found.append(start)
        return found


FOUND = NodeStarts(starts=[NodeStart(node_id=2, incarnation=3, flush_number=100)]).SerializeToString()


def test_a_new_incarnation_is_written_at_once_and_a_known_one_is_not() -> None:
    recording = Recording()
    for start in (PeerStart(3, 100), PeerStart(3, 101), PeerStart(4, 101), PeerStart(4, 150)):
        assert recording.record.admit(StartClaim(2, start)) is None
    assert recording.written() == [PeerStart(3, 100), PeerStart(4, 101)]


def test_flush_numbers_ride_with_other_flushes_once_a_second() -> None:
    recording = Recording(FOUND, 3)
    assert recording.ride() is None, "nothing is new"
    recording.record.admit(StartClaim(2, PeerStart(3, 120)))
    assert recording.journal.units == []
    assert recording.ride() == PeerStart(3, 120)
    recording.record.flushed(2, 3, 130)
    recording.clock.advance(0.9)
    assert recording.ride() is None
    recording.clock.advance(0.1)
    assert recording.ride() == PeerStart(3, 130)
    recording.clock.advance(9)
    assert recording.ride() is None


def test_the_file_of_the_newest_record_is_known_once_it_is_durable() -> None:
    recording = Recording(FOUND, 3)
    recording.record.admit(StartClaim(2, PeerStart(4, 100)))
    assert recording.record.file == 3
    recording.journal.make_durable()
    assert recording.record.file == 4


def test_what_an_older_self_lacks_is_written_before_it_is_refused_again() -> None:
    recording = Recording()
    recording.record.admit(StartClaim(2, PeerStart(3, 100)))
    recording.record.flushed(2, 3, 150)
    copy = StartClaim(2, PeerStart(4, 121), b"process", found=120)
    assert recording.record.admit(copy) is not None
    assert recording.written() == [PeerStart(3, 100), PeerStart(3, 150)]
    assert recording.record.admit(copy) is not None
    assert len(recording.written()) == 2, "once"
    again = Recording(recording.record.starts.snapshot(), 1)
    assert again.record.admit(copy) is not None
    assert again.written() == []


def test_an_older_self_is_refused_after_a_restart_and_nothing_is_written() -> None:
    recording = Recording(FOUND, 3)
    reason = recording.record.admit(StartClaim(2, PeerStart(4, 99)))
    assert reason is not None
    assert "older copy" in reason
    assert (recording.journal.units, recording.ride()) == ([], None)


def test_a_forgotten_peer_is_left_out_of_the_next_record() -> None:
    recording = Recording(FOUND, 3)
    recording.record.admit(StartClaim(3, PeerStart(1, 1)))
    recording.record.forget(3)
    recording.clock.advance(1)
    assert recording.ride() == PeerStart(3, 100)
    assert NodeStarts.FromString(bytes(recording.journal.units[-1][0][7])) == NodeStarts.FromString(FOUND)


def test_it_is_the_same_when_it_is_written_again() -> None:
    recording = Recording(FOUND, 3)
    recording.record.write()
    assert recording.written() == [PeerStart(3, 100)]


@pytest.mark.slow
async def test_a_restart_knows_the_starts_of_peers(tmp_path: Path) -> None:
    log, *_ = open_log(tmp_path)
    assert log.peer_starts.admit(StartClaim(2, PeerStart(3, 100))) is None
    await log.journal.drained()
    log.abandon()
    again, *_ = open_log(tmp_path)
    assert again.peer_starts.starts.newest(2) == PeerStart(3, 100)
    assert again.peer_starts.file == 1
    again.abandon()


async def test_a_lone_node_writes_none(tmp_path: Path) -> None:
    async with Cluster(tmp_path).running() as cluster:
        await cluster.create_topic()
        await cluster.append(b"a")
        cluster.clock.advance(5)
        await cluster.append(b"b")
    log, recovered, *_ = open_log(tmp_path)
    log.abandon()
    assert recovered.journal.peer_starts_file == 0
