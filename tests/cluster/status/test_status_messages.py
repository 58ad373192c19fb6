import pytest

from pixy.cluster.status.status import (
    ClusterStatus,
    CopyStatus,
    DamagedReplica,
    DiskSpace,
    MemberState,
    MemberStatus,
    MoveStatus,
    NodeStatus,
    RaftGroupStatus,
)
from pixy.cluster.status.status_messages import decode_status, encode_status
from pixy.records import TopicPartition

STATUS = ClusterStatus(
    bytes(range(16)),
    (
        NodeStatus(1, "a:1", "a:2", "r1", "1.2", 7, is_self=True),
        NodeStatus(2, "b:1", "b:2", "r2", "1.3", 9, up=False, heard_s=1.5, clock_offset_ms=-250, problem="p"),
        NodeStatus(
            3,
            "c:1",
            "c:2",
            "r3",
            "1.3",
            1,
            up=True,
            heard_s=0.1,
            through=1,
            troubles=("t", "u"),
            disk=DiskSpace(9, 4),
            draining=True,
            replicas=7,
            kept=2,
        ),
    ),
    (
        RaftGroupStatus(1, "metadata", 2, 5, (1, 2), (3,), (2, 4)),
        RaftGroupStatus(
            1000,
            "t-0",
            1,
            6,
            (1, 2),
            members=(
                MemberStatus(1, 10, 0, MemberState.LEADER),
                MemberStatus(2, 8, 2, MemberState.COPY),
            ),
            damaged=(DamagedReplica(2, "file f at byte 3"),),
        ),
    ),
    ("t", "u"),
    "waits for node 2",
    can_move=True,
    moves=(
        MoveStatus(
            1000, TopicPartition("t", 0), "drain", (1, 2), (1, 3), "w", (CopyStatus(3, 1, 2, 3, "v"),)
        ),
        MoveStatus(1001, TopicPartition("t", 1), "move", (1,), (2,)),
    ),
)


@pytest.mark.parametrize("status", [STATUS, ClusterStatus(b"", (), ())])
def test_a_status_comes_back_as_it_was_sent(status: ClusterStatus) -> None:
    assert decode_status(encode_status(status)) == status


def test_partitions_are_marked() -> None:
    assert [group.is_partition for group in encode_status(STATUS).groups] == [False, True]


def test_a_state_of_a_newer_release_does_not_count_as_caught_up() -> None:
    message = encode_status(STATUS)
    message.groups[1].members[1].state = "teleporting"
    assert decode_status(message).groups[1].members[1].state is MemberState.PROBING


@pytest.mark.parametrize("silent_ms", [2**63 - 1, -(2**63)])
def test_a_silence_that_cannot_be_is_told_on(silent_ms: int) -> None:
    message = encode_status(STATUS)
    message.nodes[1].silent_ms = silent_ms
    assert encode_status(decode_status(message)).nodes[1].HasField("silent_ms")
