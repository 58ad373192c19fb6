"""A rule of a cluster, which a simulation can disable: it must detect a violation then, or it is
blind.
"""

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any, Generic, NamedTuple, TypeVar

from tests.sim.raft.rules import changed

_Swarm = TypeVar("_Swarm")


class Rule(NamedTuple, Generic[_Swarm]):
    """The way to disable a rule, and a run that reveals it.

    Attributes:
        changes: contexts in which the rule does not hold.
        focus: of the run.
        seed: reveals it; `--find RULE` of the simulation finds another one.
    """

    changes: Collection[Any]
    focus: Callable[[_Swarm], _Swarm]
    seed: int = 1


def switched_off(rule: Rule[Any]) -> AbstractContextManager[None]:
    """Context in which a rule is disabled."""
    return changed(rule.changes)
