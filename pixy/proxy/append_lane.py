"""Batches of one connection, appended in the order in which they came.

A batch whose check is short is handed over at once. One that has to wait, for its check or for
bytes, is handed over later, and all of the connection wait behind it: a producer with several
requests in flight relies on the order of its batches.
"""

import asyncio
from collections import deque
from functools import partial

from pixy.aio.tasks import Tasks
from pixy.errors import InvalidBatch, PixyError
from pixy.proxy.batch_check_turns import PartitionBatches
from pixy.proxy.log import Appended, AppendedDone, AppendInFlight, Log
from pixy.records import count_batches


class AppendLane:
    """The batches of one connection.

    Args:
        log: of the cluster.
        peer: the client's address.
        client: the same, as its share of bytes counts for it.
        tasks: of the connections of the server.
    """

    __slots__ = ("_client", "_is_running", "_log", "_peer", "_tasks", "_waiting")

    def __init__(self, log: Log, peer: str, client: str, tasks: Tasks) -> None:
        self._log = log
        self._peer = peer
        self._client = client
        self._tasks = tasks
        self._waiting: deque[tuple[PartitionBatches, AppendedDone]] = deque()
        # A task hands over what waits. Invariant: true while something waits.
        self._is_running = False

    def append(self, of: PartitionBatches, done: AppendedDone, *, at_once: bool) -> None:
        """Append exactly one batch to a partition.

        Args:
            of: the batch.
            done: called once with the result, perhaps before the return.
            at_once: its check may be done in this step of the loop.
        """
        try:
            if count_batches(of.batches, 2) > 1:
                raise InvalidBatch("more than one record batch for a partition, expected exactly one")
            if at_once and not self._is_running and self._log.maybe_append(of, self._client, done):
                return
        except PixyError as error:
            done(Appended(-1, error))
            return
        self._waiting.append((of, done))
        if not self._is_running:
            self._is_running = True
            self._tasks.spawn(self._hand_over(), "append batches of a connection")

    async def _hand_over(self) -> None:
        try:
            while self._waiting:
                of, done = self._waiting.popleft()
                try:
                    request = await self._log.begin_append([of], (), self._peer, producers=True)
                except PixyError as error:
                    done(Appended(-1, error))
                else:
                    _tell(request, done)
        finally:
            self._is_running = False


def _tell(request: AppendInFlight, done: AppendedDone) -> None:
    request.answer.add_done_callback(partial(_told, done))


def _told(done: AppendedDone, answer: "asyncio.Future[list[Appended]]") -> None:
    done(answer.result()[0])
