"""The state machine of sinks: epochs, owners, unfinished publications, expiry, checkpoints."""

import time
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.api.grpc.maxima import REPEATED_MAX
from pixy.cluster.state import publications
from pixy.cluster.state.publications import Publication, SinksState
from pixy.errors import DataDirectoryError, FailedPrecondition, ResourceExhausted
from pixy.proto.state_pb2 import (
    AddPiece,
    ExpireSinks,
    FinishPublications,
    OpenStage,
    PiecePart,
    PieceRecord,
    PublicationPart,
    PublishStages,
    SealRecord,
    SinksCommand,
)
from pixy.staging import NotNew, Sink, StageName
from pixy.staging.stages import seal_crc

PART = PublicationPart(topic="t", topic_id=b"i" * 16, partition=3, bytes=10, records=2)


def publish(
    epoch: int,
    *stage_ids: str,
    sink: str = "sink",
    query: str = "query",
    reset: bool = False,
    replaces: str = "",
    at_ms: int = 1000,
    client: str = "",
) -> bytes:
    command = PublishStages(
        sink_id=sink,
        epoch=epoch,
        query_id=query,
        reset_sink=reset,
        replaces_query_id=replaces,
        stage_ids=stage_ids,
        parts=[PART],
        timestamp_ms=at_ms,
        client=client,
    )
    return SinksCommand(publish_stages=command).SerializeToString()


def finish(*numbers: int) -> bytes:
    return SinksCommand(finish_publications=FinishPublications(publications=numbers)).SerializeToString()


def expire(before_ms: int, *sink_ids: str) -> bytes:
    return SinksCommand(expire_sinks=ExpireSinks(sink_ids=sink_ids, before_ms=before_ms)).SerializeToString()


def restored(state: SinksState) -> SinksState:
    other = SinksState()
    other.restore(state.snapshot())
    return other


def seen(state: SinksState) -> tuple[object, ...]:
    return state.sinks, state.publications, state.next_publication, state._published


def test_numbers_of_publications_ascend_even_after_they_are_finished() -> None:
    state = SinksState()
    assert state.apply(publish(0, "a", "b")) == Publication(1, "sink", ("a", "b"), (PART,))
    assert state.is_published(StageName("sink", "a"))
    state.apply(finish(1))
    assert not state.is_published(StageName("sink", "a"))
    assert state.publications == {}
    result = restored(state).apply(publish(0, "c", sink="other"))
    assert isinstance(result, Publication)
    assert result.number == 2


def test_an_epoch_that_is_not_above_the_last_one_changes_nothing() -> None:
    state = SinksState()
    state.apply(publish(5, "a"))
    before = restored(state)
    for epoch in (5, 4, 0):
        assert state.apply(publish(epoch, "b")) == NotNew(5)
    assert seen(state) == seen(before)
    assert isinstance(state.apply(publish(6, "b")), Publication)


def test_another_query_is_refused_until_it_resets_the_sink() -> None:
    state = SinksState()
    state.apply(publish(5, "a"))
    before = restored(state)
    refusal = state.apply(publish(9, "b", query="other"))
    assert isinstance(refusal, FailedPrecondition)
    assert "'query'" in str(refusal)
    assert "'other'" in str(refusal)
    assert seen(state) == seen(before)
    assert isinstance(state.apply(publish(0, "b", query="other", reset=True)), Publication)
    assert state.sinks["sink"] == Sink("other", 0, 1000)
    assert state.apply(publish(0, "c", query="other", reset=True)) == NotNew(0)


def test_a_query_takes_over_a_sink_only_from_the_query_that_it_names() -> None:
    state = SinksState()
    state.apply(publish(5, "a"))
    assert isinstance(state.apply(publish(0, "b", query="new", replaces="another")), FailedPrecondition)
    assert isinstance(state.apply(publish(0, "b", query="new", replaces="query")), Publication)
    assert state.sinks["sink"] == Sink("new", 0, 1000)
    assert state.apply(publish(0, "c", query="new", replaces="query")) == NotNew(0)
    before = restored(state)
    # The replaced query is started again, with its unchanged options.
    for replaces in ("", "query", "its predecessor"):
        refusal = state.apply(publish(6, "c", query="query", replaces=replaces))
        assert isinstance(refusal, FailedPrecondition)
        assert "'new'" in str(refusal)
    assert seen(state) == seen(before)


def test_a_sink_without_a_query_cannot_be_taken_over() -> None:
    state = SinksState()
    state.apply(publish(0, "a", query=""))
    assert isinstance(state.apply(publish(0, "b", query="new", replaces="")), FailedPrecondition)


def test_a_stage_is_published_once() -> None:
    state = SinksState()
    state.apply(publish(0, "a"))
    before = restored(state)
    assert isinstance(state.apply(publish(1, "b", "a")), FailedPrecondition)
    assert seen(state) == seen(before)
    # Another sink may have a stage of the same name.
    assert isinstance(state.apply(publish(0, "a", sink="other")), Publication)


def inactive(state: SinksState, before_ms: int) -> list[str]:
    return [sink_id for sink_id in state.sinks if state.is_inactive_since(sink_id, before_ms)]


def test_sinks_with_unfinished_publications_do_not_expire() -> None:
    state = SinksState()
    state.apply(publish(0, "a", at_ms=1000))
    state.apply(publish(0, "a", sink="other", at_ms=2000))
    assert inactive(state, 5000) == []
    state.apply(finish(1, 2))
    assert inactive(state, 2000) == ["sink"]
    assert inactive(restored(state), 2000) == ["sink"]
    state.apply(expire(2000, "sink", "other", "unknown"))
    assert list(state.sinks) == ["other"]


def test_the_number_of_sinks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publications, "SINKS_MAX", 1)
    state = SinksState()
    state.apply(publish(0))
    assert isinstance(state.apply(publish(0, sink="other")), ResourceExhausted)
    assert isinstance(state.apply(publish(1)), Publication)


def test_a_sink_counts_for_the_address_that_published_first_until_it_is_forgotten() -> None:
    state = SinksState()
    state.apply(publish(0, client="10.0.0.1"))
    state.apply(publish(1, client="10.0.0.2"))
    state.apply(publish(0, query="other", reset=True, client="10.0.0.2"))
    state.apply(publish(0, sink="second", client="10.0.0.2"))
    state.apply(publish(0, sink="of an earlier release"))
    state.apply(publish(1, sink="of an earlier release", client="10.0.0.2"))
    assert state.sinks_of == restored(state).sinks_of == {"10.0.0.1": 1, "10.0.0.2": 1}
    state.apply(finish(*state.publications))
    state.apply(expire(2000, "sink"))
    assert state.sinks_of == restored(state).sinks_of == {"10.0.0.2": 1}


def test_publishing_as_many_stages_as_a_request_may_have_is_a_short_step() -> None:
    """Every node applies it at once; a multiple of the ten milliseconds of a step, for slow
    machines.
    """
    most = REPEATED_MAX["Log"]["Publish"]["stage_ids"]
    state, stage_ids = SinksState(), [f"{'s' * 240}{number}" for number in range(most)]
    for stage_id in stage_ids:
        opened = OpenStage(sink_id="sink", stage_id=stage_id, timestamp_ms=1)
        number = state.apply(SinksCommand(open_stage=opened).SerializeToString())
        assert isinstance(number, int)
        piece = PieceRecord(crc=7, client="10.0.0.1", parts=[PiecePart(topic="t", topic_id=b"i", bytes=10)])
        seal = SealRecord(pieces=1, crc=seal_crc([7]))
        state.apply(
            SinksCommand(add_piece=AddPiece(stage=number, piece=piece, seal=seal)).SerializeToString()
        )
    command = PublishStages(sink_id="sink", epoch=1, stage_ids=stage_ids, replicated=True)
    payload = SinksCommand(publish_stages=command).SerializeToString()
    begun = time.thread_time()
    published = state.apply(payload)
    assert time.thread_time() - begun < 0.06
    assert isinstance(published, Publication)
    assert [(part.topic, part.bytes) for part in published.parts] == [("t", 10 * most)]
    assert len(published.stages) == most
    assert not state.table.stages
    assert not state.table.bytes_of


def test_an_unknown_command_is_that_of_a_newer_release() -> None:
    with pytest.raises(DataDirectoryError, match="a newer release wrote it"):
        SinksState().apply(b"\xfa\x01\x00")  # field 31


COMMANDS = st.one_of(
    st.builds(
        publish,
        st.integers(0, 5),
        st.sampled_from(["a", "b", "c", "d"]),
        sink=st.sampled_from(["s", "t"]),
        query=st.sampled_from(["", "q", "r"]),
        reset=st.booleans(),
        replaces=st.sampled_from(["", "q", "r"]),
        at_ms=st.integers(0, 100),
        client=st.sampled_from(["", "10.0.0.1", "10.0.0.2"]),
    ),
    st.builds(finish, st.integers(1, 8)),
    st.builds(expire, st.integers(0, 100), st.sampled_from(["s", "t"])),
)


@pytest.mark.slow
@given(st.lists(COMMANDS, max_size=30), st.integers(0, 30))
def test_a_checkpoint_at_any_point_changes_nothing(commands: Iterable[bytes], at: int) -> None:
    state, other = SinksState(), SinksState()
    for number, command in enumerate(commands):
        if number == at:
            other = restored(other)
        assert state.apply(command).__class__ is other.apply(command).__class__
    assert seen(state) == seen(other)
    assert seen(restored(state)) == seen(state)
    published = {
        StageName(each.sink_id, stage) for each in state.publications.values() for stage in each.stage_ids
    }
    assert state._published == published
    assert list(state.publications) == sorted(state.publications)
