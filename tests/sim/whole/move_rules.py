"""Rules of moves of partitions, each with a way to disable it; see `rules`."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from pixy.cluster.peering.replica_departures import ReplicaDepartures
from pixy.cluster.peering.voter_changes import VoterChanges
from pixy.cluster.peering.voter_reconciler import VoterReconciler
from pixy.cluster.replicas import Partitions
from pixy.cluster.state import partition_moves
from pixy.cluster.state.topic import Topic
from pixy.multiraft import Driver, RaftGroup
from pixy.multiraft.departed_groups import DepartedGroups
from tests.sim.kit.rules import Rule
from tests.sim.whole import broken_moves as broken
from tests.sim.whole.faults import FaultKind
from tests.sim.whole.focuses import BUSY, MAKERS, PRODUCERS, SLOW, aimed
from tests.sim.whole.network import Weather
from tests.sim.whole.swarm import Focus, Formation, Swarm, Writing


def _moving(*kinds: FaultKind, **choices: Any) -> Focus:
    """Partitions move among four machines, three times as often as each other fault."""
    options: dict[str, Any] = {
        "habits": BUSY | {"moves": 0.0},
        "faults_count": 12,
        "journal": {"retain_bytes": 0, "file_bytes": 3000},
        "moving": True,
    }
    focus = aimed(
        *kinds,
        forms=Formation(3, 0.1, 1, False),
        **(options | choices),
    )

    def focused(swarm: Swarm) -> Swarm:
        swarm = focus(swarm)
        return replace(swarm, faults=swarm.faults | {FaultKind.MOVE: 3 * max(1, len(kinds))})

    return focused


def _late(kind: FaultKind) -> Focus:
    """Moves are heard of, or ended, seconds later."""
    return aimed(
        kind,
        forms=Formation(3, 0.1, 1, False),
        habits=PRODUCERS | {"clients": 2, "open_max": 1, "think_s": 0.05, "stable_topics": ("a", "b", "c")},
        faults_count=2,
        faults_from_s=1.0,
        duration_s=24.0,
        weather=Weather((0.0005, 0.01)),
        moving=True,
    )


_LONG = {"retain_bytes": 1 << 20, "file_bytes": 20_000}
_CUTS = (FaultKind.ISOLATE_LEADER, FaultKind.ONE_LINK, FaultKind.SPLIT, FaultKind.PAUSE)


MOVE_RULES: dict[str, Rule[Swarm]] = {
    "a node that has departed goes on with its sequences": Rule(
        [patch.object(Driver, "depart", broken.departs_for_good)], _moving(), seed=4
    ),
    "a newcomer waits to be told the members": Rule(
        [patch.object(Partitions, "_configuration", broken.founds_what_it_moves_to)],
        _moving(FaultKind.CRASH_LEADER, *_CUTS),
        seed=2,
    ),
    "a founder that opens late knows all founders": Rule(
        [patch.object(Topic, "without", broken.forgets_founders)],
        aimed(
            FaultKind.LOST_DISK,
            FaultKind.LAGGARD,
            forms=Formation(3, 0.1, 1, False),
            habits=MAKERS,
            weather=SLOW,
            duration_s=12.0,
        ),
        seed=19,
    ),
    "a newcomer takes no first entries": Rule(
        [
            patch.object(RaftGroup, "compact", broken.keeps_first_entries),
            patch.object(Driver, "_takes", broken.takes_first_entries),
        ],
        _moving(FaultKind.CRASH, journal=_LONG),
    ),
    "a newcomer becomes a voter when it has everything": Rule(
        [patch.object(VoterChanges, "_is_ready", lambda *_: True)], _moving()
    ),
    "a replica that is back does not vote before it knows the members": Rule(
        [patch.object(Driver, "_takes", broken.votes_without_members)],
        _moving(FaultKind.CRASH_LEADER, FaultKind.LAGGARD, *_CUTS),
        seed=4,
    ),
    "a replica that goes keeps its vote": Rule(
        [patch.object(DepartedGroups, "add", broken.forgets_its_vote)], _moving()
    ),
    "a snapshot has the pieces of stages": Rule(
        [patch.object(Partitions, "_staged_pieces", lambda *_: ())],
        _moving(FaultKind.LAGGARD, writing=Writing(2, 0.03)),
    ),
    "a new leader changes members by what metadata says in its term": Rule(
        [patch.object(VoterReconciler, "_wanted_of_partition", broken.by_old_metadata)],
        _late(FaultKind.LATE_METADATA),
        seed=2,
    ),
    "a move ends when its nodes are the voters": Rule(
        [patch.object(VoterReconciler, "_look_at", broken.ends_before_the_swap)], _moving(), seed=2
    ),
    "a checkpoint of metadata has the moves": Rule(
        [patch.object(Topic, "record", broken.record_without_moves)],
        _moving(FaultKind.CRASH_ALL, FaultKind.LAGGARD),
        seed=2,
    ),
    "an end counts for its own plan": Rule(
        [patch.object(partition_moves, "_why_other", broken.whatever_the_plan)],
        _late(FaultKind.LATE_ENDS),
        seed=2,
    ),
    "a replica goes when its move has ended": Rule(
        [patch.object(Partitions, "is_unplaced", broken.goes_when_a_move_begins)], _moving()
    ),
    "a replica goes when metadata says so at that time": Rule(
        [patch.object(ReplicaDepartures, "_is_sure", broken.sure_at_once)], _late(FaultKind.LATE_METADATA)
    ),
}
