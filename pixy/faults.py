"""Unexpected exceptions: their scope, and how an operator finds them.

    origin                                      what fails                reported to
    storage or a state machine                  the process               `Daemon.on_fault`
    a handler, or a job that serves one call    the call, with INTERNAL   `FaultLog.note`
    the HTTP/2 core, a receipt, an event        the connection            `FaultLog.note`
    a background job                            nothing: it restarts      `FaultLog.note`
        after a pause

Storage, stages and the state machines (`pixy.storage`, `pixy.staging`, `pixy.cluster`) report their
faults themselves, or let them pass through one of their callbacks: the disk may by then differ from
the answers given, and recovery has to decide. Nothing else holds anything that a client was
promised, so its faults are contained where they occur. Background jobs are the keeper and the
commits of a consumer group, the fetcher of a partition, and the members, producers and fetchers of
a Kafka cluster; callers that wait for one of them meanwhile get INTERNAL.

The caller gets an id, and the log has the traceback under that id. The id identifies the place in
the code, so a fault that occurs ten thousand times a second is one fault in the log: its traceback
is logged the first time, and once a minute while it persists.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from traceback import walk_tb
from zlib import crc32

import structlog

from pixy.clock import Clock
from pixy.errors import Internal

log = structlog.get_logger(__name__)

OnFault = Callable[[BaseException], None]
"""Called once for each unexpected exception."""

_LOG_AGAIN_S = 60.0
_PLACES_MAX = 1000


def fault_id(fault: BaseException) -> str:
    """Eight hexadecimal digits for the class of an exception, the place that raised it, and the
    innermost line of pixy.
    """
    innermost = ours = ""
    for frame, line in walk_tb(fault.__traceback__):
        module = frame.f_globals.get("__name__", "")
        innermost = f"{module}:{line}"
        if module.startswith("pixy."):
            ours = innermost
    return f"{crc32(f'{type(fault).__qualname__} {ours} {innermost}'.encode()):08x}"


def internal_error(fault: BaseException) -> Internal:
    """The error that callers get for an unexpected exception: no details, only the id to find them
    by.
    """
    return Internal(f"internal error, id {fault_id(fault)}: the daemon's log has the details")


def report_to_loop(fault: BaseException) -> None:
    """An `OnFault` that passes the exception to the running event loop's exception handler."""
    context = {"message": "an exception that nobody expected", "exception": fault}
    asyncio.get_running_loop().call_exception_handler(context)


class FaultLog:
    """Counts and logs contained exceptions.

    Args:
        clock: spaces repeated log entries.

    Attributes:
        count: number of exceptions since the start.
    """

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        # By id, in order of the last occurrence: number of occurrences, and time of the last log
        # entry.
        self._places: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self.count = 0

    def note(self, fault: BaseException) -> None:
        """See `OnFault`."""
        self.count += 1
        place, now = fault_id(fault), self._monotonic()
        times, logged_at = self._places.pop(place, (0, float("-inf")))
        times += 1
        if now - logged_at >= _LOG_AGAIN_S:
            logged_at = now
            log.error("internal error", id=place, times=times, exc_info=fault)
        self._places[place] = times, logged_at
        if len(self._places) > _PLACES_MAX:
            self._places.popitem(last=False)
