"""Starts of peers in the journal: they outlive this node's own starts.

A new incarnation of a peer is written at once; nobody waits for it. Flush numbers rise all the
time: they ride with other flushes, at most once a second, and cost a flush of their own only when
an older self is refused. So what a start finds may be a second old, and an older copy of a
directory passes only if it is not older than that, and was refused by nobody before.
"""

from collections.abc import Callable, Sequence

from pixy.clock import Clock
from pixy.cluster.log.peer_starts import PeerStarts, StartClaim
from pixy.storage import Journal, RecordKind, UnitRecord

_PAUSE_S = 1.0
"""Least time between two records that only have higher flush numbers."""


class PeerStartRecord:
    """Starts of peers, and their newest record.

    Args:
        journal: the node's journal.
        clock: spaces records.
        recovered: what a start has found of them, empty for nothing.
        file: number of the journal file that holds that, 0 for none.

    Attributes:
        starts: what is known now; changed by `admit` and `forget` only.
        file: number of the journal file with the newest durable record, 0 for none.
    """

    def __init__(self, journal: Journal, clock: Clock, recovered: bytes, file: int) -> None:
        self._journal = journal
        self._clock = clock
        self.starts = PeerStarts()
        self.starts.restore(recovered)
        self.file = file
        # True if something has changed since the newest record.
        self._changed = False
        self._written_at = float("-inf")
        # The starts in the newest record.
        self._recorded = self.starts.known
        journal.passenger = self._passenger

    def admit(self, claim: StartClaim) -> str | None:
        """As `PeerStarts.admit`. A new incarnation is written at once, and so is the flush that an
        older self lacks: it is refused after a start of this node too.
        """
        before = self.starts.newest(claim.node_id)
        reason = self.starts.admit(claim)
        if reason is None and self.starts.newest(claim.node_id) != before:
            self._changed = True
            if before is None or claim.start.incarnation > before.incarnation:
                self.write()
        elif reason is not None and before != self._recorded.get(claim.node_id):
            self.write()
        return reason

    def flushed(self, node_id: int, incarnation: int, flush_number: int) -> None:
        """A start that was admitted has a newer flush: as `admit`, for every message of a peer."""
        if self.starts.advance(node_id, incarnation, flush_number):
            self._changed = True

    def forget(self, node_id: int) -> None:
        """Drop a peer that has left the cluster, durably with a later record."""
        self.starts.forget(node_id)
        self._changed = True

    def write(self) -> None:
        """Write a record, or write it again before the file of the newest one is removed."""
        self._journal.append(*self._unit())

    def _passenger(self) -> tuple[Sequence[UnitRecord], Callable[[], None]] | None:
        """A record for a flush that is about to be written, if one is due."""
        due = self._changed and self._clock.monotonic() - self._written_at >= _PAUSE_S
        return self._unit() if due else None

    def _unit(self) -> tuple[Sequence[UnitRecord], Callable[[], None]]:
        self._changed, self._written_at = False, self._clock.monotonic()
        self._recorded = self.starts.known
        record = (RecordKind.PEER_STARTS, 0, 0, 0, 0, 0, None, self.starts.snapshot())
        return (record,), self._durable

    def _durable(self) -> None:
        self.file = self._journal.files[-1].number
