"""Expiry of stages: an inactive sink loses all its stages, an active one those that it has passed
by.

A job that runs for months leaves a stage behind whenever one of its tasks is killed, and its sink
is never inactive. So a stage also ages from the first publication of its sink that leaves it out;
more data for the stage resets its age.

Kept in memory only: the age of stages from before a restart counts from the first check after it.
"""

from collections.abc import Callable, Iterator

import structlog

from pixy.aio.steps import run_in_steps
from pixy.staging.epochs import StageName
from pixy.staging.stage import Stage
from pixy.staging.stages import Stages

log = structlog.get_logger(__name__)

_SINKS_PER_ITERATION = 200


class StageExpiry:
    """Drops the stages of inactive sinks, and stages that active sinks have passed by.

    Args:
        stages: the stages.
        expiry_s: seconds after which an inactive sink's stages, and stages passed by, expire.
        now_ms: an ascending clock, milliseconds.
        may_go: tells whether a stage may be dropped because nothing depends on it.
    """

    def __init__(
        self, stages: Stages, expiry_s: float, now_ms: Callable[[], int], may_go: Callable[[Stage], bool]
    ) -> None:
        self._stages = stages
        self._expiry_ms = round(expiry_s * 1000)
        self._now_ms = now_ms
        self._may_go = may_go
        # Time of the last activity of each sink that has stages.
        self._active_ms: dict[str, int] = {}
        # Time of the first publication of its sink without a stage. Invariant: no entry of a stage
        # that has grown since.
        self._passed_ms: dict[StageName, int] = {}

    def touch(self, sink_id: str) -> None:
        """Record activity of a sink; without stages it has no effect."""
        if self._stages.has_sink(sink_id):
            self._active_ms[sink_id] = self._now_ms()

    def staged(self, name: StageName) -> None:
        """Record that data for a stage has arrived."""
        self.touch(name.sink_id)
        self._passed_ms.pop(name, None)

    def published(self, sink_id: str) -> None:
        """Record a publication of a sink: its remaining stages were passed by."""
        for stage in self._stages.of_sink(sink_id):
            if self._may_go(stage):
                self._passed_ms.setdefault(stage.name, self._now_ms())

    def expire(self) -> None:
        """Drop expired stages: at once, or with many sinks over the next iterations of the loop."""
        run_in_steps(self._expire(self._now_ms()))

    def _expire(self, now_ms: int) -> Iterator[None]:
        for number, sink_id in enumerate(self._stages.sinks(), 1):
            if not number % _SINKS_PER_ITERATION:
                yield
            quiet = now_ms - self._active_ms.setdefault(sink_id, now_ms) >= self._expiry_ms
            stages = [
                stage
                for stage in self._stages.of_sink(sink_id)
                if (quiet or now_ms - self._passed_ms.get(stage.name, now_ms) >= self._expiry_ms)
                and self._may_go(stage)
            ]
            if stages:
                log.warning("stages have expired and are dropped", sink=sink_id, stages=len(stages))
                self._stages.remove(stages, lambda: None)
        self._active_ms = {
            sink_id: active_ms
            for sink_id, active_ms in self._active_ms.items()
            if now_ms - active_ms < self._expiry_ms
        }
        self._passed_ms = {
            name: passed_ms
            for name, passed_ms in self._passed_ms.items()
            if self._stages.get(name) is not None
        }
