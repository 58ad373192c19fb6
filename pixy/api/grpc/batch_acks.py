"""The acks of one ConsumeBatch: in steps of its connection, and few of a partition wait at a time.

An ack that cannot be answered at once, as it is beyond the known end or its partition is elsewhere,
waits in a task of its own. The other acks of its partition wait here meanwhile. Where one is beyond
the end, those of the same or a higher offset are too, and share its answer.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from pixy.consume import AckDone
from pixy.errors import AckBeyondEnd, PixyError
from pixy.proto import pixy_log_pb2 as pb
from pixy.rpc import UnaryCall

_ACKED_AT_ONCE = 50
"""Acks in one step: half a millisecond."""
_OF_PARTITION_AT_ONCE = 50

Ack = Callable[[int, int, AckDone], None]
"""Acknowledges an offset of a partition."""


class _AcksOfPartition:
    """Acks of one partition.

    Attributes:
        under_way: number of acks that are not answered, without those that are `held`.
        held: offsets to acknowledge when earlier acks are answered.
        refused: lowest offset that was beyond the end, None if none was.
    """

    __slots__ = ("held", "refused", "under_way")

    def __init__(self) -> None:
        self.under_way = 0
        self.held: deque[int] | None = None
        self.refused: int | None = None


class BatchAcks:
    """Acks of one call, all of which are carried out even if the call ends.

    Args:
        acks: positions of messages.
        ack: acknowledges one; it may raise a `PixyError` instead of answering.
        call: whose connection does the work.
        done: called once with None or the first error, when all are answered.
    """

    __slots__ = (
        "_ack",
        "_call",
        "_done",
        "_error",
        "_left",
        "_partitions",
        "_ready",
        "_stepping",
        "_waiting",
    )

    def __init__(self, acks: Sequence[pb.MessagePosition], ack: Ack, call: UnaryCall, done: AckDone) -> None:
        self._ack = ack
        self._call = call
        self._done = done
        self._error: PixyError | None = None
        # None once all are taken.
        self._left = iter(acks) if acks else None
        self._partitions: dict[int, _AcksOfPartition] = {}
        # Held offsets whose turn has come.
        self._ready: deque[tuple[_AcksOfPartition, int, int]] = deque()
        # Acks that were taken and are not answered.
        self._waiting = 0
        # A step runs, or is queued.
        self._stepping = True

    def begin(self) -> None:
        """Take the first step. Called by the handler."""
        self._call.first_step(self._step)

    def _step(self) -> None:
        for _ in range(_ACKED_AT_ONCE):
            if self._ready:
                self._begin(*self._ready.popleft())
            elif not self._take():
                break
        if self._ready or self._left is not None:
            self._call.step_later(self._step)
            return
        self._stepping = False
        if not self._waiting:
            self._done(self._error)

    def _take(self) -> bool:
        """Take the next ack of the request; False if there is none."""
        position = next(self._left, None) if self._left is not None else None
        if position is None:
            self._left = None
            return False
        number, offset = position.partition, position.offset
        partition = self._partitions.get(number)
        if partition is None:
            partition = self._partitions[number] = _AcksOfPartition()
        self._waiting += 1
        if partition.under_way < _OF_PARTITION_AT_ONCE:
            partition.under_way += 1
            self._begin(partition, number, offset)
        elif partition.held is None:
            partition.held = deque([offset])
        else:
            partition.held.append(offset)
        return True

    def _begin(self, partition: _AcksOfPartition, number: int, offset: int) -> None:
        if partition.refused is not None and offset >= partition.refused:
            self._answered(partition, number, offset, None)
            return
        try:
            self._ack(number, offset, partial(self._answered, partition, number, offset))
        except PixyError as error:
            self._answered(partition, number, offset, error)

    def _answered(
        self, partition: _AcksOfPartition, number: int, offset: int, error: PixyError | None
    ) -> None:
        self._waiting -= 1
        if error is not None:
            self._error = self._error or error
            if isinstance(error, AckBeyondEnd):
                refused = partition.refused
                partition.refused = offset if refused is None else min(offset, refused)
        if partition.held:
            self._ready.append((partition, number, partition.held.popleft()))
            if not self._stepping:
                self._stepping = True
                self._call.step_later(self._step)
            return
        partition.under_way -= 1
        if not self._stepping and not self._waiting:
            self._done(self._error)
