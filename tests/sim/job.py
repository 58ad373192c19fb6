"""Jobs of a simulated thread that can be stopped at each call on the disk, so that others run in
between.

A job runs on a thread of its own, but never concurrently: the caller that resumes it waits until it
pauses or ends. So the order of events still follows from a seed.
"""

import threading
from collections.abc import Callable
from typing import Any

from tests.sim.disk import Ended


class Job:
    """One job.

    Args:
        work: the function to run.
        pauses: predicate called at each call on the disk: True pauses the job there.

    Attributes:
        ended: True once it has returned or raised.
        result, error: its outcome.
    """

    def __init__(self, work: Callable[[], Any], pauses: Callable[[], bool]) -> None:
        self._work = work
        self._pauses = pauses
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self._killed = False
        self._thread = threading.Thread(target=self._run, name="simulated job", daemon=True)
        self.ended = False
        self.result: Any = None
        self.error: BaseException | None = None

    def go_on(self) -> None:
        """Run until it pauses or ends."""
        if not self._thread.ident:
            self._thread.start()
        self._go.release()
        self._stopped.acquire()

    def finish(self) -> None:
        """Run to its end, without a pause."""
        self._pauses = lambda: False
        self.go_on()

    def kill(self) -> None:
        """End it where it is, because its process ends."""
        if self._thread.ident and not self.ended and threading.current_thread() is not self._thread:
            self._killed = True
            self.go_on()

    def between_calls(self) -> None:
        """Called by the disk before each call: pauses if this job makes the call."""
        if threading.current_thread() is not self._thread:
            return
        if not self._killed and self._pauses():
            self._stopped.release()
            self._go.acquire()
        if self._killed:
            raise Ended

    def _run(self) -> None:
        self._go.acquire()
        try:
            self.result = self._work()
        except BaseException as error:
            self.error = error
        self.ended = True
        self._stopped.release()
