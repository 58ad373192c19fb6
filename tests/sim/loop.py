"""An event loop whose time passes only while nobody has anything to do."""

import asyncio
import selectors

__all__ = ["VirtualLoop"]


class _Idle(selectors.SelectSelector):
    """Waits for nothing: time jumps to when the next timer is due."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("everybody waits and no timer is set")
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs callbacks as ever, and makes `time` jump where another loop would sleep. Knows no sockets and no threads."""

    def __init__(self) -> None:
        self._idle = _Idle()
        super().__init__(self._idle)

    def time(self) -> float:
        return self._idle.now
