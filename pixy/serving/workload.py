"""The work of one connection, scheduled fairly and charged to it.

Three kinds of work:

    input      chunks from the transport, and jobs that precede more of it (decompression)
    steps      work that does not depend on input: a step of a handler's task, the end of calls at
               their deadline or with their client
    charges    work done elsewhere, in measured time: writing answers that came later, ticks

Input and steps run at once while the connection has credit, or while the scheduler has time in this
iteration of the loop. Otherwise they queue here, and the connection queues in the scheduler; each
of its slices is of one kind, then of the other, so neither starves. The last steps of a lost
connection queue as well: thousands of calls that lose their client at once stall nobody.

Invariant: the connection is in the scheduler's queue while it has work that nothing prevents.
"""

from collections.abc import Callable
from typing import Protocol

from pixy.serving.environment import Environment
from pixy.serving.fair_scheduler import CREDIT_S, QUANTUM_S, SHARE
from pixy.serving.protocol import ConnectionCore

_STEP_S = QUANTUM_S / 2
"""Slice of steps. A streaming handler with more to do yields to the others then."""


class Served(Protocol):
    """A connection's link, as its workload knows it.

    Attributes:
        core: of the connection's protocol.
    """

    core: ConnectionCore

    def serve(self, chunk: bytes, now: float) -> None:
        """Let the protocol act on one slice of input, and see that the answers are written."""

    def takes_input(self) -> bool:
        """False when the connection has ended, or its transport is full."""

    def note_held(self) -> None:
        """Report the bytes that the connection holds to the server's memory."""

    def regulate(self) -> None:
        """Pause reading while input is held back; otherwise resume it."""

    def broken(self, bug: Exception) -> None:
        """End the connection: an exception of a slice is a bug."""


class Workload:
    """The share of one connection in the event loop, and its work that waits for it.

    Args:
        served: the connection's link.
        environment: shared by all connections.
        now: seconds on the server's clock.

    Attributes:
        now: begin of the last slice of work, in seconds on the server's clock. It is the
            connection's time: everything in a slice happens then.
        bytes_in: bytes received.
        waits: times that the connection has queued in the scheduler.
        held_back: nothing is read, because input queues here.
    """

    __slots__ = (
        "_credit_s",
        "_jobs",
        "_monotonic",
        "_queued",
        "_scheduler",
        "_served",
        "_stepped",
        "_steps",
        "_unserved",
        "bytes_in",
        "held_back",
        "now",
        "waits",
    )

    def __init__(self, served: Served, environment: Environment, now: float) -> None:
        self._served = served
        self._scheduler = environment.scheduler
        self._monotonic = environment.monotonic
        self.now = now
        self.bytes_in = self.waits = 0
        # Rest of the connection's share at `now`, in seconds; negative for a debt.
        self._credit_s = -CREDIT_S
        # Chunks that the protocol has not seen, and jobs that precede them. A job does one step,
        # and returns True when it is done.
        self._unserved: list[bytes] = []
        self._jobs: list[Callable[[], bool]] = []
        # Steps in the order of arrival, and whether the last queued slice was one.
        self._steps: list[Callable[[], None]] = []
        self._stepped = False
        # The connection is in the scheduler's queue.
        self._queued = self.held_back = False

    # --- input ------------------------------------------------------------------------------------

    def received(self, chunk: bytes) -> None:
        """Serve bytes from the transport, now or later. They are kept, and must never change."""
        self.bytes_in += len(chunk)
        if self._queued or not self._served.takes_input():
            # A transport may bring buffered input although reading is paused.
            self._unserved.append(chunk)
            self.hold_back()
            self._served.note_held()
            return
        now = self._monotonic()
        # Credit accrues with time.
        credit_s = self._credit_s + (now - self.now) * SHARE
        self._credit_s = credit_s if credit_s < CREDIT_S else CREDIT_S
        indebted = credit_s <= 0
        if indebted and not self._scheduler.has_time:
            self._unserved.append(chunk)
            self._enqueue()
            return
        self.now = now
        self._served.serve(chunk, now)
        spent_s = self._spend()
        if indebted:
            self._scheduler.charge(spent_s)
        if self._served.core.pending:
            self._enqueue()

    @property
    def unserved_bytes(self) -> int:
        """Bytes that the protocol has not seen."""
        return sum(map(len, self._unserved)) if self._unserved else 0

    def resume(self) -> None:
        """The transport takes output again: go on with input that was left."""
        if self._has_input():
            self._enqueue()

    def forget_input(self) -> None:
        """Drop all input: the connection has ended."""
        self._unserved.clear()
        self._jobs.clear()

    def do(self, job: Callable[[], bool]) -> None:
        """Do work in steps, before the client's next bytes are looked at.

        Args:
            job: does one step, of a fraction of a millisecond; returns True after the last one.
        """
        if self._jobs or self._monotonic() - self.now >= QUANTUM_S or not job():
            self.do_later(job)

    def do_later(self, job: Callable[[], bool]) -> None:
        """As `do`, from the connection's next slice on."""
        self._jobs.append(job)
        self._enqueue()

    # --- steps ------------------------------------------------------------------------------------

    def run(self, step: Callable[[], None]) -> None:
        """Run a step, now or in the connection's next slice."""
        if self.maybe_begin_step():
            self._run(step)
            self.end_step()
        else:
            self.queue(step)

    def maybe_begin_step(self) -> bool:
        """Begin a step, which `end_step` ends; False if it has to `queue`."""
        if self._queued:
            return False
        now = self._monotonic()
        self._credit_s = min(self._credit_s + (now - self.now) * SHARE, CREDIT_S)
        self.now = now
        return self._credit_s > 0 or self._scheduler.has_time

    def end_step(self) -> None:
        """End a step that did not queue."""
        indebted = self._credit_s <= 0
        spent_s = self._spend()
        if indebted:
            self._scheduler.charge(spent_s)

    def queue(self, step: Callable[[], None]) -> None:
        """Run a step in a slice of the connection."""
        self._steps.append(step)
        self._enqueue()

    @property
    def step_over(self) -> bool:
        """True when the step that began at `now` has used its time."""
        return self._monotonic() - self.now >= _STEP_S

    def charge(self, seconds: float) -> None:
        """Charge work that was done elsewhere."""
        credit_s = self._credit_s - seconds
        self._credit_s = credit_s if credit_s > -CREDIT_S else -CREDIT_S
        if credit_s <= 0:
            self._scheduler.charge(seconds)

    # --- for the scheduler ------------------------------------------------------------------------

    def run_slice(self) -> bool:
        """See `Schedulable`."""
        input_waits = self._served.takes_input() and self._has_input()
        if self._steps and not (self._stepped and input_waits):
            self._stepped = True
            self._take_steps()
        elif input_waits:
            self._stepped = False
            self._serve_input()
        self._queued = bool(self._steps) or (self._served.takes_input() and self._has_input())
        if self.held_back and not self._has_input():
            self.held_back = False
            self._served.regulate()
        return self._queued

    def hold_back(self) -> None:
        """See `Schedulable`."""
        if not self.held_back and self._queued and self._has_input():
            self.held_back = True
            self._served.regulate()

    # --- inside -----------------------------------------------------------------------------------

    def _has_input(self) -> bool:
        return bool(self._jobs or self._unserved or self._served.core.pending)

    def _enqueue(self) -> None:
        if not self._queued:
            self._queued = True
            self.waits += 1
            self._scheduler.enqueue(self)

    def _take_steps(self) -> None:
        self.now = self._monotonic()
        self._run(self._steps.pop(0))
        while self._steps and not self.step_over:
            self._run(self._steps.pop(0))
        self._spend()

    def _serve_input(self) -> None:
        if self._jobs:
            self.now = self._monotonic()
            self._run(self._do_job)
            self._spend()
        else:
            chunk = self._unserved.pop(0) if self._unserved and not self._served.core.pending else b""
            now = self.now = self._monotonic()
            self._served.serve(chunk, now)
            self._spend()

    def _do_job(self) -> None:
        if self._jobs[0]():
            del self._jobs[0]

    def _run(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as bug:
            self._served.broken(bug)

    def _spend(self) -> float:
        """Charge the time since `now`, and return it."""
        spent_s = self._monotonic() - self.now
        credit_s = self._credit_s - spent_s
        self._credit_s = credit_s if credit_s > -CREDIT_S else -CREDIT_S
        return spent_s
