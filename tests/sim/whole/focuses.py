"""Foci of runs: few kinds of faults, with the clients that they concern."""

from dataclasses import replace
from typing import Any

from pixy.config import ConsumerConfig, StorageConfig
from tests.sim.whole.faults import FaultKind
from tests.sim.whole.network import Weather
from tests.sim.whole.swarm import COMMIT_INTERVAL_S, Focus, Formation, Producing, Swarm, Writing

THREE = Formation(3, 0.1, 0, False)
SLOW = Weather((0.001, 0.05))
BUSY = {"clients": 5, "open_max": 4, "think_s": 0.03, "moves": 0.3, "patience_s": (1.0, 3.0)}
READERS = BUSY | {
    "kinds": {"append": 30, "commit": 15, "committed_offsets": 20, "ranges": 20, "fetch": 10, "create": 5},
}
MAKERS = BUSY | {
    "kinds": {"create": 15, "delete": 10, "describe": 30, "append": 20, "list": 3},
    "passing_topics": ("c", "d"),
}
DELETERS = BUSY | {
    "kinds": {"create": 10, "delete": 15, "append": 60},
    "stable_topics": ("a",),
    "passing_topics": ("c", "d"),
}
CONSUMERS: dict[str, Any] = {
    "clients": 4,
    "groups": ("x",),
    "topics": ("a",),
    "think_s": 0.03,
    "moves": 0.2,
    "auto_acks": 0.3,
    "forgets": 0.0,
    "sets": 0.0,
    "options": ConsumerConfig(
        ack_timeout=1.0,
        long_polling_timeout=0.5,
        offsets_commit_interval=COMMIT_INTERVAL_S,
        initial_offset="oldest",
    ),
}
PASSERS_BY = CONSUMERS | {
    "clients": 6,
    "moves": 0.3,
    "auto_acks": 0.0,
    "options": replace(
        CONSUMERS["options"], ack_timeout=3.0, long_polling_timeout=0.3, subscription_timeout=0.5
    ),
}
"""Nodes join and leave consumer groups all the time."""
LAST_ACKERS = PASSERS_BY | {"clients": 2, "topics": ("a", "b"), "moves": 0.0, "acks": 0.1, "rests": 0.7}
"""Subscriptions of several topics end with acks at the same time."""
PRODUCERS = BUSY | {"kinds": {"append": 50, "create": 5}, "stable_topics": ("a",), "passing_topics": ()}
FEW: dict[str, Any] = {"faults_count": 3, "duration_s": 12.0}
CUTS = (FaultKind.ISOLATE_LEADER, FaultKind.SPLIT, FaultKind.PAUSE, FaultKind.ONE_WAY)


def aimed(
    *kinds: FaultKind,
    forms: Formation = THREE,
    journal: dict[str, Any] | None = None,
    queue_bytes: int = 20_000,
    habits: dict[str, Any] | None = None,
    consuming: dict[str, Any] | None = None,
    **choices: Any,
) -> Focus:
    """A focus on some kinds of faults, equally often, with these choices."""

    def focus(swarm: Swarm) -> Swarm:
        changed = replace(swarm.sizes.journal, **(journal or {}))
        sizes = replace(swarm.sizes, journal=changed, queue_bytes=queue_bytes)
        return replace(
            swarm,
            formation=forms,
            sizes=sizes,
            own_sizes={},
            habits=replace(swarm.habits, **({"quiet_s": 0.0} | (habits or {}))),
            faults=dict.fromkeys(kinds, 1),
            consuming=replace(
                swarm.consuming, **({"clients": 0, "rests": 0.0, "shows_s": 0.0} | (consuming or {}))
            ),
            **(
                {
                    "faults_count": 9 if kinds else 0,
                    "faults_from_s": 1.0,
                    "duration_s": 7.0,
                    "writing": Writing(),
                    "producing": Producing(),
                    "days_off": 0,
                    "moving": False,
                    "retention_check_s": StorageConfig().retention_check,
                }
                | choices
            ),
        )

    return focus
