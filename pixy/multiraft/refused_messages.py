"""Log of messages and proposals of other nodes that are refused, and of entries without effect: a
line a minute for each node, and for all entries, with the number of those before it.
"""

import asyncio

import structlog

from pixy.raft import NONE

log = structlog.get_logger(__name__)

_LOG_AGAIN_S = 60.0


class RefusedMessages:
    """Refusals by sender, which is a node of this cluster: they are few."""

    def __init__(self) -> None:
        # Loop time of the last line, and refusals since then, by sender; of entries without effect
        # that of node 0.
        self._noted: dict[int, tuple[float, int]] = {}

    def note(self, raft_group: int, sender: int, what: str, reason: str) -> None:
        """Log a refusal, or count it for the next line.

        Args:
            what: kind of the message.
        """
        others = self._others_since(sender)
        if others is not None:
            log.warning(
                "a node sends what no correct one does: it is ignored",
                node=sender,
                raft_group=raft_group,
                message=what,
                reason=reason,
                others_before=others,
            )

    def without_effect(self, raft_group: int, index: int, reason: str) -> None:
        """Log that a committed entry cannot be decoded, or count it for the next line."""
        others = self._others_since(NONE)
        if others is not None:
            log.error(
                "an entry has no effect, on any node: a node with a bug has written it",
                raft_group=raft_group,
                entry=index,
                reason=reason,
                others_before=others,
            )

    def _others_since(self, sender: int) -> int | None:
        """Number of refusals since the last line; None if that was a moment ago."""
        now = asyncio.get_running_loop().time()
        logged_at, since = self._noted.get(sender, (float("-inf"), 0))
        if now - logged_at < _LOG_AGAIN_S:
            self._noted[sender] = logged_at, since + 1
            return None
        self._noted[sender] = now, 0
        return since
