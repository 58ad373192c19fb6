"""Many messages on their way at once, reported in the order in which they were read.

The caller's thread reads and sends; one more thread waits for the answers in order, so that a slow input is reported as it
goes and not when the next line comes. Messages that are on their way together may be written in another order; with one at a
time they are written in the order of the input. The first failure stops the sending; what is on its way by then is waited for and
counted, because it may have been written.
"""

import queue
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import grpc

    from pixy.proto.kafkapixy_pb2 import ProdRq, ProdRs
    from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub

__all__ = ["IN_FLIGHT_MAX", "Pipeline"]

IN_FLIGHT_MAX = 256


class Pipeline:
    """Produces messages and counts what became of them.

    Args:
        stub: of the daemon.
        timeout: seconds that one message may take.
        in_flight: how many messages may be on their way at once.
        report: called with each answer, in order, until the first failure; from another thread.
    """

    def __init__(
        self,
        stub: "KafkaPixyStub",
        timeout: float,
        report: "Callable[[ProdRs], None]",
        in_flight: int = IN_FLIGHT_MAX,
    ) -> None:
        self.written = 0
        """Messages before the first failure, or all."""
        self.failed_number = 0
        """Number of the first message that failed, from 1; 0: none."""
        self.failure: grpc.RpcError | None = None
        self.sent_after = 0
        self.written_after = 0
        """Messages that were on their way behind the failed one, and how many of these were written."""
        self._stub = stub
        self._timeout = timeout
        self._report = report
        self._report_error: BaseException | None = None
        self._stopped = threading.Event()
        self._room = threading.Semaphore(in_flight)
        self._in_flight: queue.SimpleQueue[grpc.Future[ProdRs] | None] = queue.SimpleQueue()

    def run(self, requests: "Iterable[ProdRq]") -> None:
        """Sends all requests and returns when the last one is answered; the counts tell the outcome.

        Raises:
            whatever `report` raised.
        """
        reporter = threading.Thread(target=self._await_answers, name="pixy-produce-report", daemon=True)
        reporter.start()
        try:
            for request in requests:
                self._room.acquire()
                if self._stopped.is_set():
                    break
                self._in_flight.put(self._stub.Produce.future(request, timeout=self._timeout))
        finally:
            self._in_flight.put(None)
            reporter.join()
        if self._report_error is not None:
            raise self._report_error

    def _await_answers(self) -> None:
        import grpc

        while (future := self._in_flight.get()) is not None:
            try:
                answer = future.result()
            except (grpc.RpcError, grpc.FutureCancelledError) as error:
                self._failed(error)
            else:
                self._succeeded(answer)
            self._room.release()

    def _failed(self, error: "grpc.RpcError | grpc.FutureCancelledError") -> None:
        self._stopped.set()
        if self.failure is not None:
            self.sent_after += 1
            return
        import grpc

        self.failed_number = self.written + 1
        self.failure = error if isinstance(error, grpc.RpcError) else grpc.RpcError()

    def _succeeded(self, answer: "ProdRs") -> None:
        if self.failure is not None:
            self.sent_after += 1
            self.written_after += 1
            return
        self.written += 1
        if self._report_error is not None:
            return
        try:
            self._report(answer)
        except Exception as error:
            # It belongs to the thread that called run(); a reader that closed the pipe is the usual one.
            self._report_error = error
            self._stopped.set()
