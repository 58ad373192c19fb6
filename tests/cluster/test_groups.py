"""The state machine of committed offsets: commits, checkpoints, the state group of a consumer
group.
"""

from collections import deque
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.cluster.groups import Claim, Forgotten, GroupsState, groups_index
from pixy.errors import DataDirectoryError, OwnedElsewhere, PixyError
from pixy.proto.state_pb2 import (
    ClaimGroup,
    CommitOffsets,
    CommittedOffset,
    ExpireGroups,
    ForgetTopics,
    GroupClaim,
    GroupsCommand,
    ReleaseGroup,
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


def test_an_unknown_command_is_that_of_a_newer_release() -> None:
    with pytest.raises(DataDirectoryError, match="a newer release wrote it"):
        GroupsState().apply(b"\xfa\x07\x01x")


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
    assert (restored._groups, restored._by_topic) == (state._groups, state._by_topic)
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


@given(
    st.lists(st.tuples(st.sampled_from("cftesCR"), st.sampled_from("gh"), st.sampled_from("ab")), max_size=25)
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
            "C": claim(group, at % 2 + 1, 1, timestamp_ms=at),
            "R": release(group, at % 2 + 1, 1),
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


# --- claims ---------------------------------------------------------------------------------------


def claim(
    group: str, node_id: int, incarnation: int, takes_from: Claim | None = None, timestamp_ms: int = 0
) -> bytes:
    command = ClaimGroup(
        group=group,
        node_id=node_id,
        incarnation=incarnation,
        takes_from=None if takes_from is None else GroupClaim(**takes_from._asdict()),
        timestamp_ms=timestamp_ms,
    )
    return GroupsCommand(claim_group=command).SerializeToString()


def release(group: str, node_id: int, incarnation: int) -> bytes:
    command = ReleaseGroup(group=group, node_id=node_id, incarnation=incarnation)
    return GroupsCommand(release_group=command).SerializeToString()


def fenced(offset: int, node_id: int, incarnation: int, group: str = "g") -> bytes:
    offsets = [CommittedOffset(topic="a", topic_id=b"a", offset=offset)]
    command = CommitOffsets(group=group, offsets=offsets, node_id=node_id, incarnation=incarnation)
    return GroupsCommand(commit_offsets=command).SerializeToString()


def claimed(node_id: int, incarnation: int) -> GroupsState:
    state = GroupsState()
    assert state.apply(claim("g", node_id, incarnation)) is None
    return state


@pytest.mark.parametrize(
    ("command", "owner"),
    [
        (claim("g", 2, 5), Claim(2, 5)),  # again
        (claim("g", 2, 6), Claim(2, 6)),  # a later process of the node
        (claim("g", 3, 1, Claim(2, 5)), Claim(3, 1)),  # takes over
    ],
)
def test_a_claim_is_granted(command: bytes, owner: Claim) -> None:
    state = claimed(2, 5)
    assert state.apply(command) is None
    assert (state.claimed_by("g"), state.claimed_by("h")) == (owner, None)


@pytest.mark.parametrize(
    "command",
    [
        claim("g", 3, 9),
        claim("g", 2, 4),
        claim("g", 2, 4, Claim(2, 5)),
        claim("g", 3, 1, Claim(2, 4)),
        claim("g", 3, 1, Claim(4, 1)),
    ],
)
def test_a_claim_is_refused_with_the_owner(command: bytes) -> None:
    state = claimed(2, 5)
    refusal = state.apply(command)
    assert isinstance(refusal, OwnedElsewhere)
    assert str(refusal) == "consumer group g is consumed in on node 2"
    assert state.claimed_by("g") == Claim(2, 5)


def test_of_two_nodes_that_give_up_an_owner_one_succeeds_it() -> None:
    state = claimed(2, 5)
    assert state.apply(claim("g", 1, 1, Claim(2, 5))) is None
    assert isinstance(state.apply(claim("g", 3, 1, Claim(2, 5))), OwnedElsewhere)
    assert state.claimed_by("g") == Claim(1, 1)


def test_a_claim_ends_when_its_owner_releases_it() -> None:
    state = claimed(2, 5)
    for stale in (release("g", 2, 4), release("g", 3, 5), release("h", 2, 5)):
        assert state.apply(stale) is None
        assert state.claimed_by("g") == Claim(2, 5)
    state.apply(release("g", 2, 5))
    assert (state.claimed_by("g"), groups(state)) == (None, [])
    assert state.apply(claim("g", 3, 1)) is None


def test_commits_of_a_former_owner_are_refused() -> None:
    state = claimed(2, 5)
    assert state.apply(fenced(10, 2, 5)) is None
    state.apply(claim("g", 3, 1, Claim(2, 5)))
    assert state.apply(fenced(20, 3, 1)) is None
    for late in (fenced(11, 2, 5), fenced(11, 3, 2), fenced(11, 1, 1)):
        assert isinstance(state.apply(late), OwnedElsewhere)
    assert state.committed("g", b"a") == {0: OffsetCommit(20)}
    state.apply(release("g", 3, 1))
    assert state.apply(fenced(30, 1, 1)) is None


def test_a_commit_without_a_fence_is_accepted_and_keeps_the_claim() -> None:
    state = claimed(2, 5)
    assert state.apply(commit_command(7, "g", "a", 0)) is None
    assert (state.claimed_by("g"), state.committed("g", b"a")[0].offset) == (Claim(2, 5), 7)


def test_a_claim_survives_a_checkpoint_and_the_loss_of_its_topics() -> None:
    state = claimed(2, 5)
    state.apply(commit_command(7, "g", "a", 0))
    state.apply(forget(b"a"))
    restored = GroupsState()
    restored.restore(state.snapshot())
    deque(state.sweep(), maxlen=0)
    for each in (state, restored):
        assert each.claimed_by("g") == Claim(2, 5)
        assert (each.committed("g", b"a"), groups(each)) == ({}, ["g"])


def test_a_claim_expires_with_its_group() -> None:
    state = GroupsState()
    state.apply(claim("g", 2, 5, timestamp_ms=10))
    state.apply(commit_command(1, "g", "a", 0, timestamp_ms=5))
    assert (inactive(state, 10), inactive(state, 11)) == ([], ["g"])
    state.apply(touch(20, "g"))
    state.apply(expire(20, "g"))
    assert state.claimed_by("g") == Claim(2, 5)
    state.apply(expire(21, "g"))
    assert (state.claimed_by("g"), groups(state)) == (None, [])


@given(
    st.lists(
        st.one_of(
            st.builds(claim, st.just("g"), st.integers(1, 3), st.integers(1, 3)),
            st.builds(
                claim,
                st.just("g"),
                st.integers(1, 3),
                st.integers(1, 3),
                st.builds(Claim, st.integers(1, 3), st.integers(1, 3)),
            ),
            st.builds(release, st.just("g"), st.integers(1, 3), st.integers(1, 3)),
            st.builds(fenced, st.integers(0, 9), st.integers(1, 3), st.integers(1, 3)),
        ),
        max_size=30,
    )
)
def test_only_the_owner_of_a_claim_commits_while_it_lasts(commands: list[bytes]) -> None:
    state = GroupsState()
    for payload in commands:
        owner, before = state.claimed_by("g"), state.committed("g", b"a")
        other = GroupsState()
        other.restore(state.snapshot())
        results: list[PixyError | Forgotten | None] = [each.apply(payload) for each in (state, other)]
        assert type(results[0]) is type(results[1])
        assert list(other.snapshot()) == list(state.snapshot())
        command = GroupsCommand.FromString(payload)
        if command.HasField("commit_offsets") and owner is not None:
            by = Claim(command.commit_offsets.node_id, command.commit_offsets.incarnation)
            assert (results[0] is None) == (by == owner)
        if results[0] is not None:
            assert (state.claimed_by("g"), state.committed("g", b"a")) == (owner, before)
