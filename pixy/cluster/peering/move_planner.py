"""Plans of moves: where the replicas of partitions should be, by one view of the cluster.

Pure: the node that leads metadata asks with what it sees, and proposes the answer. In this order:

    replace     a node has been away for too long, and another one can take its replica
    raise       a partition has fewer replicas than its topic wants and nodes can have
    drain       a node gives its replicas away, as far as others can take them
    lower       a partition has more replicas than its topic wants

A partition gets one target for all of that. While it moves, it gets another one only if

    a node that it moves to is away, or gives its replicas away    planned anew
    the node that was to be replaced is back, or no more drained   taken back
    a node is removed, and another one can take its replica        one node more

Invariants, whatever the view:

- No two replicas on a node, and no partition without a replica.
- A replica goes only for one that comes, except where there are more than the topic wants, and on
  removed nodes.
- No more than `INCOMING_MAX` partitions move to one node at a time.
- A plan that is carried out leads to a view for which there is nothing to plan.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from pixy.cluster.state import Move, Topic, partition_move, replication_of
from pixy.proto.state_pb2 import MoveReason, PartitionMove

INCOMING_MAX = 64
"""Partitions that move to one node at a time."""

PLANNED_MAX = 1000
"""New moves of one plan, for each reason."""

_RAISE = MoveReason.MOVE_REASON_RAISE
_REPLACE = MoveReason.MOVE_REASON_REPLACE
_DRAIN = MoveReason.MOVE_REASON_DRAIN
_REMOVE = MoveReason.MOVE_REASON_REMOVE
_REBALANCE = MoveReason.MOVE_REASON_REBALANCE
_LOWER = MoveReason.MOVE_REASON_LOWER
_CANCEL = MoveReason.MOVE_REASON_CANCEL
_ORDER = (_CANCEL, _REPLACE, _RAISE, _DRAIN, _REMOVE, _LOWER)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The nodes of a cluster as one of them sees them.

    Attributes:
        usable: nodes that may get replicas: up, for a while, neither drained nor removed.
        up: nodes that can be reached.
        away: nodes that could not be reached for so long that they are replaced.
        leaving: nodes that are drained or removed.
        removed: those of them that are removed.
    """

    usable: frozenset[int]
    up: frozenset[int]
    away: frozenset[int] = frozenset()
    leaving: frozenset[int] = frozenset()
    removed: frozenset[int] = frozenset()


class PlannedMove(NamedTuple):
    """A move to begin, or another target of one that is under way."""

    topic: Topic
    partition: int
    reason: MoveReason.ValueType
    target: tuple[int, ...]

    def message(self) -> PartitionMove:
        """The move in a command."""
        return partition_move(self.topic, self.partition, self.target)


def plan_moves(topics: Iterable[Topic], view: ClusterView) -> list[PlannedMove]:
    """Moves that the cluster should make, the most urgent ones first."""
    planner = _Planner([*topics], view)
    planned = [*planner.under_way()]
    for reason in (_REPLACE, _RAISE, _DRAIN, _LOWER):
        planned += islice(planner.new(reason), PLANNED_MAX)
    return sorted(planned, key=lambda move: _ORDER.index(move.reason))


def plan_rebalance(topics: Iterable[Topic], view: ClusterView) -> list[PlannedMove]:
    """Moves that give all usable nodes as many replicas, and first replicas, give or take one.

    Partitions that move, or have a replica on a node that is not usable, stay where they are.
    """
    return [*_Planner([*topics], view).rebalanced()]


class _Planner:
    """One plan: what has been planned so far counts for the rest of it."""

    def __init__(self, topics: list[Topic], view: ClusterView) -> None:
        self._topics = topics
        self._view = view
        # By node, as of the end of all moves, also of those that are planned.
        self._replicas: Counter[int] = Counter()
        self._leaders: Counter[int] = Counter()
        # Partitions that move to a node.
        self._incoming: Counter[int] = Counter()
        for topic in topics:
            for replicas, count in Counter(topic.placed).items():
                for node_id in replicas:
                    self._replicas[node_id] += count
                self._leaders[replicas[0]] += count
            for number, move in topic.moves.items():
                self._incoming.update({*move.target} - {*topic.replicas[number]})
        # Usable nodes to which partitions may yet move.
        self._able = {node_id for node_id in view.usable if self._incoming[node_id] < INCOMING_MAX}

    # --- moves under way --------------------------------------------------------------------------

    def under_way(self) -> Iterator[PlannedMove]:
        """Other targets of moves that have begun."""
        for topic in self._topics:
            for number, move in topic.moves.items():
                planned = self._other_target(topic, number, move)
                if planned is not None and planned.target != move.target:
                    yield planned

    def _other_target(self, topic: Topic, number: int, move: Move) -> PlannedMove | None:
        replicas, view = topic.replicas[number], self._view
        coming, going = {*move.target} - {*replicas}, {*replicas} - {*move.target}
        if move.reason in (_REPLACE, _DRAIN) and going and going <= view.usable:
            self._place(replicas, move.target, replicas)
            return PlannedMove(topic, number, _CANCEL, replicas)
        wanted = replication_of(topic.config)
        if coming & (view.away | view.leaving):
            self._place(replicas, move.target, replicas)
            reason, target = self._target(replicas, wanted) or (_CANCEL, replicas)
            self._place(replicas, replicas, target)
            return PlannedMove(topic, number, reason, target)
        if move.reason == _REMOVE:
            target = self._raised(replicas, move.target, wanted)
            self._place(replicas, move.target, target)
            return PlannedMove(topic, number, _REMOVE, target)
        return None

    # --- even numbers -----------------------------------------------------------------------------

    def rebalanced(self) -> Iterator[PlannedMove]:
        """Moves from the nodes with the most replicas to those with the fewest."""
        free = [
            (topic, number, replicas)
            for topic in self._topics
            for number, replicas in enumerate(topic.replicas)
            if number not in topic.moves and self._view.usable.issuperset(replicas)
        ]
        targets = {(topic.name, number): replicas for topic, number, replicas in free}
        for find in (self._spread, self._led_evenly):
            for topic, number, replicas in free:
                before = targets[topic.name, number]
                target = find(before)
                if target != before:
                    self._place(replicas, before, target)
                    targets[topic.name, number] = target
        for topic, number, replicas in free:
            target = targets[topic.name, number]
            if target != replicas:
                yield PlannedMove(topic, number, _REBALANCE, target)

    def _spread(self, replicas: tuple[int, ...]) -> tuple[int, ...]:
        """The replicas with one on another node, if that one has fewer by two at least."""
        full = max(replicas, key=lambda node_id: (self._replicas[node_id], node_id))
        other = self._candidate([*replicas], replicas)
        if other is None or self._replicas[full] - self._replicas[other] < 2:
            return replicas
        return tuple([other if node_id == full else node_id for node_id in replicas])

    def _led_evenly(self, replicas: tuple[int, ...]) -> tuple[int, ...]:
        return self._led(replicas, replicas[0])

    # --- new moves --------------------------------------------------------------------------------

    def new(self, reason: MoveReason.ValueType) -> Iterator[PlannedMove]:
        """Moves for one reason of partitions that do not move."""
        for topic in self._topics:
            wanted = replication_of(topic.config)
            # Thousands of partitions have few different sets of replicas.
            concerned = {each for each in {*topic.replicas} if self._reason(each, wanted) == reason}
            if not concerned:
                continue
            for number, replicas in enumerate(topic.replicas):
                if replicas not in concerned or number in topic.moves or not self._may_plan(reason, replicas):
                    continue
                found = self._target(replicas, wanted)
                if found is not None and {*found[1]} != {*replicas}:
                    self._place(replicas, replicas, found[1])
                    yield PlannedMove(topic, number, reason, found[1])

    def _may_plan(self, reason: MoveReason.ValueType, replicas: tuple[int, ...]) -> bool:
        """False if no node can take a replica of a partition, and none is to go without that."""
        if reason == _LOWER or not self._able.issubset(replicas):
            return True
        return not self._view.removed.isdisjoint(replicas)

    def _reason(self, replicas: tuple[int, ...], wanted: int) -> MoveReason.ValueType | None:
        """The most urgent reason to move a partition, None if there is none."""
        view, here = self._view, {*replicas}
        spare = view.usable - here
        if len(here) > wanted:
            return _LOWER
        if spare and here & view.away:
            return _REPLACE
        if spare and len(here) < min(wanted, len(view.usable)):
            return _RAISE
        if (spare and here & view.leaving) or here & view.removed:
            return _DRAIN
        return None

    def _target(
        self, replicas: tuple[int, ...], wanted: int
    ) -> tuple[MoveReason.ValueType, tuple[int, ...]] | None:
        """Target of a partition, and the reason; None if it is to stay for the time being."""
        reason = self._reason(replicas, wanted)
        if reason is None:
            return None
        target = self._lowered(replicas, wanted)
        target = self._replaced(target)
        target = self._raised(replicas, target, wanted)
        return reason, self._led(target, replicas[0])

    def _lowered(self, replicas: tuple[int, ...], wanted: int) -> tuple[int, ...]:
        """The replicas without those that are too many: the worst ones go."""
        view = self._view

        def worth(node_id: int) -> tuple[bool, bool, bool, bool, int, int]:
            return (
                node_id not in view.removed,
                node_id not in view.away,
                node_id in view.up,
                node_id not in view.leaving,
                -self._replicas[node_id] if node_id != replicas[0] else 1,
                -node_id,
            )

        kept = sorted(replicas, key=worth, reverse=True)[: max(1, wanted)]
        return tuple([node_id for node_id in replicas if node_id in kept])

    def _replaced(self, replicas: tuple[int, ...]) -> tuple[int, ...]:
        """The replicas with others in the place of those on nodes that are away, or leave."""
        view, target = self._view, list(replicas)
        for gone in (view.away, view.leaving):
            for node_id in [each for each in target if each in gone]:
                other = self._candidate(target, replicas)
                if other is not None:
                    target[target.index(node_id)] = other
        staying = [node_id for node_id in target if node_id not in view.removed]
        return tuple(staying or target)

    def _raised(self, replicas: tuple[int, ...], target: tuple[int, ...], wanted: int) -> tuple[int, ...]:
        """The replicas with so many more as are wanted, and nodes can have."""
        raised = list(target)
        while len(raised) < min(wanted, len(self._view.usable)):
            other = self._candidate(raised, replicas)
            if other is None:
                break
            raised.append(other)
        return tuple(raised)

    def _candidate(self, target: list[int], replicas: tuple[int, ...]) -> int | None:
        """The node for one more replica, None if there is none."""
        able = [
            node_id
            for node_id in self._view.usable
            if node_id not in target and (node_id in replicas or node_id in self._able)
        ]
        return min(able, key=lambda node_id: (self._replicas[node_id], node_id), default=None)

    def _led(self, target: tuple[int, ...], leader: int) -> tuple[int, ...]:
        """The target with its preferred leader first: the present one, unless it goes or another
        node leads fewer partitions.
        """
        able = [node_id for node_id in target if node_id in self._view.usable] or [*target]
        least = min(able, key=lambda node_id: (self._leaders[node_id], target.index(node_id)))
        if leader in able and self._leaders[least] + 1 >= self._leaders[leader]:
            least = leader
        return (least, *[node_id for node_id in target if node_id != least])

    def _place(self, replicas: tuple[int, ...], before: tuple[int, ...], target: tuple[int, ...]) -> None:
        """Count a partition with these replicas at another target."""
        self._replicas.subtract(before)
        self._replicas.update(target)
        self._leaders[before[0]] -= 1
        self._leaders[target[0]] += 1
        self._incoming.subtract({*before} - {*replicas})
        self._incoming.update({*target} - {*replicas})
        for node_id in {*before, *target}:
            if self._incoming[node_id] >= INCOMING_MAX:
                self._able.discard(node_id)
            elif node_id in self._view.usable:
                self._able.add(node_id)
