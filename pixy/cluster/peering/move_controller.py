"""Moves that a cluster makes by itself: the node that leads metadata plans and begins them.

It looks at the nodes once a second, and acts when it has led for `PATIENCE_S`: a new leader reaches
nobody at first. Its plan is of what it sees (`move_planner`); metadata leaves out partitions that
are other than they were seen. It keeps nothing but how long nodes have been there, or away: another
leader goes on with the moves that are under way, and plans the same for the rest. That one counts
anew, so a node is replaced later, never sooner.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from pixy.cluster.peering.move_planner import ClusterView, PlannedMove, plan_moves
from pixy.cluster.replicas import StateGroups
from pixy.cluster.state import MOVES_LEVEL, MOVES_MAX, reason_name
from pixy.proto.state_pb2 import BeginMoves, MetadataCommand, MoveReason

log = structlog.get_logger(__name__)

PATIENCE_S = 30.0
"""Time for which the node has to lead, and others to be up, before anything moves."""
_LOOK_S = 1.0


class MoveController:
    """Moves by one node, while it leads metadata.

    Args:
        groups: the state groups.
        propose: proposes a command to metadata, and calls back with its result.
        is_reachable: true of a node that can be reached, if only through others.
        replace_after_s: time for which a node has to be away before it is replaced.
    """

    def __init__(
        self,
        groups: StateGroups,
        propose: Callable[[bytes, Callable[[Any], None]], None],
        is_reachable: Callable[[int], bool],
        replace_after_s: float,
    ) -> None:
        self._groups = groups
        self._propose = propose
        self._is_reachable = is_reachable
        self._replace_after_s = replace_after_s
        self._loop = asyncio.get_running_loop()
        self._next_look = 0.0
        # Loop times: since when this node leads metadata, None while it does not; and since when it
        # has seen each node as it is, reachable or not. Invariant: of the present leadership.
        self._leads_since: float | None = None
        self._seen: dict[int, tuple[bool, float]] = {}
        self._proposing = False
        # Applied index of metadata and view for which there was nothing to plan.
        self._idle_at: tuple[int, ClusterView] | None = None

    def tick(self) -> None:
        """Begin what moves are due."""
        now = self._loop.time()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        if not self._groups.metadata_replica.group.leads:
            self._leads_since, self._seen = None, {}
            return
        if self._leads_since is None:
            self._leads_since = now
        self._look_at_nodes(now)
        is_due = now - self._leads_since >= PATIENCE_S and not self._proposing
        if is_due and self._groups.feature_level >= MOVES_LEVEL:
            self._plan(self._view(now))

    def _look_at_nodes(self, now: float) -> None:
        before = self._seen
        self._seen = {}
        for node_id in self._groups.metadata.registered:
            reached, since = self._is_reachable(node_id), now
            if node_id in before and before[node_id][0] is reached:
                since = before[node_id][1]
            self._seen[node_id] = reached, since

    def _view(self, now: float) -> ClusterView:
        metadata = self._groups.metadata
        nodes = metadata.nodes
        up = frozenset(node_id for node_id, (reached, _) in self._seen.items() if reached)
        settled = [node_id for node_id in up if now - self._seen[node_id][1] >= PATIENCE_S]
        removed = frozenset(node_id for node_id, node in nodes.items() if node.removed)
        draining = frozenset(node_id for node_id, node in nodes.items() if node.draining) | removed
        return ClusterView(
            usable=frozenset(settled).intersection(metadata.started) - draining,
            up=up,
            away=frozenset(
                node_id
                for node_id, (reached, since) in self._seen.items()
                if not reached and now - since >= self._replace_after_s
            ),
            leaving=draining,
            removed=removed,
        )

    def _plan(self, view: ClusterView) -> None:
        applied = self._groups.metadata_replica.group.applied_index
        if self._idle_at == (applied, view):
            return
        planned = plan_moves(self._groups.metadata.topics.values(), view)
        if not planned:
            self._idle_at = applied, view
            return
        # The most urgent ones; the others are planned again by what these leave.
        reason = planned[0].reason
        self._begin(reason, [move for move in planned if move.reason == reason][:MOVES_MAX])

    def _begin(self, reason: MoveReason.ValueType, moves: Iterable[PlannedMove]) -> None:
        command = BeginMoves(reason=reason, moves=[move.message() for move in moves])
        log.info("partitions move", reason=reason_name(reason), count=len(command.moves))
        self._proposing = True
        payload = MetadataCommand(begin_moves=command).SerializeToString()
        self._propose(payload, self._has_begun)

    def _has_begun(self, _: Any) -> None:
        self._proposing = False
