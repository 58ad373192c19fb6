"""Readiness of a node with peers: it serves while `metadata` has a leader. Pure.

metadata                           the node is
---------------------------------  ----------------------------------
has a leader                       ready, at once
has had none for `PATIENCE_S`      not ready; the reason names the nodes that cannot be reached
has had none for less than that    what it was: elections take a second or two
"""

from collections.abc import Sequence

PATIENCE_S = 3.0


class Readiness:
    """Readiness of one node, which begins as ready.

    Attributes:
        reason: why it is not ready, for the operator; empty while it is.
    """

    __slots__ = ("_leaderless_since", "reason")

    def __init__(self) -> None:
        self._leaderless_since: float | None = None
        self.reason = ""

    def look(self, now: float, *, has_leader: bool, unreachable: Sequence[int]) -> bool:
        """Decide.

        Args:
            now: seconds of any clock.
            has_leader: `metadata` has a leader as far as this node knows.
            unreachable: ids of the nodes that cannot be reached.

        Returns:
            True if the node has become ready or unready.
        """
        was_ready = not self.reason
        if has_leader:
            self._leaderless_since, self.reason = None, ""
        elif self._leaderless_since is None:
            self._leaderless_since = now
        elif now - self._leaderless_since >= PATIENCE_S:
            self.reason = _reason(unreachable)
        return was_ready is bool(self.reason)


def _reason(unreachable: Sequence[int]) -> str:
    if not unreachable:
        return "no majority: no node leads the cluster's metadata"
    if len(unreachable) == 1:
        return f"no majority: node {unreachable[0]} cannot be reached"
    *others, last = map(str, sorted(unreachable))
    return f"no majority: nodes {', '.join(others)} and {last} cannot be reached"
