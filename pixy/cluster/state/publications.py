"""The state machine of raft group `sinks`: the last epoch of each sink, and unfinished
publications.

Pure and deterministic. A sink publishes stages under ascending epochs. `PublishStages` is the
commit point of a publication: once applied, it has a number above that of every earlier
publication, and it will be completed whatever fails. Its parts become entries of the partitions'
raft groups, in the order of the numbers; when every partition has its part durably and the stages
are removed, the publication is finished and forgotten. Until then it is the record that these
stages were published.

The stages are those of `stage_table`, or directories of one node, whose partitions have no other
replica. For the latter the proposer proves that they are sealed and complete; for all, that their
topics exist. Conditions that concurrent proposals could violate are decided here: the epoch, the
sink's owner, and that no stage is published twice.

Each part of a publication names its predecessor: the newest unfinished publication with records for
the same partition. Earlier ones are in the partition already. So a partition that takes none before
its predecessor has all of them, in the order of the numbers, whoever proposes them.

The road not taken: sinks in `groups-n`. A publication is one entry whichever its sink, and numbers
must ascend over all sinks.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from pixy.cluster.state.commands import decoded, undecodable
from pixy.cluster.state.newer_command import newer_command
from pixy.cluster.state.stage_table import (
    RELEASED_PER_STEP,
    TOTALS_PER_STEP,
    GoneStages,
    ReplicatedStage,
    StageTable,
    merge_in_steps,
    merged_parts,
)
from pixy.entry_ids import INDEX_MAX
from pixy.errors import FailedPrecondition, PixyError, ResourceExhausted, VoidEntry
from pixy.parsed_messages import parsed
from pixy.proto.state_pb2 import (
    ExpireSinks,
    PieceRecord,
    PublicationPart,
    PublicationRecord,
    PublishedStage,
    PublishStages,
    SinkRecord,
    SinksCommand,
    SinksRecord,
)
from pixy.staging import NotNew, Sink, StageName, judge_epoch

SINKS_GROUP = 900
"""The raft group of this state machine; those of `groups-n` are below."""

SINKS_MAX = 100_000
"""Number of sinks remembered; a publication by one more is refused."""

_PUBLISH_TAG = SinksCommand(publish_stages=PublishStages()).SerializeToString()[:1]
_STATE_KEY = b"sinks"
_SINK_KEY = b"sink\0"
_PUBLICATION_KEY = b"publication\0"


class StagePieces(NamedTuple):
    """A replicated stage of a publication; `pieces` are encoded `PieceRecord`s, by number."""

    number: int
    stage_id: str
    pieces: Sequence[bytes]


class Publication(NamedTuple):
    """An unfinished publication.

    `stages` are its stages if they are replicated, else empty.
    """

    number: int
    sink_id: str
    stage_ids: Sequence[str]
    parts: Sequence[PublicationPart]
    stages: Sequence[StagePieces] = ()


class _Prepared:
    """Contents of the next publication, made ahead of its command.

    Attributes:
        payload: the command.
        stages, parts, pieces: see `Publication`; the parts of the replicated stages.
        noted: number of the parts that are in the table of partitions.
        is_complete: nothing is missing.
    """

    __slots__ = ("is_complete", "noted", "parts", "payload", "pieces", "stages")

    def __init__(self, payload: bytes, stages: Sequence[ReplicatedStage]) -> None:
        self.payload = payload
        self.stages = stages
        self.parts: list[PublicationPart] = []
        self.pieces: list[StagePieces] = []
        self.noted = 0
        self.is_complete = False


class _Left(NamedTuple):
    """The rest of a publication that is finished, to be released."""

    number: int
    parts: list[PublicationPart]
    pieces: list[Sequence[bytes]]


class Finished(NamedTuple):
    """Publications that are forgotten."""

    publications: Sequence[Publication]


SinksResult = Publication | Finished | GoneStages | NotNew | PixyError | int | None
"""Result of a command; the number is that of a stage, or its size in bytes."""


class SinksState:
    """Sinks and unfinished publications.

    Attributes:
        sinks: by id.
        sinks_of: numbers of sinks by address of the client that began them. No decision of the
            state depends on it: nodes of earlier releases have none.
        publications: the unfinished ones, by number, ascending.
        next_publication: number of the next one. Invariant: above every number ever assigned.
        table: the replicated stages.
    """

    def __init__(self) -> None:
        self.sinks: dict[str, Sink] = {}
        self.sinks_of: Counter[str] = Counter()
        self.publications: dict[int, Publication] = {}
        self.next_publication = 1
        self.table = StageTable()
        # Stages of unfinished publications, and the number of these publications of each sink.
        self._published: set[StageName] = set()
        self._published_numbers: set[int] = set()
        self._unfinished: Counter[str] = Counter()
        # Numbers of the publications of each partition, ascending. Those that are finished do not
        # count, and go with `release`; the one that is prepared does not count yet.
        self._by_partition: dict[tuple[bytes, int], list[int]] = {}
        # Invariant: the next command applied is its, or undoes it.
        self._prepared: _Prepared | None = None
        self._left: deque[_Left] = deque()

    def apply(self, payload: bytes, term: int = 0) -> SinksResult:
        """Apply one command; returns its result for the proposer."""
        command = decoded(SinksCommand, payload)
        if isinstance(command, VoidEntry):
            return command
        result: SinksResult = None
        prepared = self._take_prepared(payload)
        match command.WhichOneof("command"):
            case "publish_stages":
                result = self._publish(command.publish_stages, prepared)
            case "finish_publications":
                result = self._finish(command.finish_publications.publications)
            case "expire_sinks":
                self._expire(command.expire_sinks)
            case "open_stage":
                opened = command.open_stage
                name = StageName(opened.sink_id, opened.stage_id)
                result = self._was_published(name) or self.table.open(opened)
            case "add_piece":
                result = self.table.add_piece(command.add_piece)
            case "discard_stages":
                result = self.table.discard(command.discard_stages)
            case "expire_stages":
                result = self.table.expire(command.expire_stages)
            case "touch_sink":
                self.table.touch(command.touch_sink)
            case "skip_numbers":
                result = self._skip(command.skip_numbers.count)
            case _:
                raise newer_command("state group sinks")
        if prepared is not None and not isinstance(result, Publication):
            self._undo(prepared)
        return result

    def prepare(self, payload: bytes | bytearray) -> Iterator[None] | None:
        """Work ahead of `apply` for a command that takes long, in steps: it makes that quick, and
        changes nothing. None for others, and once it is done.
        """
        if payload[:1] != _PUBLISH_TAG:
            return None
        if self._prepared is not None and self._prepared.payload == payload:
            return None
        command = decoded(SinksCommand, bytes(payload))
        if isinstance(command, VoidEntry) or not command.publish_stages.replicated:
            return None
        asked = command.publish_stages
        stages = self.table.sealed(asked.sink_id, asked.stage_ids, asked.next_stage)
        if isinstance(stages, PixyError) or self.judge(asked) is not None:
            return None  # it will be refused
        if sum(map(_items, stages)) <= TOTALS_PER_STEP:
            return None
        self._take_prepared(b"")
        self._prepared = _Prepared(bytes(payload), stages)
        return self._prepare(self._prepared)

    def _prepare(self, prepared: _Prepared) -> Iterator[None]:
        yield from merge_in_steps(prepared.stages, prepared.parts)
        while prepared.noted < len(prepared.parts) and self._prepared is prepared:
            some = prepared.parts[prepared.noted : prepared.noted + TOTALS_PER_STEP]
            self._put_behind(some, self.next_publication)
            prepared.noted += len(some)
            yield
        items = 0
        for stage in prepared.stages:
            prepared.pieces.append(_pieces_of(stage))
            items += _items(stage)
            if items > TOTALS_PER_STEP:
                items = 0
                yield
        prepared.is_complete = True

    def _take_prepared(self, payload: bytes) -> _Prepared | None:
        """Take what was prepared for a command; undo what was prepared for another one."""
        prepared, self._prepared = self._prepared, None
        if prepared is None or (prepared.is_complete and prepared.payload == payload):
            return prepared
        self._undo(prepared)
        return None

    def _undo(self, prepared: _Prepared) -> None:
        for part in prepared.parts[: prepared.noted]:
            self._remove_number(part, self.next_publication)

    def release(self) -> Iterator[None]:
        """Release the memory of what has left the state, and its places in tables, in steps."""
        yield from self.table.release()
        while self._left:
            number, parts, pieces = self._left.popleft()
            while parts:
                for part in parts[-RELEASED_PER_STEP:]:
                    self._remove_number(part, number)
                del part, parts[-RELEASED_PER_STEP:]
                yield
            items = 0
            while pieces:
                items += 1 + len(pieces.pop())
                if items > RELEASED_PER_STEP:
                    items = 0
                    yield

    def _remove_number(self, part: PublicationPart, number: int) -> None:
        key = (part.topic_id, part.partition)
        numbers = self._by_partition.get(key, [])
        if number in numbers:
            numbers.remove(number)
        if not numbers:
            self._by_partition.pop(key, None)

    def _put_behind(self, parts: Iterable[PublicationPart], number: int) -> None:
        """Note the parts of a publication, and their predecessors."""
        by_partition, unfinished = self._by_partition, self.publications
        for part in parts:
            key = (part.topic_id, part.partition)
            numbers = by_partition.get(key)
            if numbers is None:
                by_partition[key] = [number]
                part.predecessor = 0
                continue
            while numbers and numbers[-1] not in unfinished:
                numbers.pop()
            part.predecessor = numbers[-1] if numbers else 0
            numbers.append(number)

    def _skip(self, count: int) -> VoidEntry | None:
        if max(self.next_publication, self.table.next_stage) + count > INDEX_MAX:
            return undecodable()
        self.next_publication += count
        self.table.next_stage += count
        return None

    def _expire(self, expired: ExpireSinks) -> None:
        for sink_id in expired.sink_ids:
            if self.is_inactive_since(sink_id, expired.before_ms):
                self._forget(sink_id)

    def is_published(self, stage: StageName) -> bool:
        """True when a stage belongs to an unfinished publication."""
        return stage in self._published

    def is_gone(self, stage: int) -> bool:
        """True if a replicated stage, by its number, was discarded, has expired, or belongs to a
        publication that is finished. False for one that is not known yet.
        """
        table = self.table
        return stage < table.next_stage and stage not in table.stages and stage not in self._published_numbers

    def was_opened(self, stage: int) -> bool:
        """True if there is or was a replicated stage with a number. False for one that is not known
        yet.
        """
        return stage < self.table.next_stage

    def judge(self, asked: PublishStages) -> NotNew | PixyError | None:
        """Reason why a sink may not publish `asked`, None if it may; see `judge_epoch`."""
        sink = self.sinks.get(asked.sink_id)
        if sink is None:
            if len(self.sinks) < SINKS_MAX:
                return None
            return ResourceExhausted(f"{SINKS_MAX} sinks are remembered, which is the limit").at_limit(
                "sinks of a cluster"
            )
        return judge_epoch(sink, asked)

    def is_inactive_since(self, sink_id: str, before_ms: int) -> bool:
        """True when the sink exists, has published nothing since `before_ms`, and has no unfinished
        publication.
        """
        sink = self.sinks.get(sink_id)
        return sink is not None and sink.active_ms < before_ms and sink_id not in self._unfinished

    def _publish(
        self, command: PublishStages, prepared: _Prepared | None
    ) -> Publication | NotNew | PixyError:
        refusal = self.judge(command)
        if refusal is not None:
            return refusal
        stage_ids = tuple(command.stage_ids)
        for stage_id in stage_ids:
            published = self._was_published(StageName(command.sink_id, stage_id))
            if published is not None:
                return published
        stages = self.table.sealed(
            command.sink_id, stage_ids if command.replicated else (), command.next_stage
        )
        if isinstance(stages, PixyError):
            return stages
        number = self.next_publication
        if prepared is not None:
            parts, pieces = prepared.parts, prepared.pieces
        else:
            parts = merged_parts(stages) if command.replicated else list(command.parts)
            self._put_behind(parts, number)
            pieces = list(map(_pieces_of, stages))
        publication = Publication(number, command.sink_id, stage_ids, tuple(parts), tuple(pieces))
        self.table.take(stages, command.sink_id, command.timestamp_ms)
        before = self.sinks.get(command.sink_id)
        active_ms, client = command.timestamp_ms, command.client
        if before is not None:
            active_ms, client = max(before.active_ms, active_ms), before.client
        elif client:
            self.sinks_of[client] += 1
        self.sinks[command.sink_id] = Sink(command.query_id, command.epoch, active_ms, client)
        self.next_publication += 1
        self.publications[number] = publication
        self._add_unfinished(publication)
        return publication

    def _forget(self, sink_id: str) -> None:
        client = self.sinks.pop(sink_id).client
        if client:
            self.sinks_of[client] -= 1
            if not self.sinks_of[client]:
                del self.sinks_of[client]

    def _add_unfinished(self, publication: Publication) -> None:
        self._published.update(_stages(publication))
        self._published_numbers.update(stage.number for stage in publication.stages)
        self._unfinished[publication.sink_id] += 1

    def _finish(self, numbers: Iterable[int]) -> Finished:
        finished = []
        for number in numbers:
            publication = self.publications.pop(number, None)
            if publication is None:
                continue
            finished.append(publication)
            self._published.difference_update(_stages(publication))
            self._published_numbers.difference_update(stage.number for stage in publication.stages)
            self._unfinished[publication.sink_id] -= 1
            if not self._unfinished[publication.sink_id]:
                del self._unfinished[publication.sink_id]
            self._left.append(
                _Left(number, list(publication.parts), [stage.pieces for stage in publication.stages])
            )
        return Finished(finished)

    def _was_published(self, stage: StageName) -> FailedPrecondition | None:
        if stage not in self._published:
            return None
        return FailedPrecondition(f"stage {stage.stage_id} of sink {stage.sink_id} was published before")

    # --- checkpoints ------------------------------------------------------------------------------

    def snapshot(self) -> Iterable[tuple[bytes, bytes]]:
        """The whole state as checkpoint records.

        May be consumed on another thread while commands are applied.
        """
        next_stage = self.table.next_stage if self.table.next_stage > 1 else 0
        record = SinksRecord(next_publication=self.next_publication, next_stage=next_stage)
        return chain(
            _records(record, self.sinks.copy(), list(self.publications.values())), self.table.snapshot()
        )

    def restore(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        """Replace the whole state by a checkpoint's records.

        Raises:
            ValueError: no commands lead to this state; what a record lacks raises others.
        """
        self.sinks, self.publications = {}, {}
        self.sinks_of.clear()
        self._published.clear()
        self._published_numbers.clear()
        self._unfinished.clear()
        self._by_partition.clear()
        self._prepared = None
        self._left.clear()
        self.table.clear()
        for key, value in records:
            if key.startswith(_SINK_KEY):
                sink = parsed(SinkRecord, value)
                self.sinks[sink.sink_id] = Sink(sink.query_id, sink.last_epoch, sink.active_ms, sink.client)
                if sink.client:
                    self.sinks_of[sink.client] += 1
            elif key.startswith(_PUBLICATION_KEY):
                record = parsed(PublicationRecord, value)
                publication = Publication(
                    record.publication,
                    record.sink_id,
                    tuple(record.stage_ids),
                    tuple(record.parts),
                    tuple(
                        StagePieces(
                            each.number, each.stage_id, [piece.SerializeToString() for piece in each.pieces]
                        )
                        for each in record.stages
                    ),
                )
                self.publications[publication.number] = publication
                self._add_unfinished(publication)
                for part in publication.parts:
                    place = part.topic_id, part.partition
                    self._by_partition.setdefault(place, []).append(publication.number)
            elif not self.table.restore(key, value):
                state = parsed(SinksRecord, value)
                self.next_publication = state.next_publication
                self.table.next_stage = max(1, state.next_stage)
        newest = max(self.publications, default=0)
        if not newest < self.next_publication <= INDEX_MAX:
            raise ValueError(f"publication {newest}, and {self.next_publication} is the next one")
        newest = max((*self.table.stages, *self._published_numbers), default=0)
        if not newest < self.table.next_stage <= INDEX_MAX:
            raise ValueError(f"stage {newest}, and {self.table.next_stage} is the next one")


def _items(stage: ReplicatedStage) -> int:
    return 1 + len(stage.pieces) + len(stage.parts)


def _pieces_of(stage: ReplicatedStage) -> StagePieces:
    return StagePieces(stage.number, stage.name.stage_id, stage.encoded_pieces())


def _stages(publication: Publication) -> list[StageName]:
    return [StageName(publication.sink_id, stage_id) for stage_id in publication.stage_ids]


def _records(
    state: SinksRecord, sinks: Mapping[str, Sink], publications: Sequence[Publication]
) -> Iterable[tuple[bytes, bytes]]:
    yield _STATE_KEY, state.SerializeToString()
    for sink_id, (query_id, last_epoch, active_ms, client) in sinks.items():
        sink = SinkRecord(
            sink_id=sink_id, query_id=query_id, last_epoch=last_epoch, active_ms=active_ms, client=client
        )
        yield _SINK_KEY + sink_id.encode(), sink.SerializeToString()
    for number, sink_id, stage_ids, parts, stages in publications:
        record = PublicationRecord(
            publication=number,
            sink_id=sink_id,
            stage_ids=stage_ids,
            parts=parts,
            stages=[
                PublishedStage(
                    number=each.number,
                    stage_id=each.stage_id,
                    pieces=[parsed(PieceRecord, piece) for piece in each.pieces],
                )
                for each in stages
            ],
        )
        yield _PUBLICATION_KEY + b"%d" % number, record.SerializeToString()
