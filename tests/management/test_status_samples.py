"""pixy/management/status_samples.py: what `pixy cluster status` says, as numbers."""

from pixy.cluster import ClusterStatus, MoveStatus, NodeStatus, RaftGroupStatus
from pixy.cluster.status.status import CopyStatus, DamagedReplica, DiskSpace, MemberState, MemberStatus
from pixy.management.status_samples import status_samples
from pixy.metrics import Sample
from pixy.records import TopicPartition

T0, T2, T3 = (TopicPartition("t", number) for number in (0, 2, 3))
STATUS = ClusterStatus(
    b"c",
    nodes=(
        NodeStatus(1, "a:1", rack="r1", version="0.2.0", incarnation=3, is_self=True, disk=DiskSpace(100, 7)),
        NodeStatus(
            2,
            "b:1",
            version="0.1.0",
            incarnation=9,
            heard_s=1.5,
            clock_offset_ms=-250,
            draining=True,
            replicas=5,
            kept=2,
        ),
        NodeStatus(
            3, "c:1", incarnation=1, up=False, heard_s=60.0, problem="refused", troubles=("full", "old")
        ),
        NodeStatus(4, "d:1", removed=True),
    ),
    groups=(
        RaftGroupStatus(0, "metadata", leader=1, term=7, voters=(1, 2, 3)),
        RaftGroupStatus(
            9,
            "t/0",
            leader=2,
            term=12,
            voters=(1, 2),
            learners=(3,),
            members=(
                MemberStatus(1, 5, 2000, MemberState.REPLICATING),
                MemberStatus(2, 5, 0, MemberState.LEADER),
                MemberStatus(3, 5, 0, MemberState.COPY),
            ),
            damaged=(DamagedReplica(3, "a bad checksum"),),
        ),
        RaftGroupStatus(10, "t/1", leader=0, term=2, voters=(1,), learners=(3,)),
    ),
    under_replicated=("t",),
    cut_links=((1, 2), (1, 3)),
    can_move=True,
    moves=(
        MoveStatus(9, T0, "replace", (1, 2, 3), (1, 2, 5), copies=(CopyStatus(3, 10, 100, 4),)),
        MoveStatus(
            11,
            T2,
            "replace",
            (1, 3),
            (1, 5),
            copies=(CopyStatus(3, 5, 7, 1), CopyStatus(2, waits="its disk is full")),
        ),
        MoveStatus(12, T3, "move", (1, 3), (1, 2), waits="node 2 cannot be reached"),
    ),
)


async def test_everything_that_is_a_number_in_a_status_is_a_sample() -> None:
    found: dict[str, list[Sample]] = {}
    await status_samples("c", STATUS, found)
    of_cluster = {
        name: samples[0].value
        for name, samples in found.items()
        if [each.labels for each in samples] == [("c",)]
    }
    assert of_cluster == {
        "kafka_brokers": 3,
        "pixy_raft_groups": 3,
        "pixy_raft_groups_without_leader": 1,
        "pixy_raft_term": 12,
        "pixy_under_replicated_topics": 1,
        "pixy_cut_links": 2,
        "pixy_waiting_moves": 2,
    }
    assert {each.labels: each.value for each in found.pop("pixy_moves")} == {
        ("c", "replace"): 2,
        ("c", "move"): 1,
    }
    of_nodes = {
        name: {each.labels[1]: each.value for each in samples}
        for name, samples in found.items()
        if name not in of_cluster and name != "pixy_node_info"
    }
    assert of_nodes == {
        "pixy_node_up": {"1": 1, "2": 1, "3": 0},
        "pixy_node_starts": {"1": 3, "2": 9, "3": 1},
        "pixy_node_silent_seconds": {"2": 1.5, "3": 60.0},
        "pixy_node_clock_offset_seconds": {"1": 0, "2": -0.25, "3": 0},
        "pixy_node_troubles": {"1": 0, "2": 0, "3": 3},
        "pixy_node_draining": {"1": 0, "2": 1, "3": 0},
        "pixy_node_replicas": {"1": 0, "2": 5, "3": 0},
        "pixy_node_kept_replicas": {"1": 0, "2": 2, "3": 0},
        "pixy_moves_copied_bytes": {"1": 0, "2": 0, "3": 15},
        "pixy_moves_size_bytes": {"1": 0, "2": 0, "3": 107},
        "pixy_moves_copied_bytes_per_second": {"1": 0, "2": 0, "3": 5},
        "pixy_raft_commit_lag": {"1": 2000, "2": 0, "3": 0},
        "pixy_raft_groups_led": {"1": 1, "2": 1, "3": 0},
        "pixy_raft_learners": {"1": 0, "2": 0, "3": 2},
        "pixy_replicas_behind": {"1": 1, "2": 0, "3": 1},
        "pixy_replicas_damaged": {"1": 0, "2": 0, "3": 1},
        "pixy_disk_bytes": {"1": 100},
        "pixy_disk_free_bytes": {"1": 7},
    }
    assert [each.labels for each in found["pixy_node_info"]] == [
        ("c", "1", "0.2.0", "r1"),
        ("c", "2", "0.1.0", ""),
        ("c", "3", "", ""),
    ]
