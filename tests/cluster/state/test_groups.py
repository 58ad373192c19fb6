"""The state machine of committed offsets: commits, checkpoints, the state group of a consumer
group.
"""

import tracemalloc
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.cluster.state.group_members import (
    NO_MEMBERS,
    GroupMember,
    MemberId,
    Process,
    member_message,
    target_message,
)
from pixy.cluster.state.groups import Forgotten, GroupsChanged, GroupsState, groups_index
from pixy.errors import (
    DataDirectoryError,
    FailedPrecondition,
    OffsetsSet,
    OwnedElsewhere,
    PixyError,
    UnknownGroup,
)
from pixy.proto import state_pb2 as pb
from pixy.proto.state_pb2 import (
    CommitOffsets,
    CommittedOffset,
    DeleteOffsets,
    ExpelProcess,
    ExpireGroups,
    ForgetTopics,
    GroupsCommand,
    JoinGroup,
    LeaveGroup,
    ReleasePartitions,
    SetTargets,
    TouchGroups,
)
from pixy.records import OffsetCommit
from tests.cluster.nodes import commit_command

COMMITS = st.lists(
    st.tuples(
        st.integers(0, 100), st.sampled_from(["g", "h", "\0"]), st.sampled_from("abc"), st.integers(0, 3)
    ),
    max_size=30,
)


def test_a_commit_replaces_what_it_names_and_nothing_else() -> None:
    state = GroupsState()
    for offset, group, topic, partition in [
        (1, "g", "a", 0),
        (2, "g", "a", 1),
        (3, "h", "a", 0),
        (4, "g", "a", 0),
    ]:
        assert state.apply(commit_command(offset, group, topic, partition)) is None
    assert state.committed("g", b"a") == {0: OffsetCommit(4, "m4"), 1: OffsetCommit(2, "m2")}
    assert state.committed("h", b"a") == {0: OffsetCommit(3, "m3")}
    assert state.committed("g", b"b") == state.committed("x", b"a") == {}


def test_one_commit_may_name_many_partitions() -> None:
    offsets = [
        CommittedOffset(topic="a", topic_id=b"a", partition=number, offset=number * 10) for number in range(5)
    ]
    state = GroupsState()
    state.apply(GroupsCommand(commit_offsets=CommitOffsets(group="g", offsets=offsets)).SerializeToString())
    assert state.committed("g", b"a") == {number: OffsetCommit(number * 10) for number in range(5)}


def test_an_offset_may_go_back() -> None:
    state = GroupsState()
    state.apply(commit_command(9, "g", "a", 0, timestamp_ms=100))
    state.apply(commit_command(3, "g", "a", 0, timestamp_ms=50))
    assert state.committed("g", b"a") == {0: OffsetCommit(3, "m3")}


def handed_out(mark: int | None, offset: int = 0, *, client: bool = False, topic: str = "a") -> bytes:
    """A commit with a mark of what was handed out."""
    committed_offset = CommittedOffset(
        topic=topic, topic_id=topic.encode(), partition=0, offset=offset, handed_out=mark
    )
    command = CommitOffsets(group="g", offsets=[committed_offset], set=client)
    return GroupsCommand(commit_offsets=command).SerializeToString()


def test_what_was_handed_out_only_grows_whoever_commits() -> None:
    state = GroupsState()
    state.apply(handed_out(5))
    assert state.handed_out("g", b"a") == {0: 5}
    for command in (handed_out(3), handed_out(None), handed_out(None, 2, client=True)):
        state.apply(command)
        assert state.handed_out("g", b"a") == {0: 5}
    state.apply(handed_out(8))
    assert state.handed_out("g", b"a") == {0: 8}
    assert state.handed_out("g", b"b") == state.handed_out("h", b"a") == {}


def test_what_was_handed_out_is_not_known_of_a_commit_of_an_earlier_release() -> None:
    state = GroupsState()
    state.apply(handed_out(None, 7))
    state.apply(handed_out(None, 2, client=True))
    assert state.handed_out("g", b"a") == {}
    state.apply(handed_out(9))
    assert state.handed_out("g", b"a") == {0: 9}


def test_nothing_was_handed_out_to_a_group_whose_first_offset_a_client_sets() -> None:
    state = GroupsState()
    state.apply(handed_out(None, 7, client=True))
    assert state.handed_out("g", b"a") == {0: 0}


def test_a_checkpoint_stores_what_was_handed_out() -> None:
    state, restored = GroupsState(), GroupsState()
    state.apply(handed_out(5, topic="a"))
    state.apply(handed_out(0, topic="b"))
    state.apply(handed_out(None, topic="c"))
    restored.restore(state.snapshot())
    found = [restored.handed_out("g", topic) for topic in (b"a", b"b", b"c")]
    assert found == [{0: 5}, {0: 0}, {}]


def test_an_unknown_command_is_that_of_a_newer_release() -> None:
    with pytest.raises(DataDirectoryError, match="a newer release wrote it"):
        GroupsState().apply(b"\xfa\x07\x01x")


@pytest.mark.slow
@given(COMMITS)
def test_a_snapshot_restores_an_equal_state(commits: list[tuple[int, str, str, int]]) -> None:
    state = GroupsState()
    for at, (offset, group, topic, partition) in enumerate(commits):
        state.apply(commit_command(offset, group, topic, partition, at))
    records = list(state.snapshot())
    assert len({key for key, _ in records}) == len(records)
    restored = GroupsState()
    restored.apply(commit_command(1, "gone", "a", 0))
    restored.restore(iter(records))
    assert (restored._groups, restored.topic_ids()) == (state._groups, state.topic_ids())
    assert restored.offset_bytes == state.offset_bytes
    assert list(restored.snapshot()) == records


def test_a_snapshot_shows_the_state_of_its_moment() -> None:
    state = GroupsState()
    state.apply(commit_command(1, "g", "a", 0))
    records = state.snapshot()
    state.apply(commit_command(2, "g", "a", 0))
    state.apply(commit_command(3, "h", "a", 0))
    restored = GroupsState()
    restored.restore(records)
    assert (restored.committed("g", b"a"), restored.committed("h", b"a")) == ({0: OffsetCommit(1, "m1")}, {})


@pytest.mark.slow
@given(st.text(), st.integers(1, 50))
def test_a_consumer_group_belongs_to_one_state_group(name: str, count: int) -> None:
    assert 0 <= groups_index(name, count) < count
    assert groups_index(name, 1) == 0


def test_the_state_group_of_a_consumer_group_never_changes() -> None:
    assert [groups_index(name, 16) for name in ("orders", "bills", "")] == [10, 15, 0]


# --- topics that go, and consumer groups that nobody consumes in ----------------------------------


def groups(state: GroupsState) -> list[str]:
    pieces = list(state.scan(7))
    assert max(map(len, pieces), default=0) <= 7
    return [group for piece in pieces for group in piece]


def inactive(state: GroupsState, before_ms: int) -> list[str]:
    return [group for group in sorted(groups(state)) if state.is_inactive_since(group, before_ms)]


def forget(*topic_ids: bytes) -> bytes:
    return GroupsCommand(forget_topics=ForgetTopics(topic_ids=topic_ids)).SerializeToString()


def touch(at: int, *groups: str) -> bytes:
    return GroupsCommand(touch_groups=TouchGroups(groups=groups, timestamp_ms=at)).SerializeToString()


def expire(before: int, *groups: str) -> bytes:
    return GroupsCommand(expire_groups=ExpireGroups(groups=groups, before_ms=before)).SerializeToString()


def test_offsets_are_deleted_with_what_is_known_of_them() -> None:
    def delete(topic: str = "", topic_id: bytes = b"") -> object:
        command = DeleteOffsets(group="g", topic=topic, topic_id=topic_id)
        return state.apply(GroupsCommand(delete_offsets=command).SerializeToString())

    state = GroupsState()
    for topic in "ab":
        state.apply(commit_command(5, "g", topic, 0))
    assert isinstance(delete("a", b"later"), UnknownGroup)
    assert delete("a", b"a") is None
    assert (state.topic_ids(), state.committed("g", b"a")) == ({b"b"}, {})
    state.apply(join(MemberId(1, 1, 1), "b"))
    assert isinstance(delete(), FailedPrecondition)
    assert isinstance(delete("a", b"a"), UnknownGroup)
    state.apply(leave(MemberId(1, 1, 1)))
    assert delete() is None
    assert (groups(state), state.topic_ids(), state.offset_bytes) == ([], set(), 0)


@pytest.mark.parametrize(("topic", "topic_id"), [("", b""), ("a", b"a")])
def test_only_offsets_that_were_seen_are_deleted(topic: str, topic_id: bytes) -> None:
    """The command may come long after it was given up, when the group has begun anew."""

    def delete() -> object:
        command = DeleteOffsets(group="g", topic=topic, topic_id=topic_id, seen=seen)
        return state.apply(GroupsCommand(delete_offsets=command).SerializeToString())

    state = GroupsState()
    state.apply(commit_command(5, "g", "a", 0, timestamp_ms=7))
    seen = state.checksum("g", topic_id)
    assert delete() is None
    assert isinstance(delete(), UnknownGroup)
    state.apply(commit_command(5, "g", "a", 0, timestamp_ms=8))
    assert isinstance(delete(), FailedPrecondition)
    state.apply(commit_command(5, "g", "a", 1, timestamp_ms=7))
    assert isinstance(delete(), FailedPrecondition)
    # By a clock that is behind the one of the newest commit.
    seen = state.checksum("g", topic_id)
    state.apply(commit_command(6, "g", "a", 1, timestamp_ms=3))
    assert isinstance(delete(), FailedPrecondition)
    assert [*state.committed("g", b"a")] == [0, 1]
    seen = state.checksum("g", topic_id)
    assert delete() is None
    assert state.checksum("g", topic_id) == 0


def set_seen(*offsets: tuple[int, int], at: int = 7) -> bytes:
    """A command to set offsets of partitions 0 and on, each with what was seen of it."""
    command = CommitOffsets(group="g", timestamp_ms=at, set=True)
    for partition, (offset, seen) in enumerate(offsets):
        command.offsets.add(topic="a", topic_id=b"a", partition=partition, offset=offset, set_ms=seen)
    return GroupsCommand(commit_offsets=command).SerializeToString()


@pytest.mark.parametrize("before", ["nothing", "committed", "set"])
@pytest.mark.parametrize(
    ("between", "refused"),
    [
        ("committed", ()),
        ("set", ("nothing", "committed", "set")),
        ("set and committed", ("nothing", "committed", "set")),
        ("removed", ("committed", "set")),
        ("removed and set", ("nothing", "committed", "set")),
        ("removed and committed", ("set",)),
        ("set to the same", ()),
        ("restored", ()),
    ],
)
def test_only_offsets_that_were_seen_are_replaced_by_those_that_a_client_sets(
    before: str, between: str, refused: tuple[str, ...]
) -> None:
    """The command may come long after it was given up."""
    state, times = GroupsState(), count(7)
    steps: dict[str, Callable[[], object]] = {
        "committed": lambda: state.apply(commit_command(5, "g", "a", 0, timestamp_ms=9)),
        "set": lambda: state.apply(set_seen((6, state.set_ms("g", b"a", 0)), at=next(times))),
        "removed": lambda: state.apply(expire(99, "g")),
        "set to the same": lambda: state.apply(set_seen((2, state.set_ms("g", b"a", 0)), at=next(times))),
        "nothing": lambda: None,
        "restored": lambda: state.restore(list(state.snapshot())),
    }
    steps[before]()
    seen = state.set_ms("g", b"a", 0)
    for step in between.split(" and "):
        steps[step]()
    state.apply(commit_command(1, "g", "a", 1))
    stored = state.committed("g", b"a")
    result = state.apply(set_seen((2, seen), (3, 0)))
    if before in refused:
        assert isinstance(result, OffsetsSet)
        assert state.committed("g", b"a") == stored
    else:
        assert result is None
        assert state.committed("g", b"a") == {0: OffsetCommit(2), 1: OffsetCommit(3)}


def test_an_offset_is_never_set_twice_at_the_same_time() -> None:
    state = GroupsState()
    times = [-1]
    for at in (7, 7, 3, 9):
        assert state.apply(set_seen((at, times[-1]), at=at)) is None
        times.append(state.set_ms("g", b"a", 0))
    assert times == [-1, 7, 8, 9, 10]


def test_offsets_of_a_topic_do_not_apply_to_a_later_one_of_its_name() -> None:
    state = GroupsState()
    state.apply(commit_command(5, "g", "a", 0, topic_id=b"first"))
    assert state.committed("g", b"second") == {}
    state.apply(commit_command(1, "g", "a", 0, topic_id=b"second"))
    assert state.committed("g", b"first") == {0: OffsetCommit(5, "m5")}
    assert state.committed("g", b"second") == {0: OffsetCommit(1, "m1")}
    assert state.topic_ids() == {b"first", b"second"}


def test_deleted_topics_remove_their_offsets_and_groups_without_others() -> None:
    state = GroupsState()
    for group, topic in (("g", "a"), ("g", "b"), ("h", "a"), ("i", "c")):
        state.apply(commit_command(1, group, topic, 0, timestamp_ms=7))
    state.apply(forget(b"a", b"x"))
    assert (state.committed("g", b"a"), state.committed("h", b"a")) == ({}, {})
    assert state.committed("g", b"b") == state.committed("i", b"c") == {0: OffsetCommit(1, "m1")}
    assert inactive(state, 8) == ["g", "i"]
    assert state.topic_ids() == {b"b", b"c"}


def test_the_memory_of_offsets_is_counted() -> None:
    state = GroupsState()
    state.apply(commit_command(1, "g", "a", 0))
    one = state.offset_bytes
    assert one == 256 + len("m1")
    state.apply(commit_command(100, "g", "a", 0))
    state.apply(commit_command(1, "g", "b", 0))
    state.apply(commit_command(1, "h", "b", 0, timestamp_ms=7))
    assert state.offset_bytes == 3 * one + len("00")
    again = GroupsCommand.FromString(commit_command(1, "g", "a", 0)).commit_offsets
    assert (state.growth(again), state.offset_bytes) == (-len("00"), 3 * one + len("00"))
    state.apply(forget(b"a"))
    [*state.sweep()]
    assert state.offset_bytes == 2 * one
    state.apply(expire(8, "h"))
    assert state.offset_bytes == one


@pytest.mark.parametrize(
    "metadata", ["m" * 4096, "\xe9" * 2048, "\u4e2d" + "m" * 4093, "\U0001f600" + "m" * 4092]
)
def test_metadata_takes_and_counts_its_bytes_whatever_its_characters_are(metadata: str) -> None:
    state, count = GroupsState(), 50
    offsets = [
        CommittedOffset(topic="t", topic_id=b"t", partition=number, offset=1, metadata=metadata)
        for number in range(count)
    ]
    commit = CommitOffsets(group="g", offsets=offsets)
    grown = state.growth(commit)
    state.apply(GroupsCommand(commit_offsets=commit).SerializeToString())
    records = [*state.snapshot()]
    del offsets, commit
    assert state.offset_bytes == grown == count * (256 + len(metadata.encode()))
    assert state.committed("g", b"t")[count - 1] == OffsetCommit(1, metadata)
    tracemalloc.start()
    try:
        restored = GroupsState()
        restored.restore(records)
        assert tracemalloc.get_traced_memory()[0] < 1.1 * restored.offset_bytes
    finally:
        tracemalloc.stop()
    assert restored.offset_bytes == grown
    assert [*restored.snapshot()] == records


def test_a_group_was_last_active_at_its_newest_commit_or_touch() -> None:
    state = GroupsState()
    state.apply(commit_command(1, "g", "a", 0, timestamp_ms=100))
    state.apply(commit_command(2, "g", "a", 1, timestamp_ms=50))  # a clock that was set back
    assert (inactive(state, 100), inactive(state, 101)) == ([], ["g"])
    state.apply(touch(150, "g", "unknown"))
    state.apply(touch(120, "g"))
    assert (inactive(state, 150), inactive(state, 151)) == ([], ["g"])
    assert state.committed("g", b"a") == {0: OffsetCommit(1, "m1"), 1: OffsetCommit(2, "m2")}


def test_a_group_expires_unless_it_was_active_meanwhile() -> None:
    state = GroupsState()
    for group, at in (("old", 10), ("new", 20)):
        state.apply(commit_command(1, group, "a", 0, timestamp_ms=at))
    state.apply(expire(20, "old", "new", "unknown"))
    assert (state.committed("old", b"a"), state.committed("new", b"a")) == ({}, {0: OffsetCommit(1, "m1")})
    state.apply(expire(21, "old"))
    assert inactive(state, 99) == ["new"]


def test_a_checkpoint_stores_the_last_activity_of_groups() -> None:
    state = GroupsState()
    state.apply(commit_command(1, "g", "a", 0, timestamp_ms=10))
    state.apply(touch(30, "g"))
    restored = GroupsState()
    restored.restore(state.snapshot())
    assert (inactive(restored, 30), inactive(restored, 31)) == ([], ["g"])


def test_a_snapshot_is_not_changed_by_a_later_expiry() -> None:
    state = GroupsState()
    for group in ("g", "h"):
        state.apply(commit_command(1, group, "a", 0, timestamp_ms=10))
        state.apply(commit_command(2, group, "b", 0, timestamp_ms=10))
    records = state.snapshot()
    state.apply(forget(b"a"))
    state.apply(expire(99, "h"))
    restored = GroupsState()
    restored.restore(records)
    assert restored.topic_ids() == {b"a", b"b"}
    assert inactive(restored, 99) == ["g", "h"]


GROUPS = [f"g{number}" for number in range(1000)]


def test_topics_are_forgotten_at_once_and_their_offsets_removed_in_steps() -> None:
    state = GroupsState()
    for group in GROUPS:
        for topic in "ab" if group in GROUPS[:300] else "a":
            state.apply(commit_command(1, group, topic, 0))
    assert state.apply(forget(b"a")) == Forgotten(state)
    assert state.topic_ids() == {b"b"}
    assert all(state.committed(group, b"a") == {} for group in GROUPS)
    left = [len(state._groups)]
    for _ in state.sweep():
        left.append(len(state._groups))
    assert max(before - after for before, after in pairwise(left)) <= 200
    assert len(left) >= 5
    assert sorted(groups(state)) == sorted(GROUPS[:300])
    assert list(state.sweep()) == []


@pytest.mark.slow
@pytest.mark.parametrize(("offsets", "groups_per_step"), [(1, 200), (100, 10), (600, 2), (3000, 1)])
def test_a_step_of_the_sweep_looks_at_a_bounded_number_of_offsets(offsets: int, groups_per_step: int) -> None:
    state = GroupsState()
    for group in GROUPS[:300] if offsets == 1 else GROUPS[:12]:
        many = [
            CommittedOffset(topic="a", topic_id=b"a", partition=number, offset=1) for number in range(offsets)
        ]
        command = CommitOffsets(group=group, offsets=many)
        state.apply(GroupsCommand(commit_offsets=command).SerializeToString())
    assert state.offset_bytes > 0
    state.apply(forget(b"a"))
    left = [len(state._groups)]
    for _ in state.sweep():
        left.append(len(state._groups))
    assert max(before - after for before, after in pairwise(left)) <= groups_per_step
    assert (groups(state), state.offset_bytes) == ([], 0)


def state_generation(state: GroupsState, group: str) -> int:
    return state.membership(group).generation


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.sampled_from("cftesJTL"), st.sampled_from("gh"), st.sampled_from("ab")), max_size=25
    )
)
def test_the_time_of_sweeping_forgotten_topics_changes_nothing(steps: list[tuple[str, str, str]]) -> None:
    swept, lazy = GroupsState(), GroupsState()
    for at, (what, group, topic) in enumerate(steps):
        command = {
            "c": commit_command(at, group, topic, 0, at),
            "f": forget(topic.encode()),
            "t": touch(at, group),
            "e": expire(at - 1, group),
            "s": touch(0),
            "J": join(MemberId(at % 2 + 1, 1, 1), topic, group=group, timestamp_ms=at),
            "T": target(
                state_generation(swept, group), MemberId(at % 2 + 1, 1, 1), group=group, topic=topic.encode()
            ),
            "L": leave(MemberId(at % 2 + 1, 1, 1), group),
        }[what]
        for state in (swept, lazy):
            state.apply(command)
        for _ in swept.sweep():
            pass
        if what == "s":
            next(lazy.sweep(), None)
        restored = GroupsState()
        restored.restore(lazy.snapshot())
        for state in (restored, lazy):
            assert sorted(state.snapshot()) == sorted(swept.snapshot())
            assert state.topic_ids() == swept.topic_ids()
            for each in "gh":
                assert [state.committed(each, of) for of in (b"a", b"b")] == [
                    swept.committed(each, of) for of in (b"a", b"b")
                ]
        assert inactive(restored, at) == inactive(swept, at)


# --- members --------------------------------------------------------------------------------------

ONE, TWO, OTHER = MemberId(1, 5, 1), MemberId(2, 3, 1), MemberId(1, 5, 2)


def join(member_id: MemberId, *topics: str, group: str = "g", timestamp_ms: int = 0) -> bytes:
    message = member_message(member_id, GroupMember(f"client-{member_id.number}", topics or ("a",)))
    command = JoinGroup(group=group, member=message, timestamp_ms=timestamp_ms)
    return GroupsCommand(join_group=command).SerializeToString()


def leave(member_id: MemberId, group: str = "g") -> bytes:
    command = LeaveGroup(group=group, member=pb.MemberId(**member_id._asdict()))
    return GroupsCommand(leave_group=command).SerializeToString()


def expel(process: Process, *groups: str, term: int = 0, newest: int = 0) -> bytes:
    command = ExpelProcess(**process._asdict(), groups=groups or ("g",), term=term, newest_member=newest)
    return GroupsCommand(expel_process=command).SerializeToString()


def target(generation: int, *owners: MemberId | None, group: str = "g", topic: bytes = b"a") -> bytes:
    message = target_message(group, generation, {topic: owners})
    return GroupsCommand(set_targets=SetTargets(targets=[message])).SerializeToString()


def release(member_id: MemberId, *partitions: int, group: str = "g", topic: bytes = b"a") -> bytes:
    command = ReleasePartitions(
        group=group,
        member=pb.MemberId(**member_id._asdict()),
        topics=[pb.TopicPartitions(topic_id=topic, partitions=partitions)],
    )
    return GroupsCommand(release_partitions=command).SerializeToString()


def fenced(
    offset: int,
    member_id: MemberId,
    epoch: int,
    partition: int = 0,
    others: Sequence[tuple[int, int]] = (),
) -> bytes:
    """A commit of a member, of further partitions too if these are given with their epochs."""
    offsets = [
        CommittedOffset(
            topic="a", topic_id=b"a", partition=number, offset=offset, member=member_id.number, epoch=based_on
        )
        for number, based_on in ((partition, epoch), *others)
    ]
    command = CommitOffsets(
        group="g", offsets=offsets, node_id=member_id.node_id, incarnation=member_id.incarnation
    )
    return GroupsCommand(commit_offsets=command).SerializeToString()


def set_offset(offset: int, partition: int = 0, group: str = "g", topic: str = "a") -> bytes:
    offsets = [CommittedOffset(topic=topic, topic_id=topic.encode(), partition=partition, offset=offset)]
    command = CommitOffsets(group=group, offsets=offsets, set=True)
    return GroupsCommand(commit_offsets=command).SerializeToString()


def shared() -> GroupsState:
    """Two members with a partition each, under epoch 1."""
    state = GroupsState()
    state.apply(join(ONE))
    state.apply(join(TWO))
    assert state.apply(target(2, ONE, TWO)) == GroupsChanged(["g"])
    return state


def committed(state: GroupsState) -> dict[int, int]:
    return {partition: commit.offset for partition, commit in state.committed("g", b"a").items()}


def test_a_member_that_joins_makes_a_generation_and_one_that_joins_again_does_not() -> None:
    state = GroupsState()
    assert state.apply(join(ONE, "b", "a")) == GroupsChanged(["g"])
    state.apply(join(ONE, "a", "b", "a"))
    membership = state.membership("g")
    assert (membership.generation, membership.settled) == (1, False)
    assert membership.members == {ONE: GroupMember("client-1", ("a", "b"))}
    state.apply(join(ONE, "b"))
    assert state.membership("g").generation == 2
    assert (list(state.subscribers("a")), list(state.subscribers("b"))) == ([], ["g"])
    assert (state.has_members("g"), state.has_members("h")) == (True, False)


def test_a_target_of_another_generation_or_with_a_stranger_is_refused() -> None:
    state = shared()
    before = state.membership("g")
    for late in (target(2, TWO, ONE), target(4, TWO, ONE), target(3, OTHER, ONE), target(3, ONE, group="h")):
        assert state.apply(late) == GroupsChanged([])
        assert state.membership("g") is before
    assert state.apply(target(3, TWO, ONE)) == GroupsChanged(["g"])


def test_partitions_move_when_their_owner_gives_them_up() -> None:
    state = shared()
    state.apply(target(3, TWO, TWO))
    assert state.membership("g").topics[b"a"].owners == (ONE, TWO)
    state.apply(release(TWO, 0, 1))
    assert state.membership("g").topics[b"a"].owners == (ONE, TWO)
    state.apply(release(ONE, 0, 1, 7))
    assert state.membership("g").topics[b"a"].owners == (TWO, TWO)


@pytest.mark.parametrize("goes", [leave(ONE), expel(ONE.process)])
def test_the_partitions_of_a_member_that_goes_are_free_at_once(goes: bytes) -> None:
    state = shared()
    assert state.apply(goes) == GroupsChanged(["g"])
    membership = state.membership("g")
    assert (membership.generation, membership.settled) == (4, False)
    assert (membership.topics[b"a"].owners, list(membership.members)) == ((None, TWO), [TWO])


def test_all_members_of_a_process_are_expelled_and_no_others() -> None:
    state = GroupsState()
    for group in "gh":
        for member_id in (ONE, TWO, OTHER, MemberId(1, 6, 1)):
            state.apply(join(member_id, group=group))
    assert set(state.processes()) == {(1, 5), (1, 6), (2, 3)}
    assert list(state.groups_of(Process(1, 5))) == ["g", "h"]
    state.apply(expel(Process(1, 5), "g", "x"))
    assert list(state.membership("g").members) == [TWO, MemberId(1, 6, 1)]
    assert list(state.groups_of(Process(1, 5))) == ["h"]


def test_only_the_members_that_a_process_has_given_up_are_expelled() -> None:
    state = GroupsState()
    old, new = MemberId(1, 5, 3), MemberId(1, 5, 4)
    state.apply(join(old))
    state.apply(join(new))
    state.apply(expel(old.process, newest=3))
    assert list(state.membership("g").members) == [new]
    state.apply(expel(old.process, newest=4))
    assert not state.membership("g").members


def test_an_expulsion_of_an_earlier_term_is_refused() -> None:
    state = shared()
    before = state.membership("g")
    refused = state.apply(expel(ONE.process, term=7), term=8)
    assert isinstance(refused, FailedPrecondition)
    assert state.membership("g") is before
    assert state.apply(expel(ONE.process, term=8), term=8) == GroupsChanged(["g"])


def test_a_group_is_there_while_it_has_members_or_offsets() -> None:
    state = GroupsState()
    state.apply(join(ONE))
    assert groups(state) == ["g"]
    state.apply(leave(TWO))
    state.apply(leave(ONE, "h"))
    assert groups(state) == ["g"]
    state.apply(leave(ONE))
    assert (groups(state), list(state.processes()), list(state.subscribers("a"))) == ([], [], [])
    state.apply(join(ONE))
    state.apply(set_offset(3))
    state.apply(leave(ONE))
    assert (groups(state), committed(state)) == (["g"], {0: 3})
    assert state.membership("g") is NO_MEMBERS


# --- fences ---------------------------------------------------------------------------------------


def test_a_commit_of_the_owner_under_its_epoch_is_taken() -> None:
    state = shared()
    assert state.apply(fenced(10, ONE, 1)) is None
    assert state.apply(fenced(20, TWO, 1, 1)) is None
    assert committed(state) == {0: 10, 1: 20}


@pytest.mark.parametrize(
    ("commit", "error", "reason"),
    [
        (fenced(11, TWO, 1), OwnedElsewhere, "offset of g in a/0: the partition is owned by node 1"),
        (fenced(11, OTHER, 1), OwnedElsewhere, "offset of g in a/0: the partition is owned by node 1"),
        (fenced(11, ONE._replace(incarnation=4), 1), OwnedElsewhere, "owned by node 1"),
        (
            fenced(11, ONE, 1, 2),
            OwnedElsewhere,
            "offset of g in a/2: the partition is not owned by this member",
        ),
        (fenced(11, ONE, 0), OffsetsSet, "offset of g in a/0 was set meanwhile"),
        (fenced(11, ONE, 2), OffsetsSet, "offset of g in a/0 was set meanwhile"),
        (fenced(11, ONE, 1, 0, [(1, 1)]), OwnedElsewhere, "a/1: the partition is owned by node 2"),
        (commit_command(11, "g", "a", 0), OwnedElsewhere, "g has members: only they commit its offsets"),
    ],
)
def test_any_other_commit_is_refused_as_a_whole(commit: bytes, error: type[PixyError], reason: str) -> None:
    state = shared()
    state.apply(fenced(10, ONE, 1))
    refusal = state.apply(commit)
    assert type(refusal) is error
    assert reason in str(refusal)
    assert committed(state) == {0: 10}


def test_a_commit_from_before_a_move_is_refused_even_if_the_partition_comes_back() -> None:
    state = shared()
    state.apply(fenced(10, ONE, 1))
    state.apply(target(3, TWO, TWO))
    state.apply(release(ONE, 0))
    epoch = state.membership("g").topics[b"a"].epochs[0]
    assert state.apply(fenced(20, TWO, epoch)) is None
    state.apply(leave(TWO))
    state.apply(target(6, ONE, ONE))
    assert state.membership("g").topics[b"a"].owners == (ONE, ONE)
    assert isinstance(state.apply(fenced(11, ONE, 1)), OffsetsSet)
    assert committed(state) == {0: 20}


def test_offsets_that_are_set_are_taken_from_anybody_and_void_commits_based_on_earlier_ones() -> None:
    state = shared()
    state.apply(fenced(10, ONE, 1))
    assert state.apply(set_offset(3)) == GroupsChanged(["g"], 2)
    assert committed(state) == {0: 3}
    assert state.membership("g").generation == 3
    assert isinstance(state.apply(fenced(11, ONE, 1)), OffsetsSet)
    assert state.apply(fenced(20, TWO, 1, 1)) is None
    assert state.apply(fenced(4, ONE, 2)) is None
    assert committed(state) == {0: 4, 1: 20}


def test_offsets_are_set_and_committed_in_a_group_without_members() -> None:
    state = GroupsState()
    assert state.apply(set_offset(3)) is None
    assert state.apply(commit_command(2, "g", "a", 1)) is None
    assert committed(state) == {0: 3, 1: 2}
    assert isinstance(state.apply(fenced(9, ONE, 0)), OwnedElsewhere)


# --- checkpoints and topics -----------------------------------------------------------------------


def test_members_survive_a_checkpoint_and_the_loss_of_their_topics() -> None:
    state = shared()
    state.apply(join(OTHER, "a", "b"))
    state.apply(fenced(7, ONE, 1))
    state.apply(forget(b"a"))
    restored = GroupsState()
    restored.restore(state.snapshot())
    deque(state.sweep(), maxlen=0)
    for each in (state, restored):
        membership = each.membership("g")
        assert (list(membership.members), membership.topics) == ([ONE, TWO, OTHER], {})
        assert (committed(each), groups(each), each.topic_ids()) == ({}, ["g"], set())
        assert isinstance(each.apply(fenced(8, ONE, 1)), OwnedElsewhere)


def test_a_target_behind_the_deletion_of_its_topic_is_found_again() -> None:
    state = GroupsState()
    state.apply(join(ONE))
    state.apply(forget(b"a"))
    state.apply(target(1, ONE))
    assert state.topic_ids() == {b"a"}
    state.apply(forget(b"a"))
    deque(state.sweep(), maxlen=0)
    assert state.membership("g").topics == {}


def test_a_group_with_members_does_not_expire() -> None:
    state = GroupsState()
    state.apply(join(ONE, timestamp_ms=10))
    state.apply(set_offset(3))
    assert (inactive(state, 10), inactive(state, 11)) == ([], ["g"])
    state.apply(expire(99, "g"))
    assert committed(state) == {0: 3}
    state.apply(leave(ONE))
    state.apply(expire(10, "g"))
    assert committed(state) == {0: 3}
    state.apply(expire(11, "g"))
    assert (groups(state), committed(state), state.topic_ids()) == ([], {}, set())


MEMBERS = st.builds(MemberId, st.integers(1, 3), st.integers(1, 2), st.integers(1, 2))
COMMANDS = st.one_of(
    st.builds(join, MEMBERS, st.sampled_from("ab")),
    st.builds(leave, MEMBERS),
    st.builds(lambda member_id: expel(member_id.process), MEMBERS),
    st.builds(target, st.integers(0, 12), MEMBERS, st.none() | MEMBERS, topic=st.sampled_from([b"a", b"b"])),
    st.builds(release, MEMBERS, st.integers(0, 2)),
    st.builds(fenced, st.integers(0, 9), MEMBERS, st.integers(0, 12), st.integers(0, 2)),
    st.builds(set_offset, st.integers(0, 9), st.integers(0, 2)),
    st.builds(forget, st.sampled_from([b"a", b"b"])),
)


@pytest.mark.slow
@given(st.lists(COMMANDS, max_size=30))
def test_one_owner_commits_and_every_replica_has_the_same_state(commands: list[bytes]) -> None:
    state = GroupsState()
    for payload in commands:
        before, offsets = state.membership("g"), state.committed("g", b"a")
        other = GroupsState()
        other.restore(state.snapshot())
        results = [each.apply(payload) for each in (state, other)]
        assert type(results[0]) is type(results[1])
        assert sorted(other.snapshot()) == sorted(state.snapshot())
        assert sorted(state.processes()) == sorted(other.processes())
        assert [list(state.subscribers(each)) for each in "ab"] == [
            list(other.subscribers(each)) for each in "ab"
        ]
        state.membership("g").check_invariants()
        command = GroupsCommand.FromString(payload)
        if command.HasField("commit_offsets") and not command.commit_offsets.set:
            (offset,) = command.commit_offsets.offsets
            member = MemberId(
                command.commit_offsets.node_id, command.commit_offsets.incarnation, offset.member
            )
            owned = before.topics.get(b"a")
            is_owner = (
                owned is not None
                and offset.partition < len(owned.owners)
                and (
                    (owned.owners[offset.partition], owned.epochs[offset.partition]) == (member, offset.epoch)
                )
            )
            assert (results[0] is None) == is_owner
        if isinstance(results[0], PixyError):
            assert (state.membership("g"), state.committed("g", b"a")) == (before, offsets)
