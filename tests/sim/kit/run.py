"""The frame of a run: its seed, its schedule of faults, and the record of what happened."""

from collections.abc import Callable, Collection
from typing import Any, Generic, Protocol, TypeVar

from tests.sim.kit.faults import Fault
from tests.sim.kit.scene import Scene
from tests.sim.outcome import Outcome

_Swarm = TypeVar("_Swarm")


class _Cluster(Protocol):
    """A simulated cluster."""

    @property
    def scene(self) -> Scene: ...


class Run(Generic[_Swarm]):
    """One run.

    Args:
        seed: determines everything.
        skipped: numbers of faults to leave out.
        focus: changes what the seed chooses.
        prints: print every event.

    Attributes:
        faults: those of the run, once it has begun.
    """

    _cluster: _Cluster

    def __init__(
        self,
        seed: int,
        skipped: Collection[int] = (),
        *,
        focus: Callable[[_Swarm], _Swarm] | None = None,
        prints: bool = False,
    ) -> None:
        self.seed = seed
        self._skipped = skipped
        self._focus = focus
        self._prints = prints
        self.faults: list[Fault[Any]] = []

    def run(self) -> Outcome:
        """Run to the end.

        Raises:
            ClusterFailure: a promise was broken; the message is for a reader.
        """
        raise NotImplementedError

    def transcript(self) -> str:
        """The last events."""
        return self._cluster.scene.transcript()
