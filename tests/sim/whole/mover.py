"""Moves of partitions that an operator of the simulated cluster asks for."""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from pixy.backend import EmbeddedBackend
from pixy.cluster import CancelPlan, RebalancePlan, Topic
from pixy.cluster.state import partition_move
from pixy.proto.state_pb2 import MoveReason
from tests.sim.whole.cluster import Cluster
from tests.sim.whole.machine import Machine
from tests.sim.whole.watches import groups_of

_PATIENCE_S = 8.0
_REPLICAS_MAX = 3
_LOOK_S = 0.05
_LONGEST_S = 4.0
"""Longest time after which a partition is called back."""
_BACK_S = (1.2, 2.4)
_AGAIN_S = (0.8, 2.0)
"""Times after which a move is taken back, and begun again."""


class Mover:
    """Moves in one cluster.

    Args:
        cluster: see `Cluster`.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._scene = cluster.scene

    def move(self, rng: Random) -> None:
        """Have a partition moved, to as many nodes as it has, or three."""
        ready = [each for each in self._cluster.ordinary() if each.ready]
        if not ready:
            return
        machine = rng.choice(ready)
        assert machine.node is not None
        metadata = machine.node.metadata
        topics = [metadata.topics[name] for name in sorted(metadata.topics)]
        if not topics:
            return
        topic = rng.choice(topics)
        number = rng.randrange(len(topic.replicas))
        size = max(len(topic.replicas[number]), min(_REPLICAS_MAX, len(metadata.started)))
        target = rng.sample(metadata.started, min(size, len(metadata.started)))
        self._move_to(machine, topic.name, number, target)

    def begin_planned(self, request: RebalancePlan | CancelPlan, rng: Random) -> None:
        """Have a node plan moves, and begin them, as the command line does."""
        ready = [each for each in self._cluster.ordinary() if each.ready]
        if not ready:
            return
        cancels = isinstance(request, CancelPlan)
        reason = MoveReason.MOVE_REASON_CANCEL if cancels else MoveReason.MOVE_REASON_REBALANCE

        async def ask(backend: EmbeddedBackend) -> Any:
            planned = await backend.plan_moves(request)
            moves = [each.message() for each in planned.moves]
            self._scene.counts["moves planned for an operator"] += len(moves)
            return await backend.begin_moves(reason, moves) if moves else ()

        what = "cancel" if cancels else "rebalance"
        machine = rng.choice(ready)
        call = self._cluster.calls.begin("operator", machine, what, "", _PATIENCE_S, lambda _: None)
        self._cluster.calls.ask(call, ask)

    def move_behind(self, metadata: Machine, machine: Machine, rng: Random) -> None:
        """Have partitions moved that a node has, by the leader of metadata. In the end the node
        leads them, or they have moved away from it, and are on their way back.
        """
        if machine.node is None or not machine.ready or self._scene.healed:
            return
        node_id = machine.node.node_id
        for topic, number in _unmoved(metadata):
            replicas, leader = topic.replicas[number], self._cluster.leader(topic.raft_groups[number])
            if (
                leader is None
                or leader.node is None
                or leader in (metadata, machine)
                or node_id not in replicas
            ):
                continue
            leads, behind = rng.random() < 0.5, partial(self._when_moved, metadata, topic.name, number)
            others = [each for each in replicas if each != node_id]
            stay = (node_id, leader.node.node_id) if leads else others
            if not self._swap(metadata, topic, number, stay, rng):
                continue
            if leads:
                behind(0.0, partial(self._lead, machine))
            else:
                behind(rng.uniform(0.0, _LONGEST_S), partial(self._move_to, metadata, target=replicas))

    def move_to_and_fro(self, metadata: Machine, machine: Machine, rng: Random, *, once: bool) -> None:
        """Have partitions moved that a node leads, by the leader of metadata, and unless only once,
        have this taken back, and begun again.
        """
        if metadata.node is None or machine.node is None or self._scene.healed:
            return
        stay = (metadata.node.node_id, machine.node.node_id)
        for topic, number in _unmoved(metadata):
            replicas = topic.replicas[number]
            if self._cluster.leader(topic.raft_groups[number]) is not machine:
                continue
            target = self._swap(metadata, topic, number, stay, rng)
            if target and not once:
                move, back_s = partial(self._move_to, metadata, topic.name, number), rng.uniform(*_BACK_S)
                self._scene.loop.outside(back_s, move, replicas)
                self._scene.loop.outside(back_s + rng.uniform(*_AGAIN_S), move, target)

    def _swap(
        self, metadata: Machine, topic: Topic, number: int, stay: Sequence[int], rng: Random
    ) -> Sequence[int]:
        """Have a replica moved to another node; returns the target, empty if there is none.

        Args:
            stay: nodes whose replicas stay; none of them gets one.
        """
        assert metadata.node is not None
        replicas = topic.replicas[number]
        going = [each for each in replicas if each not in stay]
        coming = [each for each in metadata.node.metadata.started if each not in (*replicas, *stay)]
        if not going or not coming:
            return ()
        gone, come = rng.choice(going), rng.choice(coming)
        target = [come if each == gone else each for each in replicas]
        self._move_to(metadata, topic.name, number, target)
        return target

    def _when_moved(
        self, metadata: Machine, name: str, number: int, pause_s: float, then: Callable[[str, int], None]
    ) -> None:
        """Do something when a move has ended, as the leader of metadata knows."""
        topic = None if metadata.node is None else metadata.node.metadata.topics.get(name)
        if topic is None or self._scene.healed:
            return
        moves = number in topic.moves
        again = partial(self._when_moved, metadata, name, number, pause_s, then)
        self._scene.loop.outside(
            _LOOK_S if moves else pause_s, again if moves else partial(then, name, number)
        )

    def _lead(self, machine: Machine, name: str, number: int) -> None:
        """Have a partition's leader hand over to a node, as `LeaderPlacement` does."""
        topic = None if machine.node is None else machine.node.metadata.topics.get(name)
        leader = None if topic is None else self._cluster.leader(topic.raft_groups[number])
        if machine.node is None or topic is None or leader is None or leader.node is None:
            return
        assert leader.life is not None
        driver, group = leader.node._log.driver, groups_of(leader)[topic.raft_groups[number]]
        leader.life.run(driver.transfer, group, machine.node.node_id)

    def _move_to(self, machine: Machine, name: str, number: int, target: Sequence[int]) -> None:
        """Have a partition moved to some nodes."""
        topic = None if machine.node is None else machine.node.metadata.topics.get(name)
        if topic is None or not machine.ready or self._scene.healed:
            return
        moves = [partition_move(topic, number, target)]

        async def ask(backend: EmbeddedBackend) -> Any:
            return await backend.begin_moves(MoveReason.MOVE_REASON_MOVE, moves)

        call = self._cluster.calls.begin("operator", machine, "move", target, _PATIENCE_S, lambda _: None)
        self._cluster.calls.ask(call, ask)


def _unmoved(metadata: Machine) -> Sequence[tuple[Topic, int]]:
    """Partitions that do not move, as a node knows them."""
    topics = [] if metadata.node is None else list(metadata.node.metadata.topics.values())
    return [
        (topic, number)
        for topic in topics
        for number in range(len(topic.replicas))
        if number not in topic.moves
    ]
