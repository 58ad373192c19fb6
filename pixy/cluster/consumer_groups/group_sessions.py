"""Sessions of the processes that have members in consumer groups: how long each has been silent.
Pure.

Silence is counted by the ticks of the coordinator, a few tenths of a second each at most: a node
that was paused itself knows nothing about the others, and puts nobody out for its own pause. It
begins with the coordinator's leadership of the state group, because a member may have been
confirmed by the leader before.

    SESSION_S    a process that was silent for so long is put out of its consumer groups
    LEASE_S      a member hands out records for so long after it was last confirmed (`group_leases`)
    LEAVING_S    a removed node is put out if it has left none of its groups for so long

A lease counts from the moment at which its confirmation begins. The coordinator hears of the node
by the question itself, so its session is longer than the lease by what ticks may count too much and
a beat of the node, for good measure: LEASE_S + BEAT_S <= SESSION_S. If the coordinator has already
decided to put the node out, the answer waits for that (`reads_cover_log`). So members have stopped
by themselves when their partitions go to others. Also those of a node that was given up as lost: it
may live, and be cut off.

A node that was removed, and is heard, commits its acks and leaves its groups itself. One of an
earlier release does not.
"""

from collections.abc import Mapping

SESSION_S = 3.0
LEASE_S = 2.5
BEAT_S = 0.5
LEAVING_S = 5.0
_TICK_MAX_S = 0.3
"""Longest time that one tick counts."""


class Sessions:
    """Silence of other nodes, as one node hears them."""

    def __init__(self) -> None:
        # Of each node: when it was last heard of, and the time since then.
        self._nodes: dict[int, tuple[float | None, float]] = {}
        # Of each state group that this node leads: term, and the time since this node found that.
        self._led: dict[int, tuple[int, float]] = {}
        # By led state group and removed node: number of its groups there, and the time since it was
        # another one.
        self._leaving: dict[tuple[int, int], tuple[int, float]] = {}

    def tick(self, seconds: float, heard_at: Mapping[int, float | None]) -> None:
        """Time has passed.

        Args:
            heard_at: when each other node was last heard of, None for never. One that is missing
                is not heard any more.
        """
        seconds = min(seconds, _TICK_MAX_S)
        heard_before = {node_id: heard for node_id, (heard, _) in self._nodes.items()}
        for node_id, heard in {**heard_before, **heard_at}.items():
            before, silent_s = self._nodes.get(node_id, (heard, 0.0))
            self._nodes[node_id] = heard, silent_s + seconds if heard == before else 0.0
        self._led = {raft_group: (term, led_s + seconds) for raft_group, (term, led_s) in self._led.items()}
        self._leaving = {key: (groups, since_s + seconds) for key, (groups, since_s) in self._leaving.items()}

    def lead(self, raft_group: int, term: int | None) -> bool:
        """This node leads a state group in a term; None: it does not lead. True if that is new."""
        if term is None:
            self._led.pop(raft_group, None)
            return False
        if raft_group in self._led and self._led[raft_group][0] == term:
            return False
        self._led[raft_group] = (term, 0.0)
        self._leaving = {key: each for key, each in self._leaving.items() if key[0] != raft_group}
        return True

    def has_expired(self, raft_group: int, node_id: int) -> bool:
        """True if a node was silent for a session under this leadership of a state group."""
        _, led_s = self._led.get(raft_group, (0, 0.0))
        _, silent_s = self._nodes.get(node_id, (None, led_s))
        return min(led_s, silent_s) >= SESSION_S

    def leaves_late(self, raft_group: int, node_id: int, groups: int) -> bool:
        """True if a removed node has once left no consumer group of a state group for `LEAVING_S`
        under this leadership.

        Args:
            groups: number of those that it is in yet.
        """
        before, since_s = self._leaving.get((raft_group, node_id), (-1, 0.0))
        if since_s >= LEAVING_S:
            return True
        if groups != before:
            self._leaving[raft_group, node_id] = groups, 0.0
        return False
