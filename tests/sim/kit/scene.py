"""Parts that everything in a simulated cluster shares: the loop, the clock, randomness, and the
record of what happened.
"""

from collections import Counter, deque
from random import Random
from typing import Any
from zlib import crc32

from tests.fakes.clock import FakeClock
from tests.sim.kit.lives import LivesLoop

_REMEMBERED = 400


class Scene:
    """Shared state of one run.

    Args:
        seed: determines everything.
        loop: all processes run on it.

    Attributes:
        clock: of all machines.
        counts: number of events by kind.
        failure: the first failure that was noticed where it could not be raised.
        prints: print every event.
        healed: nothing is broken any more.
    """

    def __init__(self, seed: int, loop: LivesLoop, *, prints: bool = False) -> None:
        self.seed = seed
        self.loop = loop
        self.clock = FakeClock(monotonic=0.0)
        self.clock.follow(loop)
        self.counts: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self.prints = prints
        self.healed = False
        self._hash = 0
        self._transcript: deque[str] = deque(maxlen=_REMEMBERED)
        loop.set_exception_handler(self._unhandled)

    def random(self, name: str) -> Random:
        """A source of randomness of its own."""
        return Random(f"{self.seed} {name}")

    @property
    def now(self) -> float:
        """Virtual time."""
        return self.loop.time()

    @property
    def trace_hash(self) -> int:
        """Hash of all events so far."""
        return self._hash

    def note(self, text: str) -> None:
        """Note an event."""
        line = f"{self.loop.time():10.5f} {text}"
        self._hash = crc32(line.encode(), self._hash)
        self._transcript.append(line)
        if self.prints:
            print(line)

    def transcript(self) -> str:
        """The last events, one per line."""
        return "\n".join(self._transcript)

    def fail(self, error: BaseException) -> None:
        """Fail the run with an error, as soon as it can be raised."""
        if self.failure is None:
            self.failure = error

    def _unhandled(self, _: object, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.fail(error if isinstance(error, BaseException) else AssertionError(str(context)))
