"""FetchSnapshot: a test for each row of the two tables, and leaders that misbehave."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.cluster.snapshots.fetch_snapshot import (
    Again,
    Append,
    FetchSnapshotError,
    GiveUp,
    GroupFacts,
    Restart,
    ServerFacts,
    Slice,
    SnapshotDownload,
    cut_slice,
    find_checkpoint,
)
from pixy.cluster.snapshots.fetch_snapshot_codec import (
    NO_CHECKPOINT,
    CurrentLeader,
    SliceAnswer,
    SliceRequest,
    WantedSlice,
)
from pixy.storage import CheckpointId

Error = FetchSnapshotError
ID, OTHER = CheckpointId(2, 100), CheckpointId(2, 50)
CONTENT = bytes(range(200))

# --- server ---------------------------------------------------------------------------------------

WANTED = WantedSlice("metadata", 0, 7, ID, 0)
REQUEST = SliceRequest("cluster", 3, 1000, WANTED)
GROUP = GroupFacts(leads=True, leader=1, term=7, checkpoints=[OTHER, ID])
FACTS = ServerFacts("cluster", stopping=False, group=GROUP)


def asked(**changes: object) -> SliceRequest:
    return replace(REQUEST, wanted=WANTED._replace(**changes))  # type: ignore[arg-type]


def whole_error(error: Error) -> SliceAnswer:
    return SliceAnswer(error)


def test_what_the_leader_has_is_found() -> None:
    assert find_checkpoint(REQUEST, FACTS) == WANTED
    assert find_checkpoint(replace(REQUEST, cluster_id=None), FACTS) == WANTED


def test_another_cluster_is_an_error_of_the_whole_answer() -> None:
    request = SliceRequest("another", 3, 0, None)
    assert find_checkpoint(request, FACTS) == whole_error(Error.INCONSISTENT_CLUSTER_ID)


@pytest.mark.parametrize("request_", [replace(REQUEST, wanted=None), replace(REQUEST, max_bytes=0)])
def test_a_request_for_less_or_more_than_one_slice_is_invalid(request_: SliceRequest) -> None:
    assert find_checkpoint(request_, replace(FACTS, group=None)) == whole_error(Error.INVALID_REQUEST)


def test_an_unknown_partition_has_no_leader() -> None:
    for request, facts in [
        (asked(epoch=1), replace(FACTS, group=None)),
        (asked(partition=1, epoch=1), FACTS),
    ]:
        expected = SliceAnswer(Error.UNKNOWN_TOPIC_OR_PARTITION, request.wanted)
        assert find_checkpoint(request, facts) == expected


@pytest.mark.parametrize(
    ("epoch", "leads", "stopping", "error"),
    [
        (6, True, False, Error.FENCED_LEADER_EPOCH),
        (6, False, True, Error.FENCED_LEADER_EPOCH),
        (8, True, False, Error.UNKNOWN_LEADER_EPOCH),
        (8, False, True, Error.UNKNOWN_LEADER_EPOCH),
        (7, False, False, Error.NOT_LEADER_OR_FOLLOWER),
        (7, False, True, Error.NOT_LEADER_OR_FOLLOWER),
        (7, True, True, Error.BROKER_NOT_AVAILABLE),
    ],
)
def test_only_a_leader_in_the_term_of_the_follower_answers(
    epoch: int, leads: bool, stopping: bool, error: Error
) -> None:
    facts = ServerFacts("cluster", stopping, replace(GROUP, leads=leads, leader=2))
    request = asked(epoch=epoch, id=CheckpointId(9, 9), position=-1)
    expected = SliceAnswer(error, request.wanted, leader=CurrentLeader(2, 7))
    assert find_checkpoint(request, facts) == expected


def test_a_node_without_a_leader_says_so() -> None:
    facts = replace(FACTS, group=replace(GROUP, leads=False, leader=0))
    answer = find_checkpoint(REQUEST, facts)
    assert answer == SliceAnswer(Error.NOT_LEADER_OR_FOLLOWER, WANTED, leader=CurrentLeader(-1, 7))


@pytest.mark.parametrize("id", [CheckpointId(2, 99), CheckpointId(1, 100), NO_CHECKPOINT])
def test_a_checkpoint_that_is_not_there_is_not_found(id: CheckpointId) -> None:
    facts = replace(FACTS, group=replace(GROUP, checkpoints=[ID, NO_CHECKPOINT]))
    request = asked(id=id, position=-1)
    expected = SliceAnswer(Error.SNAPSHOT_NOT_FOUND, request.wanted, leader=CurrentLeader(1, 7))
    assert find_checkpoint(request, facts) == expected


@pytest.mark.parametrize(("position", "size"), [(-1, 10), (10, 10), (11, 10), (0, 0)])
def test_a_position_outside_of_the_file_is_out_of_range(position: int, size: int) -> None:
    assert cut_slice(WANTED._replace(position=position), size, 100) is None


@pytest.mark.parametrize(
    ("position", "size", "max_bytes", "length"),
    [(0, 10, 100, 10), (0, 10, 4, 4), (9, 10, 4, 1), (8, 10, 1, 1), (3 << 30, 4 << 30, 1000, 1000)],
)
def test_a_slice_has_what_fits(position: int, size: int, max_bytes: int, length: int) -> None:
    wanted = WANTED._replace(position=position)
    assert cut_slice(wanted, size, max_bytes) == Slice(ID, position, length)


# --- client ---------------------------------------------------------------------------------------


def download(size: int = 0, position: int = 0, attempts: int = 3) -> SnapshotDownload:
    return SnapshotDownload(ID, attempts, size=size, position=position)


def answer_to(wanted: WantedSlice, length: int = 50, content: bytes = CONTENT) -> SliceAnswer:
    """The right answer."""
    part = content[wanted.position : wanted.position + length]
    return SliceAnswer(0, wanted, wanted.id, CurrentLeader(1, 7), len(content), wanted.position, part)


def answered(one: SnapshotDownload, **changes: object) -> object:
    """Outcome of the right answer with these changes."""
    return one.take(replace(answer_to(one.next_slice("metadata", 7)), **changes))  # type: ignore[arg-type]


def test_slices_are_appended_until_all_are_there() -> None:
    one = download()
    got = bytearray()
    while not one.is_complete:
        wanted = one.next_slice("metadata", 7)
        assert wanted == WantedSlice("metadata", 0, 7, ID, len(got))
        outcome = one.take(answer_to(wanted, 70))
        assert outcome == Append(len(got), CONTENT[len(got) : len(got) + 70], len(CONTENT))
        got += CONTENT[len(got) : len(got) + 70]
        one.check_invariants()
    assert got == CONTENT


def test_a_download_goes_on_where_an_earlier_attempt_has_ended() -> None:
    one = download(size=len(CONTENT), position=150)
    assert answered(one) == Append(150, CONTENT[150:], len(CONTENT))
    assert one.is_complete


@pytest.mark.parametrize("size", [151, 199, 201])
def test_a_file_of_another_size_is_begun_anew(size: int) -> None:
    one = download(size=size, position=150)
    assert answered(one) == Restart(f"the file of this leader has 200 bytes, not {size}")
    assert one.next_slice("metadata", 7).position == 0
    assert answered(one) == Append(0, CONTENT[:50], 200)


@pytest.mark.parametrize("error", [Error.SNAPSHOT_NOT_FOUND, Error.POSITION_OUT_OF_RANGE])
def test_a_checkpoint_that_the_leader_does_not_have_is_given_up(error: Error) -> None:
    one = download(size=200, position=100)
    wanted = one.next_slice("metadata", 7)
    outcome = one.take(SliceAnswer(error, wanted, NO_CHECKPOINT, CurrentLeader(1, 7)))
    assert outcome == GiveUp(f"the leader answers {error.name}", keeps=False, gone=True)


@pytest.mark.parametrize("id", [CheckpointId(-1, 100), CheckpointId(2, -1)])
def test_an_answer_with_half_an_id_is_like_none(id: CheckpointId) -> None:
    outcome = answered(download(), id=id)
    assert outcome == GiveUp(f"the leader answers with the invalid id {tuple(id)}", keeps=False, gone=True)


@pytest.mark.parametrize("error", [Error.INCONSISTENT_CLUSTER_ID, Error.INVALID_REQUEST])
def test_an_error_of_the_whole_request_does_not_go_away(error: Error) -> None:
    assert download().take(SliceAnswer(error)) == GiveUp(f"the leader answers {error.name}", keeps=True)


@pytest.mark.parametrize(
    "error",
    [
        Error.FENCED_LEADER_EPOCH,
        Error.UNKNOWN_LEADER_EPOCH,
        Error.NOT_LEADER_OR_FOLLOWER,
        Error.BROKER_NOT_AVAILABLE,
        Error.UNKNOWN_TOPIC_OR_PARTITION,
        Error.UNKNOWN_SERVER_ERROR,
    ],
)
def test_any_other_error_may_go_away(error: Error) -> None:
    one = download(size=200, position=100)
    wanted = one.next_slice("metadata", 7)
    outcome = one.take(SliceAnswer(error, wanted, leader=CurrentLeader(2, 8)))
    assert outcome == Again(f"the leader answers {error.name}, leader 2 in term 8")
    assert one.next_slice("metadata", 8) == wanted._replace(epoch=8)


def test_an_error_of_a_newer_release_may_go_away() -> None:
    assert download().take(SliceAnswer(999, WANTED)) == Again("the leader answers error 999")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"id": OTHER},
            f"expected byte 100 of {ID.file_name}, got byte 100 of {OTHER.file_name}",
        ),
        ({"position": 99}, f"expected byte 100 of {ID.file_name}, got byte 99 of {ID.file_name}"),
        ({"position": 0}, f"expected byte 100 of {ID.file_name}, got byte 0 of {ID.file_name}"),
        ({"content": b""}, "got bytes 100 to 100 of 200"),
        ({"content": bytes(101)}, "got bytes 100 to 201 of 200"),
        ({"size": 120}, "got bytes 100 to 150 of 120"),
        ({"size": 0}, "got bytes 100 to 150 of 0"),
        ({"size": -1}, "got bytes 100 to 150 of -1"),
    ],
)
def test_a_slice_of_something_else_is_not_appended(changes: dict[str, object], reason: str) -> None:
    one = download(size=200, position=100)
    assert answered(one, **changes) == Again(reason)
    assert (one.size, one.position) == (200, 100)
    assert isinstance(answered(one), Append)


def test_attempts_in_a_row_are_limited_and_progress_begins_a_new_row() -> None:
    one = download(attempts=3)
    for _ in range(2):
        for _ in range(2):
            assert one.failed("no answer") == Again("no answer")
        assert isinstance(answered(one), Append)
    for _ in range(2):
        one.failed("no answer")
    expected = GiveUp("3 attempts in a row failed, the last one: no answer", keeps=True)
    assert one.failed("no answer") == expected


def test_a_damaged_file_is_fetched_once_more() -> None:
    one = download(size=200, position=200)
    assert one.is_complete
    assert one.damaged("a flipped bit") == Restart("a flipped bit")
    assert (one.size, one.position) == (0, 0)
    for _ in range(4):
        answered(one)
    assert one.damaged("again") == GiveUp("the checkpoint is damaged again: again", keeps=False)


class Liar:
    """A leader that gives a wrong answer at times, and changes."""

    def __init__(self, rng: Random, contents: list[bytes]) -> None:
        self._rng = rng
        self.contents = contents

    def answer(self, wanted: WantedSlice) -> SliceAnswer | None:
        rng = self._rng
        right = answer_to(wanted, rng.randint(1, 80), rng.choice(self.contents))
        if wanted.position >= right.size:
            return SliceAnswer(Error.POSITION_OUT_OF_RANGE, wanted)
        if rng.random() < 0.6:
            return right
        wrong: list[SliceAnswer | None] = [
            None,
            SliceAnswer(rng.choice(list(Error)), wanted),
            replace(right, position=rng.randint(-1, 300)),
            replace(right, size=rng.randint(-1, 300)),
            replace(right, content=bytes(rng.randint(0, 300))),
            replace(right, id=rng.choice([OTHER, CheckpointId(-1, -1), NO_CHECKPOINT])),
        ]
        return rng.choice(wrong)


@given(st.integers(0, 10**9))
def test_a_download_has_the_right_size_or_ends(seed: int) -> None:
    rng = Random(seed)
    leader = Liar(rng, [CONTENT, CONTENT[:-3]])
    one, part = download(attempts=5), bytearray()
    for _ in range(1000):
        answer = leader.answer(one.next_slice("metadata", 7))
        outcome = one.failed("no answer") if answer is None else one.take(answer)
        one.check_invariants()
        if isinstance(outcome, GiveUp):
            return
        if isinstance(outcome, Append):
            assert outcome.position <= len(part)
            part[outcome.position :] = outcome.content
            assert len(part) == one.position <= one.size
        if one.is_complete:
            assert len(part) == one.size
            return
    raise AssertionError("the download does not end")
