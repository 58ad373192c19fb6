"""The state machine of raft group `sinks`: the last epoch of each sink, and unfinished
publications.

Pure and deterministic. A sink publishes stages under ascending epochs. `PublishStages` is the
commit point of a publication: once applied, it has a number above that of every earlier
publication, and it will be completed whatever fails. Its parts become entries of the partitions'
raft groups, in the order of the numbers; when every partition has its part durably and the stages
are removed, the publication is finished and forgotten. Until then it is the record that these
stages were published.

The proposer proves that the stages are sealed and complete, and that their topics exist: their
files are not part of this state. Conditions that concurrent proposals could violate are decided
here: the epoch, the sink's owner, and that no stage is published twice.

The road not taken: sinks in `groups-n`. A publication is one entry whichever its sink, and numbers
must ascend over all sinks.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pixy.cluster.newer_command import newer_command
from pixy.errors import FailedPrecondition, PixyError, ResourceExhausted
from pixy.proto.state_pb2 import (
    PublicationPart,
    PublicationRecord,
    PublishStages,
    SinkRecord,
    SinksCommand,
    SinksRecord,
)
from pixy.staging import NotNew, Sink, StageName, judge_epoch

__all__ = ["SINKS_GROUP", "SINKS_MAX", "Publication", "SinksState"]

SINKS_GROUP = 900
"""The raft group of this state machine; those of `groups-n` are below."""

SINKS_MAX = 100_000
"""Number of sinks remembered; a publication by one more is refused."""

_STATE_KEY = b"sinks"
_SINK_KEY = b"sink\0"
_PUBLICATION_KEY = b"publication\0"


class Publication(NamedTuple):
    """An unfinished publication."""

    number: int
    sink_id: str
    stage_ids: Sequence[str]
    parts: Sequence[PublicationPart]


class SinksState:
    """Sinks and unfinished publications.

    Attributes:
        sinks: by id.
        publications: the unfinished ones, by number, ascending.
        next_publication: number of the next one. Invariant: above every number ever assigned.
    """

    def __init__(self) -> None:
        self.sinks: dict[str, Sink] = {}
        self.publications: dict[int, Publication] = {}
        self.next_publication = 1
        # Stages of unfinished publications, and the number of these publications of each sink.
        self._published: set[StageName] = set()
        self._unfinished: Counter[str] = Counter()

    def apply(self, payload: bytes, term: int = 0) -> Publication | NotNew | PixyError | None:
        """Apply one command; returns its result for the proposer."""
        command = SinksCommand.FromString(payload)
        match command.WhichOneof("command"):
            case "publish_stages":
                return self._publish(command.publish_stages)
            case "finish_publications":
                for number in command.finish_publications.publications:
                    finished = self.publications.pop(number, None)
                    if finished is not None:
                        self._published.difference_update(_stages(finished))
                        self._unfinished[finished.sink_id] -= 1
                        if not self._unfinished[finished.sink_id]:
                            del self._unfinished[finished.sink_id]
            case "expire_sinks":
                expired = command.expire_sinks
                for sink_id in expired.sink_ids:
                    if self.is_inactive_since(sink_id, expired.before_ms):
                        del self.sinks[sink_id]
            case _:
                raise newer_command("state group sinks")
        return None

    def is_published(self, stage: StageName) -> bool:
        """True when a stage belongs to an unfinished publication."""
        return stage in self._published

    def judge(self, asked: PublishStages) -> NotNew | PixyError | None:
        """Reason why a sink may not publish `asked`, None if it may; see `judge_epoch`."""
        sink = self.sinks.get(asked.sink_id)
        if sink is None:
            if len(self.sinks) < SINKS_MAX:
                return None
            return ResourceExhausted(f"{SINKS_MAX} sinks are remembered, which is the limit")
        return judge_epoch(sink, asked)

    def is_inactive_since(self, sink_id: str, before_ms: int) -> bool:
        """True when the sink exists, has published nothing since `before_ms`, and has no unfinished
        publication.
        """
        sink = self.sinks.get(sink_id)
        return sink is not None and sink.active_ms < before_ms and sink_id not in self._unfinished

    def _publish(self, command: PublishStages) -> Publication | NotNew | PixyError:
        refusal = self.judge(command)
        if refusal is not None:
            return refusal
        publication = Publication(
            self.next_publication, command.sink_id, tuple(command.stage_ids), tuple(command.parts)
        )
        for stage in _stages(publication):
            if stage in self._published:
                return FailedPrecondition(
                    f"stage {stage.stage_id} of sink {stage.sink_id} was published before"
                )
        before = self.sinks.get(command.sink_id)
        active_ms = command.timestamp_ms if before is None else max(before.active_ms, command.timestamp_ms)
        self.sinks[command.sink_id] = Sink(command.query_id, command.epoch, active_ms)
        self.next_publication += 1
        self.publications[publication.number] = publication
        self._add_unfinished(publication)
        return publication

    def _add_unfinished(self, publication: Publication) -> None:
        self._published.update(_stages(publication))
        self._unfinished[publication.sink_id] += 1

    # --- checkpoints ------------------------------------------------------------------------------

    def snapshot(self) -> Iterable[tuple[bytes, bytes]]:
        """The whole state as checkpoint records.

        May be consumed on another thread while commands are applied.
        """
        return _records(self.next_publication, self.sinks.copy(), list(self.publications.values()))

    def restore(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        """Replace the whole state by a checkpoint's records."""
        self.sinks, self.publications = {}, {}
        self._published.clear()
        self._unfinished.clear()
        for key, value in records:
            if key.startswith(_SINK_KEY):
                sink = SinkRecord.FromString(value)
                self.sinks[sink.sink_id] = Sink(sink.query_id, sink.last_epoch, sink.active_ms)
            elif key.startswith(_PUBLICATION_KEY):
                record = PublicationRecord.FromString(value)
                publication = Publication(
                    record.publication, record.sink_id, tuple(record.stage_ids), tuple(record.parts)
                )
                self.publications[publication.number] = publication
                self._add_unfinished(publication)
            else:
                self.next_publication = SinksRecord.FromString(value).next_publication


def _stages(publication: Publication) -> list[StageName]:
    return [StageName(publication.sink_id, stage_id) for stage_id in publication.stage_ids]


def _records(
    next_publication: int, sinks: Mapping[str, Sink], publications: Sequence[Publication]
) -> Iterable[tuple[bytes, bytes]]:
    yield _STATE_KEY, SinksRecord(next_publication=next_publication).SerializeToString()
    for sink_id, (query_id, last_epoch, active_ms) in sinks.items():
        sink = SinkRecord(sink_id=sink_id, query_id=query_id, last_epoch=last_epoch, active_ms=active_ms)
        yield _SINK_KEY + sink_id.encode(), sink.SerializeToString()
    for number, sink_id, stage_ids, parts in publications:
        record = PublicationRecord(publication=number, sink_id=sink_id, stage_ids=stage_ids, parts=parts)
        yield _PUBLICATION_KEY + b"%d" % number, record.SerializeToString()
