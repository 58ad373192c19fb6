"""Limit of a leader's wait for followers that it has sent a snapshot. Pure.

Until the follower has restored the snapshot or refused it, the Raft core sends it nothing. The
message, or the answer, may have been lost, and a follower may have given up without a word. So a
follower that asks for no slice for a while is reported to the core, which then probes it, or sends
it a snapshot again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class _Wait:
    """A follower that was sent the snapshot of this index, 0 while it is not known which.

    `has_all` is True once it was sent the last slice; `heard_at` is a time in seconds.
    """

    index: int
    heard_at: float
    has_all: bool = False


class SnapshotPatience:
    """Followers that were sent a snapshot, by raft group and node."""

    def __init__(self) -> None:
        self._waits: dict[tuple[int, int], _Wait] = {}

    def __len__(self) -> int:
        return len(self._waits)

    def heard(self, raft_group: int, peer: int, now: float, *, has_all: bool) -> None:
        """A follower was sent a slice.

        Args:
            has_all: it was the last one.
        """
        wait = self._waits.setdefault((raft_group, peer), _Wait(0, now))
        wait.heard_at, wait.has_all = now, has_all

    def overdue(
        self, raft_group: int, waiting: Mapping[int, int], now: float, patience_s: float
    ) -> Iterator[tuple[int, bool]]:
        """Followers that are silent for too long, and whether the snapshot counts as failed: they
        have not got all of it.

        Args:
            waiting: followers that the core waits for, with the index of the snapshot.
        """
        for peer in [peer for group, peer in self._waits if group == raft_group and peer not in waiting]:
            del self._waits[raft_group, peer]
        for peer, index in waiting.items():
            wait = self._waits.setdefault((raft_group, peer), _Wait(index, now))
            if wait.index not in (0, index):
                wait.heard_at, wait.has_all = now, False
            wait.index = index
            if now - wait.heard_at >= patience_s:
                del self._waits[raft_group, peer]
                yield peer, not wait.has_all
