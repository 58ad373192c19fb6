"""Exceptions that nobody expected: what each of them ends, and how an operator finds it.

    broken                                      ends                       told to
    storage or a state machine                  the process                `Daemon.on_fault`
    a handler, or a job that serves one call    the call, INTERNAL         `FaultLog.note`
    the HTTP/2 core, a receipt, an event        the connection             `FaultLog.note`
    a job in the background                     nothing: it begins anew    `FaultLog.note`
        after a pause

Storage and the state machines (`pixy.storage`, `pixy.cluster`) tell of their faults themselves, or let them pass through a callback of
theirs: what is on disk and what was answered may differ by then, and recovery decides. Everything else holds nothing that a client was
promised, so it is contained where it occurs. Jobs in the background are the keeper and the commits of a consumer group, the fetcher of a
partition, and the members, producers and fetchers of a Kafka cluster; who waits for one of them is told INTERNAL meanwhile.

The caller is told an id, and the log has the traceback under that id. The id is that of the place in the code, so a fault that occurs ten
thousand times in a second is one in the log: its traceback is logged the first time and once a minute as long as it goes on.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from traceback import walk_tb
from zlib import crc32

import structlog

from pixy.clock import Clock
from pixy.errors import Internal

__all__ = ["FaultLog", "OnFault", "fault_id", "internal_error", "report_to_loop"]

log = structlog.get_logger(__name__)

OnFault = Callable[[BaseException], None]
"""Told once of each exception that nobody expected."""

_LOG_AGAIN_S = 60.0
_PLACES_MAX = 1000


def fault_id(fault: BaseException) -> str:
    """Eight hexadecimal digits: the class of an exception, where it was raised, and by which line of pixy."""
    innermost = ours = ""
    for frame, line in walk_tb(fault.__traceback__):
        module = frame.f_globals.get("__name__", "")
        innermost = f"{module}:{line}"
        if module.startswith("pixy."):
            ours = innermost
    return f"{crc32(f'{type(fault).__qualname__} {ours} {innermost}'.encode()):08x}"


def internal_error(fault: BaseException) -> Internal:
    """What a caller is told of an exception that nobody expected: nothing but where to find it."""
    return Internal(f"internal error, id {fault_id(fault)}: the daemon's log has the details")


def report_to_loop(fault: BaseException) -> None:
    """An `OnFault` that has the running event loop log the exception."""
    context = {"message": "an exception that nobody expected", "exception": fault}
    asyncio.get_running_loop().call_exception_handler(context)


class FaultLog:
    """Counts and logs exceptions that were contained.

    Args:
        clock: spaces the repetitions in the log.

    Attributes:
        count: how many there were since the start.
    """

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        # By id, the one that occurred last at the end: how often, and when it was logged.
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
