"""The table of replicated stages: pieces, seals, limits, expiry, and checkpoints."""

import weakref
from collections.abc import Sequence
from itertools import islice
from random import Random

import pytest

from pixy.cluster.state import publications, stage_table
from pixy.cluster.state.publications import Finished, Publication, SinksState
from pixy.cluster.state.stage_table import GoneStages, ReplicatedStage
from pixy.errors import FailedPrecondition, InvalidArgument, PixyError, ResourceExhausted
from pixy.proto.state_pb2 import (
    AddPiece,
    DiscardStages,
    ExpireStages,
    FinishPublications,
    OpenStage,
    PiecePart,
    PieceRecord,
    PublishStages,
    SealRecord,
    SinksCommand,
    SinksRecord,
    TouchSink,
)
from pixy.staging import NotNew, StageName, seal_crc

A, B = b"a" * 16, b"b" * 16


def piece(number: int, *parts: tuple[bytes, int, int], crc: int = 0) -> PieceRecord:
    """A piece with so many records of 10 bytes for each topic and partition."""
    return PieceRecord(
        number=number,
        crc=crc or 100 + number,
        parts=[
            PiecePart(
                topic=chr(topic_id[0]),
                topic_id=topic_id,
                partition=partition,
                raft_group=1000 + partition,
                bytes=10 * records,
                records=records,
                crc=7,
            )
            for topic_id, partition, records in parts
        ],
    )


def seal(*crcs: int) -> SealRecord:
    return SealRecord(pieces=len(crcs), crc=seal_crc(crcs))


class Sinks:
    """A state machine, and commands for it."""

    def __init__(self) -> None:
        self.state = SinksState()

    def run(self, **command: object) -> object:
        return self.state.apply(SinksCommand(**command).SerializeToString())  # type: ignore[arg-type]  # one of its fields

    def open(self, stage: str = "stage", sink: str = "sink", at_ms: int = 1000) -> object:
        return self.run(open_stage=OpenStage(sink_id=sink, stage_id=stage, timestamp_ms=at_ms))

    def add(
        self,
        number: int,
        record: PieceRecord | None = None,
        sealed: SealRecord | None = None,
        at_ms: int = 1000,
    ) -> object:
        command = AddPiece(stage=number, piece=record, seal=sealed, timestamp_ms=at_ms)
        return self.run(add_piece=command)

    def staged(self, stage: str = "stage", sink: str = "sink", at_ms: int = 1000) -> int:
        """A sealed stage with one piece; returns its number."""
        number = self.open(stage, sink, at_ms)
        assert isinstance(number, int)
        assert self.add(number, piece(0, (A, 0, 2)), seal(100), at_ms) == 20
        return number

    def publish(self, epoch: int, *stages: str, sink: str = "sink", at_ms: int = 1000) -> object:
        return self.run(
            publish_stages=PublishStages(
                sink_id=sink,
                epoch=epoch,
                query_id="query",
                stage_ids=stages,
                replicated=True,
                timestamp_ms=at_ms,
            )
        )

    def finish(self, *numbers: int) -> object:
        return self.run(finish_publications=FinishPublications(publications=numbers))

    def restored(self) -> "Sinks":
        other = Sinks()
        other.state.restore(self.state.snapshot())
        assert list(other.state.snapshot()) == list(self.state.snapshot())
        return other

    def stage(self, number: int) -> ReplicatedStage:
        return self.state.table.stages[number]


@pytest.fixture
def sinks() -> Sinks:
    return Sinks()


def refusal(result: object, kind: type[PixyError]) -> str:
    assert type(result) is kind, result
    return str(result)


def test_a_stage_has_one_number_and_no_other_stage_ever_gets_it(sinks: Sinks) -> None:
    assert [sinks.open(), sinks.open("other"), sinks.open(), sinks.open(sink="other")] == [1, 2, 1, 3]
    sinks.run(discard_stages=DiscardStages(sink_id="sink", stage_ids=["stage", "other"]))
    assert sinks.restored().open() == sinks.open() == 4


def test_pieces_come_in_any_order_and_again(sinks: Sinks) -> None:
    sinks.open()
    assert sinks.add(1, piece(1, (A, 0, 1), (A, 1, 2))) == 30
    assert sinks.add(1, piece(0, (A, 0, 3), (B, 0, 1))) == 70
    assert sinks.add(1, piece(1, (A, 0, 1), (A, 1, 2))) == 70
    message = refusal(sinks.add(1, piece(1, (A, 0, 1), crc=9)), InvalidArgument)
    assert "piece 1 of stage stage has CRC-32C 0x00000009, the same piece had 0x00000065" in message
    stage = sinks.stage(1)
    assert [PieceRecord.FromString(each).number for each in stage.encoded_pieces()] == [0, 1]
    assert {key: tuple(total) for key, total in stage.parts.items()} == {
        (A, 0): ("a", 40, 4),
        (A, 1): ("a", 20, 2),
        (B, 0): ("b", 10, 1),
    }
    assert (stage.size, stage.extents, sinks.state.table.extents) == (70, 6, 6)


def test_a_seal_must_match_the_pieces(sinks: Sinks) -> None:
    sinks.open()
    sinks.add(1, piece(0, (A, 0, 1)))
    sinks.add(1, piece(2, (A, 0, 1)))
    assert "piece 1 is missing" in refusal(sinks.add(1, None, seal(100, 101, 102)), FailedPrecondition)
    sinks.add(1, piece(1, (A, 0, 1)))
    assert "has piece 2" in refusal(sinks.add(1, None, seal(100, 101)), FailedPrecondition)
    assert "CRC-32C" in refusal(sinks.add(1, None, seal(100, 101, 9)), FailedPrecondition)
    assert sinks.add(1, None, seal(100, 101, 102)) == 30
    for each in (sinks, sinks.restored()):
        assert each.add(1, None, seal(100, 101, 102)) == 30
        assert each.add(1, piece(2, (A, 0, 1))) == 30
        assert "is sealed with 3 pieces" in refusal(each.add(1, None, seal(100)), FailedPrecondition)
        assert "3 is not among them" in refusal(each.add(1, piece(3, (A, 0, 1))), FailedPrecondition)


@pytest.mark.parametrize(
    ("name", "value", "pieces"),
    [
        ("PIECES_MAX", 2, [piece(0, (A, 0, 1)), piece(1, (A, 0, 1))]),
        ("STAGE_BYTES_MAX", 25, [piece(0, (A, 0, 2))]),
        ("EXTENTS_MAX", 4, [piece(0, (A, 0, 1)), piece(1, (A, 0, 1))]),
    ],
)
def test_a_piece_beyond_a_limit_changes_nothing(
    sinks: Sinks, monkeypatch: pytest.MonkeyPatch, name: str, value: int, pieces: Sequence[PieceRecord]
) -> None:
    monkeypatch.setattr(stage_table, name, value)
    sinks.open()
    for each in pieces:
        assert isinstance(sinks.add(1, each), int)
    before = list(sinks.state.snapshot())
    refusal(sinks.add(1, piece(5, (A, 0, 1))), ResourceExhausted)
    assert list(sinks.state.snapshot()) == before
    assert sinks.add(1, None, seal(*(each.crc for each in pieces))) == sinks.stage(1).size


def test_the_number_of_stages_is_limited(sinks: Sinks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_table, "STAGES_MAX", 2)
    assert [sinks.open("a"), sinks.open("b"), sinks.open("a")] == [1, 2, 1]
    refusal(sinks.open("c"), ResourceExhausted)
    sinks.run(discard_stages=DiscardStages(sink_id="sink", stage_ids=["a"]))
    assert sinks.open("c") == 3


# --- publications ---------------------------------------------------------------------------------


def test_a_publication_takes_its_stages_from_the_table(sinks: Sinks) -> None:
    one, two = sinks.staged("one"), sinks.staged("two")
    sinks.staged("three")
    publication = sinks.publish(1, "two", "one")
    assert isinstance(publication, Publication)
    assert [(part.topic, part.bytes, part.records, part.predecessor) for part in publication.parts] == [
        ("a", 40, 4, 0)
    ]
    assert [(stage.number, stage.stage_id) for stage in publication.stages] == [(two, "two"), (one, "one")]
    for each in (sinks, sinks.restored()):
        assert list(each.state.table.stages) == [3]
        assert [each.state.is_gone(number) for number in (one, two, 3, 4)] == [False] * 4
        assert "published before" in refusal(each.open("one"), FailedPrecondition)
        assert "published before" in refusal(each.publish(2, "one"), FailedPrecondition)
        assert each.publish(1, "three") == NotNew(1)
        finished = each.finish(publication.number)
        assert isinstance(finished, Finished)
        assert [each.number for each in finished.publications] == [publication.number]
        assert [each.state.is_gone(number) for number in (one, two, 3, 4)] == [True, True, False, False]
        assert "does not exist" in refusal(each.publish(2, "one"), FailedPrecondition)


def test_an_open_or_missing_stage_is_not_published(sinks: Sinks) -> None:
    sinks.staged("sealed")
    sinks.open("open")
    before = list(sinks.state.snapshot())
    assert "is not sealed" in refusal(sinks.publish(1, "sealed", "open"), FailedPrecondition)
    assert "does not exist" in refusal(sinks.publish(1, "sealed", "never"), FailedPrecondition)
    assert list(sinks.state.snapshot()) == before


def test_each_part_names_the_newest_unfinished_publication_of_its_partition(sinks: Sinks) -> None:
    def predecessors(result: object) -> list[int]:
        assert isinstance(result, Publication)
        return [part.predecessor for part in result.parts]

    for number, stage in enumerate("abcdef", 1):
        sinks.open(stage)
        parts = [(A, 0, 1)] if stage != "b" else [(A, 1, 1)]
        sinks.add(number, piece(0, *parts), seal(100))
    assert predecessors(sinks.publish(1, "a")) == [0]
    assert predecessors(sinks.publish(2, "b")) == [0], "another partition"
    assert predecessors(sinks.publish(3, "c")) == [1]
    sinks = sinks.restored()
    assert predecessors(sinks.publish(4, "d")) == [3]
    sinks.finish(4)
    assert predecessors(sinks.publish(5, "e")) == [3]
    sinks.finish(1, 3, 5)
    assert predecessors(sinks.publish(6, "f")) == [0]


# --- the end of stages ----------------------------------------------------------------------------


def test_discarded_stages_are_gone_and_others_are_passed_over(sinks: Sinks) -> None:
    sinks.staged("a"), sinks.staged("b"), sinks.staged("a", "other")
    sinks.publish(1, "b")
    command = DiscardStages(sink_id="sink", stage_ids=["a", "b", "never", "a"])
    assert sinks.run(discard_stages=command) == GoneStages((1,))
    assert [sinks.state.is_gone(number) for number in (1, 2, 3)] == [True, False, False]
    assert sinks.state.table.find(StageName("other", "a")) is sinks.stage(3)
    assert sinks.state.table.extents == 2
    assert "discarded" in refusal(sinks.add(1, piece(1, (A, 0, 1))), FailedPrecondition)


def test_stages_that_were_opened_after_they_were_to_be_discarded_stay(sinks: Sinks) -> None:
    sinks.staged("a"), sinks.staged("b")
    late = DiscardStages(sink_id="sink", stage_ids=["a", "b"], next_stage=sinks.state.table.next_stage)
    sinks.run(discard_stages=DiscardStages(sink_id="sink", stage_ids=["a"]))
    sinks.staged("a")
    assert sinks.run(discard_stages=late) == GoneStages((2,))
    assert sinks.state.table.find(StageName("sink", "a")) is sinks.stage(3)


def test_stages_that_were_opened_after_they_were_to_be_published_stay(sinks: Sinks) -> None:
    sinks.staged("a"), sinks.staged("b")
    late = PublishStages(
        sink_id="sink",
        epoch=1,
        stage_ids=["b", "a"],
        replicated=True,
        next_stage=sinks.state.table.next_stage,
    )
    sinks.run(discard_stages=DiscardStages(sink_id="sink", stage_ids=["a"]))
    sinks.staged("a")
    message = "stage a of sink sink was staged anew since it was to be published"
    assert message in refusal(sinks.run(publish_stages=late), FailedPrecondition)
    assert list(sinks.state.table.stages) == [2, 3]
    assert not sinks.state.sinks, "the epoch is not used up"
    late.next_stage = sinks.state.table.next_stage
    assert isinstance(sinks.run(publish_stages=late), Publication)


def test_stages_expire_when_their_sink_is_idle(sinks: Sinks) -> None:
    sinks.staged("a", at_ms=1000)
    sinks.staged("a", "other", at_ms=1000)
    sinks.run(touch_sink=TouchSink(sink_id="other", timestamp_ms=5000))
    sinks.run(touch_sink=TouchSink(sink_id="never", timestamp_ms=5000))
    sinks.add(1, None, seal(100), at_ms=2000)
    for each in (sinks, sinks.restored()):
        assert each.state.table.activity == {"sink": 2000, "other": 5000}
        assert each.run(expire_stages=ExpireStages(stages=[1, 2, 9], before_ms=2000)) == GoneStages(())
        assert each.run(expire_stages=ExpireStages(stages=[1, 2, 9], before_ms=2001)) == GoneStages((1,))
        assert each.state.table.activity == {"other": 5000}


def test_stages_that_a_publication_has_passed_by_expire_unless_they_grow(sinks: Sinks) -> None:
    sinks.staged("published")
    sinks.open("left"), sinks.open("grows")
    sinks.add(2, piece(0, (A, 0, 1))), sinks.add(3, piece(0, (A, 0, 1)))
    sinks.publish(1, "published", at_ms=3000)
    sinks.staged("later", at_ms=4000)
    sinks.publish(2, "later", at_ms=5000)
    sinks.add(3, piece(1, (A, 0, 1)), at_ms=6000)
    for each in (sinks, sinks.restored()):
        assert [each.stage(number).passed_ms for number in (2, 3)] == [3000, 0]
        assert each.run(expire_stages=ExpireStages(stages=[2, 3], before_ms=3000)) == GoneStages(())
        assert each.run(expire_stages=ExpireStages(stages=[2, 3], before_ms=3001)) == GoneStages((2,))


def test_a_checkpoint_is_written_while_commands_are_applied(sinks: Sinks) -> None:
    sinks.staged("a")
    sinks.open("b")
    sinks.add(2, piece(0, (A, 0, 1)))
    expected = list(sinks.state.snapshot())
    records = iter(sinks.state.snapshot())
    taken = [next(records)]
    sinks.add(2, piece(1, (A, 0, 1)))
    sinks.run(discard_stages=DiscardStages(sink_id="sink", stage_ids=["a"]))
    sinks.open("c")
    assert [*taken, *records] == expected


def test_a_state_without_stages_is_stored_as_by_releases_without_them(sinks: Sinks) -> None:
    assert list(sinks.state.snapshot()) == [(b"sinks", SinksRecord(next_publication=1).SerializeToString())]


def part(records: int, size: int, topic_id: bytes = A, partition: int = 0) -> PiecePart:
    return PiecePart(topic="a", topic_id=topic_id, partition=partition, bytes=size, records=records)


@pytest.mark.parametrize(
    "parts",
    [
        [part(2**63 - 1, 100), part(2**63 - 1, 100, B)],
        [part(-1, 100)],
        [part(-(2**63), 100)],
        [part(101, 100)],
        [part(1, 100, partition=-1)],
        [part(1, 100), part(1, 100)],
    ],
)
def test_a_piece_with_impossible_numbers_changes_nothing(sinks: Sinks, parts: list[PiecePart]) -> None:
    """Their sums would not fit into the numbers of a publication."""
    sinks.open()
    before = list(sinks.state.snapshot())
    refusal(sinks.add(1, PieceRecord(number=0, crc=100, parts=parts)), InvalidArgument)
    assert list(sinks.state.snapshot()) == before
    assert sinks.add(1, piece(0, (A, 0, 2)), seal(100)) == 20


@pytest.mark.parametrize("records", [2**63 - 1, -1])
def test_a_stage_with_impossible_numbers_of_an_earlier_release_is_not_published(
    sinks: Sinks, records: int
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(stage_table, "why_impossible", lambda _: "")
        sinks.open()
        assert sinks.add(1, PieceRecord(number=0, crc=100, parts=[part(records, 9), part(records, 9)])) == 18
        assert sinks.add(1, None, seal(100)) == 18
    for state in (sinks, sinks.restored()):
        assert "impossible" in refusal(state.publish(1, "stage"), FailedPrecondition)


# --- large publications ---------------------------------------------------------------------------


def large(sinks: Sinks, *stages: str, sink: str = "sink") -> bytes:
    """Stages with two totals each; returns the command that publishes them."""
    for name in stages:
        number = sinks.open(name, sink)
        assert isinstance(number, int)
        sinks.add(number, piece(0, (A, 0, 2), (B, 1, 3)), seal(100))
    command = PublishStages(sink_id=sink, epoch=1, stage_ids=stages, replicated=True, timestamp_ms=2000)
    return SinksCommand(publish_stages=command).SerializeToString()


@pytest.fixture
def few_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_table, "TOTALS_PER_STEP", 3)
    monkeypatch.setattr(publications, "TOTALS_PER_STEP", 4)
    monkeypatch.setattr(stage_table, "RELEASED_PER_STEP", 3)
    monkeypatch.setattr(publications, "RELEASED_PER_STEP", 3)


@pytest.mark.usefixtures("few_per_step")
def test_the_parts_of_a_large_publication_are_merged_before_it_is_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sinks, other = Sinks(), Sinks()
    payload = large(sinks, "a", "b", "c")
    assert large(other, "a", "b", "c") == payload
    before = list(sinks.state.snapshot())
    steps = sinks.state.prepare(payload)
    assert steps is not None
    assert len(list(steps)) == 5
    assert list(sinks.state.snapshot()) == before
    assert sinks.state.prepare(payload) is None
    expected = other.state.apply(payload)
    monkeypatch.setattr(publications, "merged_parts", lambda _: pytest.fail("merged in one step"))
    assert len(sinks.state._by_partition) == 2, "noted with the command"
    assert sinks.state.apply(payload) == expected
    assert list(sinks.state.snapshot()) == list(other.state.snapshot())


@pytest.mark.usefixtures("few_per_step")
@pytest.mark.parametrize("how", ["published", "discarded", "expired"])
def test_the_memory_of_stages_that_have_left_is_released_in_steps(how: str) -> None:
    sinks = Sinks()
    payload = large(sinks, "a", "b", "c")
    left = [weakref.ref(stage.parts) for stage in map(Totals.of, sinks.state.table.stages.values())]
    if how == "published":
        sinks.state.apply(payload)
    elif how == "discarded":
        sinks.run(discard_stages=DiscardStages(sink_id="sink", stage_ids=["a", "b", "c"]))
    else:
        sinks.run(expire_stages=ExpireStages(stages=[1, 2, 3], before_ms=10**6))
    assert not sinks.state.table.stages
    alive = [sum(each() is not None for each in left)]
    alive += [sum(each() is not None for each in left) for _ in sinks.state.release()]
    assert alive[0] == 3
    assert alive[1:] == [2, 1, 0]


@pytest.mark.usefixtures("few_per_step")
def test_the_places_of_a_finished_publication_are_released_in_steps() -> None:
    sinks = Sinks()
    sinks.state.apply(large(sinks, "a", "b", "c"))
    sinks.finish(1)
    assert len(list(sinks.state.release())) > 1
    assert sinks.state._by_partition == {}


class Totals(dict[tuple[bytes, int], stage_table.PartTotal]):
    """Totals whose release can be seen."""

    @staticmethod
    def of(stage: ReplicatedStage) -> ReplicatedStage:
        stage.parts = Totals(stage.parts)
        return stage


@pytest.mark.slow
@pytest.mark.usefixtures("few_per_step")
@pytest.mark.parametrize("seed", range(30))
def test_what_is_prepared_changes_no_result_whatever_is_applied(seed: int) -> None:
    """Wholly, in part, for a command that is refused or does not come; with releases or without."""
    rng = Random(seed)
    sinks, other = Sinks(), Sinks()
    epoch = 0
    for turn in range(60):
        there = [stage.name.stage_id for stage in sinks.state.table.stages.values()]
        names = rng.sample(
            [*there, "missing"] if rng.random() < 0.1 else there, min(len(there), rng.randint(1, 4))
        )
        epoch += rng.choice((0, 1, 1, 1))
        publish = PublishStages(
            sink_id="sink", epoch=epoch, query_id="query", stage_ids=names, replicated=True, timestamp_ms=2000
        )
        payload = SinksCommand(publish_stages=publish).SerializeToString()
        steps = sinks.state.prepare(payload) if rng.random() < 0.8 else None
        if steps is not None:
            list(islice(steps, rng.choice((1, 3, 5, 100, 100))))
        match rng.randint(0, 6):
            case 0 | 1 | 2:
                numbers = [each.open(f"stage {turn}") for each in (sinks, other)]
                assert numbers[0] == numbers[1]
                parts = [(topic_id, each, 2) for topic_id in (A, B) for each in rng.sample(range(4), 2)]
                for each in (sinks, other):
                    each.add(number_of(numbers[0]), piece(0, *parts), seal(100))
            case 3:
                finished = rng.sample(range(1, 6), 2)
                assert sinks.finish(*finished) == other.finish(*finished)
            case 4 if rng.random() < 0.2:
                gone = DiscardStages(sink_id="sink", stage_ids=there[:2])
                assert sinks.run(discard_stages=gone) == other.run(discard_stages=gone)
            case _:
                result = sinks.state.apply(payload)
                assert str(result) == str(other.state.apply(payload))
        if rng.random() < 0.3:
            list(sinks.state.release())
        assert list(sinks.state.snapshot()) == list(other.state.snapshot())
    assert other.state.next_publication > 4
    assert sinks.state.prepare(b"") is None


def number_of(result: object) -> int:
    assert isinstance(result, int)
    return result


@pytest.mark.usefixtures("few_per_step")
def test_what_was_prepared_for_other_stages_is_not_used() -> None:
    sinks, other = Sinks(), Sinks()
    payload = large(sinks, "a", "b", "c")
    large(other, "a", "b", "c")
    steps = sinks.state.prepare(payload)
    assert steps is not None
    for each in (sinks, other):
        list(steps)
        each.run(discard_stages=DiscardStages(sink_id="sink", stage_ids=["b"]))
        number = each.open("b")
        assert isinstance(number, int)
        each.add(number, piece(0, (A, 0, 50)), seal(100))
    assert sinks.state.apply(payload) == other.state.apply(payload)


@pytest.mark.usefixtures("few_per_step")
def test_only_large_publications_of_sealed_replicated_stages_are_prepared() -> None:
    sinks = Sinks()
    assert sinks.state.prepare(large(sinks, "small")) is None
    sinks.open("open")
    payload = large(sinks, "a", "b")
    command = SinksCommand.FromString(payload)
    command.publish_stages.stage_ids.append("open")
    assert sinks.state.prepare(command.SerializeToString()) is None
    command = SinksCommand.FromString(payload)
    command.publish_stages.replicated = False
    assert sinks.state.prepare(command.SerializeToString()) is None
    opened = SinksCommand(open_stage=OpenStage(sink_id="sink", stage_id="x")).SerializeToString()
    for other in (opened, b"", b"\n", payload[:-1]):
        assert sinks.state.prepare(other) is None
    assert sinks.state.prepare(bytearray(payload)) is not None
