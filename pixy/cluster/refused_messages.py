"""Log of messages and proposals of other nodes that are refused: a line a minute for each node,
with the number of those before it.
"""

import asyncio

import structlog

__all__ = ["RefusedMessages"]

log = structlog.get_logger(__name__)

_LOG_AGAIN_S = 60.0


class RefusedMessages:
    """Refusals by sender, which is a node of this cluster: they are few."""

    def __init__(self) -> None:
        # Loop time of the last line, and refusals since then.
        self._noted: dict[int, tuple[float, int]] = {}

    def note(self, raft_group: int, sender: int, what: str, reason: str) -> None:
        """Log a refusal, or count it for the next line.

        Args:
            what: kind of the message.
        """
        now = asyncio.get_running_loop().time()
        logged_at, since = self._noted.get(sender, (float("-inf"), 0))
        if now - logged_at < _LOG_AGAIN_S:
            self._noted[sender] = logged_at, since + 1
            return
        self._noted[sender] = now, 0
        log.warning(
            "a node sends what no correct one does: it is ignored",
            node=sender,
            raft_group=raft_group,
            message=what,
            reason=reason,
            others_before=since,
        )
