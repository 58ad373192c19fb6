"""The work of one connection, done in its turns and charged to it.

Three kinds of work:

    input    chunks that the transport has brought, and jobs that must be done before more of it is looked at (unpacking)
    steps    work that does not wait for input: a step of a handler's task, the end of calls at their deadline or with their client
    charges  what was done elsewhere and took measured time: writing answers that came later, ticks

Input and steps run at once while the connection has credit, or while the turn of the loop is free (`turns`). Otherwise they queue here and
the connection stands in line; each time it is served it does a slice of one kind, then of the other, so neither starves. A connection
that has ended has its last steps in line, too: thousands of calls that lose their client at once stall nobody.

Invariant: the connection is in line while there is work that nothing keeps from being done.
"""

import asyncio
from collections.abc import Callable

from pixy.http2 import Http2Connection
from pixy.rpc.environment import Environment
from pixy.rpc.turns import CREDIT_S, SHARE, TURN_S

__all__ = ["Workload"]

_STEP_S = TURN_S / 2
"""A slice of steps. A streaming handler with more to do lets others have their turn then."""


class Workload(asyncio.BufferedProtocol):
    """Work of a connection, by its share of the loop.

    Args:
        environment: shared by all connections.
    """

    __slots__ = (
        "_credit_s",
        "_held_back",
        "_jobs",
        "_served_s",
        "_stepped",
        "_steps",
        "_unserved",
        "_waiting",
        "_writable",
        "bytes_in",
        "core",
        "environment",
        "now",
        "waits",
    )

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        # When the last slice of work began, in seconds on the server's clock.
        self.now = environment.monotonic()
        self.core = Http2Connection(environment.options.http2, self.now)
        # See `ConnectionCounters`.
        self.bytes_in = self.waits = 0
        # Whether the transport wants more to write.
        self._writable = True
        # What was left of this connection's share of the loop at `now`, in seconds; less than 0 if it has used more, or is new.
        self._credit_s = -CREDIT_S
        # How long the last slice of work took.
        self._served_s = 0.0
        # Chunks that the core has not seen, and work that must be over before it sees more: each job does a step, and returns whether it
        # is done.
        self._unserved: list[bytes] = []
        self._jobs: list[Callable[[], bool]] = []
        # Steps in the order of coming, and whether the last slice in line was one.
        self._steps: list[Callable[[], None]] = []
        self._stepped = False
        # Whether it stands in line for its turn, and whether nothing is read because input waits there.
        self._waiting = self._held_back = False

    # --- for the link -----------------------------------------------------------------------------------------------

    def _serve(self, chunk: bytes, now: float) -> None:
        """Let the core look at as much as one slice has, act on it, and write what was answered."""
        raise NotImplementedError

    def _takes_input(self) -> bool:
        """True unless the connection has ended, or its transport has enough to write."""
        raise NotImplementedError

    def note_held(self) -> None:
        """Tell the server's memory what the connection holds."""
        raise NotImplementedError

    def _regulate(self) -> None:
        """Read from the transport, or do not, as `_held_back` says."""
        raise NotImplementedError

    def broken(self, bug: Exception) -> None:
        """An exception that is a bug has come out of a slice of work."""
        raise NotImplementedError

    def received(self, chunk: bytes) -> None:
        """The transport has brought bytes, which are kept and never changed: serve them, now or in line."""
        self.bytes_in += len(chunk)
        if self._waiting or not self._writable:
            # A transport may bring more of what it has, although it was told to read nothing.
            self._unserved.append(chunk)
            self.hold_back()
            self.note_held()
            return
        now = self.environment.monotonic()
        # Credit comes with time.
        self._credit_s = min(self._credit_s + (now - self.now) * SHARE, CREDIT_S)
        turns = self.environment.turns
        if self._credit_s > 0:
            self._serve(chunk, now)
        elif turns.free:
            self._serve(chunk, now)
            turns.charge(self._served_s)
        else:
            self._unserved.append(chunk)
            self._wait_turn()
            return
        if self.core.pending:
            self._wait_turn()

    def _has_input(self) -> bool:
        return bool(self._jobs or self._unserved or self.core.pending)

    def _forget_input(self) -> None:
        self._unserved.clear()
        self._jobs.clear()

    # --- for calls --------------------------------------------------------------------------------------------------

    def do(self, job: Callable[[], bool]) -> None:
        """Do work in steps. The client's next bytes are not looked at before it is done.

        Args:
            job: does one step, of a fraction of a millisecond; returns whether it was the last one.
        """
        if self._jobs or self.environment.monotonic() - self.now >= TURN_S or not job():
            self.do_later(job)

    def do_later(self, job: Callable[[], bool]) -> None:
        """As `do`, from the connection's next turn on."""
        self._jobs.append(job)
        self._wait_turn()

    def in_turn(self, step: Callable[[], None]) -> None:
        """Run a step as soon as it is the connection's turn: at once, or later in line."""
        if self.maybe_begin_step():
            self._run(step)
            self.end_step()
        else:
            self.queue(step)

    def maybe_begin_step(self) -> bool:
        """Begin a step out of line, False if it has to `queue`. `end_step` follows."""
        if self._waiting:
            return False
        now = self.environment.monotonic()
        self._credit_s = min(self._credit_s + (now - self.now) * SHARE, CREDIT_S)
        self.now = now
        return self._credit_s > 0 or self.environment.turns.free

    def end_step(self) -> None:
        """A step out of line is over."""
        indebted = self._credit_s <= 0
        self._spend()
        if indebted:
            self.environment.turns.charge(self._served_s)

    def queue(self, step: Callable[[], None]) -> None:
        """Run a step in line."""
        self._steps.append(step)
        self._wait_turn()

    @property
    def step_over(self) -> bool:
        """True when a step that began at `now` has taken as long as it may."""
        return self.environment.monotonic() - self.now >= _STEP_S

    def charge(self, seconds: float) -> None:
        """Charge work that was done elsewhere."""
        self._credit_s = max(self._credit_s - seconds, -CREDIT_S)
        if self._credit_s <= 0:
            self.environment.turns.charge(seconds)

    # --- in line ----------------------------------------------------------------------------------------------------

    def work(self) -> bool:
        """See `Worker`."""
        input_waits = self._takes_input() and self._has_input()
        if self._steps and not (self._stepped and input_waits):
            self._stepped = True
            self._take_steps()
        elif input_waits:
            self._stepped = False
            self._serve_input()
        self._waiting = bool(self._steps) or (self._takes_input() and self._has_input())
        if self._held_back and not self._has_input():
            self._held_back = False
            self._regulate()
        return self._waiting

    def hold_back(self) -> None:
        """See `Worker`."""
        if not self._held_back and self._waiting and self._has_input():
            self._held_back = True
            self._regulate()

    def _wait_turn(self) -> None:
        if not self._waiting:
            self._waiting = True
            self.waits += 1
            self.environment.turns.wait(self)

    def _take_steps(self) -> None:
        self.now = self.environment.monotonic()
        self._run(self._steps.pop(0))
        while self._steps and not self.step_over:
            self._run(self._steps.pop(0))
        self._spend()

    def _serve_input(self) -> None:
        if self._jobs:
            self.now = self.environment.monotonic()
            self._run(self._do_job)
            self._spend()
        else:
            chunk = self._unserved.pop(0) if self._unserved and not self.core.pending else b""
            self._serve(chunk, self.environment.monotonic())

    def _do_job(self) -> None:
        if self._jobs[0]():
            del self._jobs[0]

    def _run(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as bug:
            self.broken(bug)

    def _spend(self) -> None:
        """The work since `now` is charged."""
        self._served_s = served_s = self.environment.monotonic() - self.now
        self._credit_s = max(self._credit_s - served_s, -CREDIT_S)
