"""Reports of a stop: what it waits for, told to whoever waits for it.

A drain may take `shutdown_timeout`, for instance because a client has a message that it neither
acks nor returns. Silence for half a minute looks like a daemon that hangs.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import structlog

log = structlog.get_logger(__name__)

_FIRST_S = 0.5
"""Most drains are over by then."""
_AGAIN_S = 10.0


async def report_drain(
    waits: Callable[[], Sequence[str]],
    limit_s: float,
    closing_s: float,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    first_s: float = _FIRST_S,
) -> None:
    """Log what is waited for and until when, soon and then every 10 seconds, until cancelled.

    Args:
        waits: what is waited for at the moment, such as `1 ack`.
        limit_s: when the drain is cut short.
        closing_s: how long closing everything may take after that.
    """
    until = now() + timedelta(seconds=limit_s)
    end = until + timedelta(seconds=closing_s)
    await asyncio.sleep(first_s)
    while True:
        waited_for = ", ".join(waits())
        if not waited_for:
            waited_for, until = "connections and files to close", end
        log.info(
            f"waiting until {until:%H:%M:%S}Z at the latest for {waited_for}; a second SIGTERM or Ctrl-C ends it at once"
        )
        await asyncio.sleep(_AGAIN_S)
