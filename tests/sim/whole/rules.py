"""Rules of whole nodes, each with a way to disable it: the simulation must detect a violation then,
or it is blind.
"""

from dataclasses import replace
from unittest.mock import patch

from pixy.backend.embedded.group_membership import GroupMembership
from pixy.backend.embedded.local_partitions import LocalPartitions
from pixy.backend.protocol import Lease
from pixy.cluster import Node
from pixy.cluster.consumer_groups.group_coordinator import GroupCoordinator
from pixy.cluster.node_commands import NodeCommands
from pixy.cluster.peering import bootstrap_decision
from pixy.cluster.peering.cluster_nodes import ClusterNodes
from pixy.cluster.peering.failover import Failover
from pixy.cluster.peering.propose_answers import ProposeAnswers
from pixy.cluster.publications.replicated_staging import ReplicatedStaging
from pixy.cluster.replicas.node_time import NodeTime
from pixy.cluster.state import groups
from pixy.cluster.state.nodes import NodeTable
from pixy.consume.acks.waiting_acks import WaitingAcks
from pixy.consume.group.group import ConsumerGroup
from pixy.consume.group.subscription import Subscription
from pixy.consume.lending.lender import Lender
from pixy.multiraft.group_clock import GroupClock
from pixy.multiraft.group_rest import GroupRest
from pixy.multiraft.resting_groups import RestingGroups
from pixy.peers import handshake_checks
from pixy.peers.link import PeerLink
from pixy.raft import node, reads
from pixy.storage import CheckpointStore
from tests.sim.kit import broken as at_rest
from tests.sim.kit.rules import Rule
from tests.sim.whole import broken
from tests.sim.whole.faults import FaultKind
from tests.sim.whole.focuses import (
    BUSY,
    CONSUMERS,
    CUTS,
    DELETERS,
    FEW,
    LAST_ACKERS,
    MAKERS,
    PASSERS_BY,
    PRODUCERS,
    READERS,
    SLOW,
    THREE,
    aimed,
)
from tests.sim.whole.move_rules import MOVE_RULES
from tests.sim.whole.network import Weather
from tests.sim.whole.producer_rules import PRODUCER_RULES
from tests.sim.whole.swarm import Focus, Formation, Swarm, Writing, quiet

_WRONG_CLOCKS = aimed(
    FaultKind.CLOCK,
    FaultKind.DRIFT,
    FaultKind.CRASH,
    habits=PRODUCERS | {"kinds": {"append": 20, "commit": 10, "committed_offsets": 10, "create": 5}},
    days_off=2,  # The founder has no other time at first, and for an hour nothing expires by a later one.
    retention_check_s=0.2,
)
_JUMPED_CLOCKS = aimed(
    FaultKind.JUMP,
    FaultKind.JOIN,
    FaultKind.LOST_DISK,
    habits=PRODUCERS | {"kinds": {"append": 20, "commit": 10, "committed_offsets": 10, "create": 5}},
    retention_check_s=0.2,
)


def _at_rest(*kinds: FaultKind) -> Focus:
    """Partitions rest while faults happen."""
    focus = aimed(*kinds, habits=PRODUCERS | {"stable_topics": ("a", "b")}, faults_count=4)
    return lambda swarm: quiet(focus(swarm))


RULES: dict[str, Rule[Swarm]] = {
    "a read is confirmed by a quorum": Rule(
        [patch.object(reads, "_serve", broken.serve_unconfirmed)],
        aimed(*CUTS, habits=READERS, weather=SLOW),
        seed=3,
    ),
    "a node of another cluster is refused": Rule(
        [
            patch.object(handshake_checks, "_clusters", broken.takes_any_cluster),
            patch.object(ClusterNodes, "recognize", broken.knows_any_secret),
            patch.object(ClusterNodes, "admit", broken.admits_any_start),
        ],
        aimed(FaultKind.CRASH, forms=replace(THREE, anew=True)),
        seed=2,
    ),
    "an id of a node is used once": Rule(
        [patch.object(NodeTable, "register", broken.same_id_again)], aimed(FaultKind.CRASH)
    ),
    "a cluster is made once": Rule(
        [patch.object(bootstrap_decision, "decide", broken.found_without_answers)],
        aimed(FaultKind.SLOW_DISK, forms=replace(THREE, late_s=0.05), faults_from_s=0.0, duration_s=3.0),
    ),
    "a queue is bounded": Rule(
        [patch.object(PeerLink, "_has_room", lambda *_: True)],
        aimed(
            FaultKind.PAUSE,
            FaultKind.LAGGARD,
            FaultKind.BURST,
            journal={"max_unapplied_bytes": 1 << 20},
            queue_bytes=100_000,
            habits=BUSY | {"sizes": (6000,)},
        ),
        seed=2,
    ),
    "a snapshot is durable before it is acknowledged": Rule(
        [patch.object(CheckpointStore, "adopt", broken.adopt_without_sync)],
        aimed(FaultKind.LAGGARD, FaultKind.CRASH_ALL, journal={"retain_bytes": 0, "file_bytes": 3000}),
        seed=9,
    ),
    "a leader that has lost its term answers no batch": Rule(
        [patch.object(ProposeAnswers, "_propose", broken.answer_of_a_lost_term)],
        aimed(FaultKind.ISOLATE_LEADER, forms=Formation(4, 0.1, 1, False), habits=BUSY),
        seed=6,
    ),
    "a follower does not know where the end is": Rule(
        [patch.object(LocalPartitions, "_confirm", broken.not_confirmed)],
        aimed(*CUTS, habits=READERS, weather=SLOW),
        seed=2,
    ),
    "a topic is unknown only if the leader says so": Rule(
        [patch.object(Node, "confirm_metadata", broken.not_confirmed)],
        aimed(*CUTS, habits=MAKERS, weather=SLOW),
    ),
    "a deletion is answered when no replica acknowledges any more": Rule(
        [patch.object(NodeCommands, "_close_elsewhere", broken.not_closed)],
        aimed(FaultKind.ISOLATE_LEADER, habits=DELETERS, weather=SLOW),
        seed=7,
    ),
    "a node with a dead disk does not lead": Rule(
        [patch.object(GroupClock, "_disk_is_slow", lambda *_: False)], aimed(heals_all=False), seed=11
    ),
    "the owner of a partition answers its acks": Rule(
        [patch.object(WaitingAcks, "_look_elsewhere", broken.answers_as_a_former_owner)],
        aimed(FaultKind.CRASH, FaultKind.STOP, consuming=CONSUMERS),
        seed=6,
    ),
    "nothing of a partition is with clients when it goes": Rule(
        [patch.object(ConsumerGroup, "_revoke", broken.gives_on_at_once)],
        aimed(FaultKind.STOP, consuming=PASSERS_BY),
        seed=38,
    ),
    "what was read of a partition goes with it": Rule(
        [patch.object(Subscription, "remove", broken.keeps_what_is_lost)],
        aimed(FaultKind.STOP, consuming=PASSERS_BY),
        seed=3,
    ),
    "an answered ack waits for no news of the delivery of its record": Rule(
        [patch.object(Lender, "keep_ack", lambda *_: None)],
        aimed(
            FaultKind.ONE_LINK,
            FaultKind.ONE_WAY,
            habits=PRODUCERS,
            consuming=CONSUMERS | {"clients": 12, "auto_acks": 0.0, "acks": 0.9, "moves": 0.0},
            weather=Weather((0.02, 0.1)),
            faults_from_s=3.0,
            faults_count=4,
            duration_s=14.0,
        ),
        seed=4,
    ),
    "a topic is given up when its last acks are committed": Rule(
        [patch.object(ConsumerGroup, "_committed_topics", broken.commits_once)],
        aimed(
            habits=PRODUCERS
            | {
                "kinds": {"append": 50, "create": 3, "alter": 1},
                "clients": 2,
                "stable_topics": ("a", "b"),
            },
            consuming=LAST_ACKERS,
            weather=SLOW,
            duration_s=12.0,
        ),
        seed=5,
    ),
    "who leads a state group is its coordinator": Rule(
        [patch.object(GroupCoordinator, "tick", broken.coordinates_everywhere)],
        aimed(FaultKind.ONE_LINK, habits=PRODUCERS, consuming=CONSUMERS),
        seed=69,
    ),
    "a publication is answered behind its commit point": Rule(
        [patch.object(ReplicatedStaging, "publish", broken.answers_before_the_commit_point)],
        aimed(FaultKind.CRASH, FaultKind.CRASH_ALL, FaultKind.ISOLATE_LEADER, writing=Writing(2, 0.03)),
        seed=14,
    ),
    "a commit is based on the present owner": Rule(
        [patch.object(groups, "_refusal", lambda *_: None)],
        aimed(
            FaultKind.SPLIT,
            FaultKind.ISOLATE_LEADER,
            consuming=CONSUMERS | {"auto_acks": 0.5},
            **FEW,
        ),
        seed=42,
    ),
    "records are handed out under a lease": Rule(
        [patch.object(GroupMembership, "lease", property(lambda _: Lease(), lambda *_: None), create=True)],
        aimed(
            FaultKind.SPLIT,
            FaultKind.PAUSE,
            habits=PRODUCERS,
            consuming=CONSUMERS | {"auto_acks": 0.0, "forgets": 0.4},
            **FEW,
        ),
        seed=3,
    ),
    "a node stamps by the time of a majority": Rule(
        [
            patch.object(NodeTime, "wall_ms", lambda self: self._clock.wall_ms()),
            patch.object(NodeTime, "wall_ns", lambda self: self._clock.wall_ns()),
        ],
        _WRONG_CLOCKS,
        seed=2,
    ),
    "a node lets expire by the time of a majority": Rule(
        [patch.object(NodeTime, "age_ms", lambda self: self._clock.wall_ms())], _WRONG_CLOCKS, seed=4
    ),
    "a node that joins goes by the time before a jump": Rule(
        [patch.object(ClusterNodes, "heard_steady_time", lambda *_: None)], _JUMPED_CLOCKS, seed=14
    ),
    "a partition rests only when all its replicas have everything": Rule(
        [patch.object(node, "all_agree", at_rest.one_agrees)],
        _at_rest(FaultKind.CRASH, FaultKind.PAUSE),
    ),
    "a partition at rest that has lost its leader elects another one": Rule(
        [
            patch.object(RestingGroups, "heard", at_rest.heard_of_anything),
            patch.object(RestingGroups, "tick", at_rest.tick_for_ever),
            patch.object(GroupRest, "node_changed", lambda *_: None),
            patch.object(Failover, "lost", lambda *_: None),
        ],
        _at_rest(FaultKind.PAUSE),
        seed=14,
    ),
    **MOVE_RULES,
    **PRODUCER_RULES,
}
