"""Checks of raft groups at rest: a leader rests only once all others have rested behind the same
entry, and no follower rests for long under a node that does not lead.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from pixy.multiraft.raft_group import RaftGroup
from pixy.multiraft.resting_groups import RestingGroups
from pixy.raft import RaftNode, StateType
from pixy.raft.raft import Raft
from tests.sim.kit.failure import ClusterFailure
from tests.sim.kit.scene import Scene

TICK_S = 0.1
_LOOK_S = 0.2
_PATIENCE_S = 1.0
"""Time beyond an election timeout, at which followers at rest wake: claims may be late."""


class RestAudit:
    """Looks at the raft groups at rest of all nodes."""

    _scene: Scene
    _running: Callable[[], Iterable[tuple[int, RaftGroup]]]

    def __init__(self) -> None:
        # Who has rested as a follower, by raft group, term and last entry.
        self._agreed: dict[tuple[int, int, int], set[int]] = {}
        # Since when followers rest under a node that does not lead.
        self._misled: dict[RaftGroup, float] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the nodes that run meanwhile."""
        with ExitStack() as stack:
            for where, name, spy in ((RestingGroups, "begin", self._begin), (RaftNode, "rest", self._rest)):
                stack.enter_context(patch.object(where, name, spy(getattr(where, name))))
            yield

    def begin(self, scene: Scene, running: Callable[[], Iterable[tuple[int, RaftGroup]]]) -> None:
        """The cluster is there.

        Args:
            running: the raft groups of all nodes that run, each with the id of its node.
        """
        self._scene, self._running = scene, running
        self._look()

    def _begin(self, method: Callable[..., None]) -> Callable[..., None]:
        def begin(resting: RestingGroups, group: RaftGroup, node_id: int) -> None:
            method(resting, group, node_id)
            raft = group.node and group.node.raft
            if raft and raft.state is StateType.FOLLOWER:
                position = group.raft_group, raft.term, raft.log.last_index()
                self._agreed.setdefault(position, set()).add(node_id)

        return begin

    def _rest(self, method: Callable[..., None]) -> Callable[..., None]:
        def rest(node: RaftNode) -> None:
            raft = node.raft
            found = [each for each in self._groups(raft.id) if each.node is node]
            method(node)
            for group in found:
                position = group.raft_group, raft.term, raft.log.last_index()
                missing = raft.tracker.progress.keys() - {raft.id} - self._agreed.get(position, set())
                if missing:
                    self._fail(f"node {raft.id} rests with group {group.raft_group} without {missing}")

        return rest

    def _look(self) -> None:
        now = self._scene.now
        misled: dict[RaftGroup, float] = {}
        for node_id, group in self._running():
            if group.resting and group.node is not None and self._is_misled(group, group.node.raft):
                misled[group] = since = self._misled.get(group, now)
                timeout_s = group.node.raft.config.election_tick * TICK_S
                if now - since > timeout_s + _PATIENCE_S:
                    self._fail(f"node {node_id} rests with group {group.raft_group}, which nobody leads")
        self._misled = misled
        self._scene.loop.outside(_LOOK_S, self._look)

    def _is_misled(self, group: RaftGroup, raft: Raft) -> bool:
        if raft.state is not StateType.FOLLOWER or not raft.resting:
            return False
        for other in self._groups(raft.lead):
            led = other.node.raft if other.node is not None and other.raft_group == group.raft_group else None
            if led is not None and led.state is StateType.LEADER and led.term == raft.term:
                return False
        return True

    def _groups(self, node_id: int) -> list[RaftGroup]:
        return [group for each, group in self._running() if each == node_id]

    def _fail(self, text: str) -> None:
        self._scene.fail(ClusterFailure(text))
