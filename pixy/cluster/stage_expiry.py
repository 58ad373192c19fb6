"""When stages have waited too long: each sink that has stages and does nothing for a time loses them, and so does one that does something
the stages that it has passed by.

A job that runs for months leaves a stage behind whenever one of its tasks is killed, and its sink is never quiet. So the time of a stage
runs from the first publication of its sink that is without it, too; more of the stage begins it anew.

Kept in memory only: what was before this process began counts from the first look on.
"""

from collections.abc import Callable, Iterator

import structlog

from pixy.cluster.sinks import StageName
from pixy.cluster.stages import Stage, Stages
from pixy.cluster.turns import in_turns

__all__ = ["StageExpiry"]

log = structlog.get_logger(__name__)

_SINKS_PER_TURN = 200


class StageExpiry:
    """Drops the stages of sinks that do nothing, and stages that their sinks have passed by.

    Args:
        stages: what is staged.
        expiry_s: for how long a sink may do nothing and a stage be passed by, seconds.
        now_ms: an ascending time, milliseconds.
        may_go: whether nobody relies on a stage.
    """

    def __init__(
        self, stages: Stages, expiry_s: float, now_ms: Callable[[], int], may_go: Callable[[Stage], bool]
    ) -> None:
        self._stages = stages
        self._expiry_ms = round(expiry_s * 1000)
        self._now_ms = now_ms
        self._may_go = may_go
        # When each sink that has stages last did anything.
        self._active_ms: dict[str, int] = {}
        # When its sink first published without a stage. Invariant: none of a stage that has grown since.
        self._passed_ms: dict[StageName, int] = {}

    def touch(self, sink_id: str) -> None:
        """A sink does something; that matters only to the stages that it has."""
        if self._stages.has_sink(sink_id):
            self._active_ms[sink_id] = self._now_ms()

    def staged(self, name: StageName) -> None:
        """Something of a stage comes."""
        self.touch(name.sink_id)
        self._passed_ms.pop(name, None)

    def published(self, sink_id: str) -> None:
        """A sink has published; what it still has was not among it."""
        for stage in self._stages.of_sink(sink_id):
            if self._may_go(stage):
                self._passed_ms.setdefault(stage.name, self._now_ms())

    def expire(self) -> None:
        """Drop what has waited too long: at once, or with many sinks in the turns of the loop that follow."""
        in_turns(self._expire(self._now_ms()))

    def _expire(self, now_ms: int) -> Iterator[None]:
        for number, sink_id in enumerate(self._stages.sinks(), 1):
            if not number % _SINKS_PER_TURN:
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
