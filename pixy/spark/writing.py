"""Writing tasks: rows are sent as pieces of a stage, and the last piece seals it.

A stage holds the rows of one attempt of one task, or a part of them if they exceed the daemon's
limit. It is durable once sealed, and invisible before it is published: an attempt that fails, or
loses against another one, leaves only stages that the daemon drops after a while.

Rows are gathered until a piece is full. A bounded number of pieces are in flight while the next one
is built. The last piece is held back until there are no more rows, because the request that seals a
stage must come after all others.

**Partitions.** The column `partition` takes precedence, then the key. Rows without a key go to one
partition per piece, in rotation, so that batches are large. Each piece carries the version of the
topic; if the topic has changed meanwhile, it is described again and the piece is partitioned anew.
"""

import struct
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from random import Random

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pixy.errors import FailedPrecondition, InvalidArgument, PixyError
from pixy.proto import pixy_log_pb2 as pb
from pixy.records import crc32c
from pixy.spark.arrow import null_flags
from pixy.spark.client import LogClient
from pixy.spark.encode import Columns, encode, row_bytes
from pixy.spark.keep_alive import KEEP_ALIVE_SECONDS, KeepAlive
from pixy.spark.options import WriteOptions
from pixy.spark.partitioning import KEY_PARTITIONERS, key_partitions
from pixy.spark.rows import Rows, project
from pixy.spark.schema import WriteColumns

Ints = npt.NDArray[np.int64]

PIECE_BYTES = 2 << 20
"""Limit of a piece, which only a single larger row exceeds. Half of the daemon's default limit of a
request.
"""

STAGE_BYTES = 512 << 20
STAGE_PIECES = 5000
"""A stage is sealed, and another one begun, at these limits. Half of the daemon's limits: pieces in
flight come on top.
"""

PIECE_PARTITIONS = 500
"""Limit of the partitions of a piece: half of the daemon's, because rows without a key, which count
for one partition of each topic, may get another one.
"""

_PIECES_IN_FLIGHT = 2
_STALE_ATTEMPTS = 5
_CRC = struct.Struct(">I")


class StageWriter:
    """Writes the stages of one attempt of one task.

    Args:
        sink_id: sink of the stages.
        columns: indexes of the columns in the rows.
        keep_alive_seconds: interval of the calls that keep the sink alive.

    Attributes:
        stage_ids: the stages begun, in the order of the rows.
    """

    def __init__(
        self,
        client: LogClient,
        sink_id: str,
        options: WriteOptions,
        columns: WriteColumns,
        keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
    ) -> None:
        self._client = client
        self._sink_id = sink_id
        self._options = options
        self._columns = columns
        self._keep_alive_seconds = keep_alive_seconds
        self.stage_ids: list[str] = []
        # Topics that rows go to, as last described by the daemon.
        self._topics = _Topics(client, Random(uuid.uuid4().hex).randrange(1 << 16))
        # Checksums of the pieces built for the last stage, by number.
        self._checksums: dict[int, int] = {}

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[str]:
        """Stage all rows; returns the sealed stages. Without rows there are none.

        Raises:
            InvalidArgument: a row cannot be written.
            PixyError: the daemon rejected a call, or did not answer in time. The stages are
                dropped.
        """
        self.stage_ids = []
        pieces = self._split(_gather(batches, lambda batch: project(batch, self._columns)))
        try:
            with KeepAlive(lambda: self._client.keep_alive(self._sink_id), self._keep_alive_seconds):
                first = next(pieces, None)
                while first is not None:
                    first = self._write_stage(first, pieces)
        except BaseException:
            self._discard()
            raise
        return self.stage_ids

    def _split(self, pieces: Iterator[Rows]) -> Iterator[Rows]:
        """Split pieces that go to more partitions than a request may have.

        If a wide topic gets more of them before a piece is sent, the task fails and is tried again.
        """
        topic = self._options.topic
        for rows in pieces:
            if len(rows.value) <= PIECE_PARTITIONS or self._topics.width(rows, topic) <= PIECE_PARTITIONS:
                yield rows
                continue
            _, slots, _ = self._topics.place(rows, 0, topic)
            used = np.unique(slots)
            for at in range(0, len(used), PIECE_PARTITIONS):
                yield rows.at(np.flatnonzero(np.isin(slots, used[at : at + PIECE_PARTITIONS])))

    def _write_stage(self, held: Rows, pieces: Iterator[Rows]) -> Rows | None:
        """Write one stage, up to its limit; returns the first piece of the next one."""
        self.stage_ids.append(uuid.uuid4().hex)
        self._checksums = {}
        in_flight: list[Future[int]] = []
        number = staged_bytes = 0
        following: Rows | None = None
        with ThreadPoolExecutor(_PIECES_IN_FLIGHT) as senders:
            for following in pieces:
                while len(in_flight) >= _PIECES_IN_FLIGHT:
                    staged_bytes = in_flight.pop(0).result()
                if staged_bytes >= STAGE_BYTES or number + 1 >= STAGE_PIECES:
                    break
                in_flight.append(senders.submit(self._send, held, number, seal=False))
                held, number = following, number + 1
            else:
                following = None
            for sent in in_flight:
                sent.result()
        self._send(held, number, seal=True)
        return following

    def _send(self, rows: Rows, number: int, *, seal: bool) -> int:
        """Stage one piece, the last one with `seal`; returns the size of the stage in bytes."""
        request = self._request(rows, number, seal=seal)
        for attempt in range(_STALE_ATTEMPTS):
            try:
                return self._client.stage(request).staged_bytes
            except FailedPrecondition:
                if self._topics.changed(request.versions):
                    request = self._request(rows, number, seal=seal)
                # A daemon with older metadata of the topic is up to date once it has described it.
                elif attempt:
                    raise
        raise FailedPrecondition(
            f"the partitions of a topic changed {_STALE_ATTEMPTS} times while a piece was written to it"
        )

    def _request(self, rows: Rows, number: int, *, seal: bool) -> pb.StageRequest:
        names, slots, versions = self._topics.place(rows, number, self._options.topic)
        columns = Columns(rows.key, rows.value, rows.headers)
        encoded = encode(
            columns, slots, time.time_ns() // 1_000_000, self._options.compression, self._options.batch_bytes
        )
        partitions = [
            pb.PartitionBatches(topic=names[slot][0], partition=names[slot][1], batches=batches)
            for slot, batches in encoded.items()
        ]
        checksum = 0
        for each in partitions:
            checksum = crc32c(each.batches, checksum)
        self._checksums[number] = checksum
        request = pb.StageRequest(
            sink_id=self._sink_id,
            stage_id=self.stage_ids[-1],
            piece=number,
            partitions=partitions,
            versions=versions,
        )
        if seal:
            checksums = [self._checksums[each] for each in sorted(self._checksums)]
            request.seal.pieces = len(checksums)
            request.seal.crc = crc32c(b"".join(_CRC.pack(each) for each in checksums))
        return request

    def _discard(self) -> None:
        try:
            self._client.discard(self._sink_id, self.stage_ids)
        except PixyError:
            return  # The stages expire.


class _Topics:
    """Assigns partitions to rows, from the daemon's last description of the topics.

    Args:
        turn: start of the rotation of rows without a key.
    """

    def __init__(self, client: LogClient, turn: int) -> None:
        self._client = client
        self._turn = turn
        # Empty until first needed.
        self._partitioner = ""
        self._known: dict[str, pb.Topic] = {}

    def changed(self, versions: Sequence[pb.TopicVersion]) -> bool:
        """Describe topics again; returns True if one has another version, or was recreated."""
        self._describe([each.topic for each in versions])
        return any(
            (self._known[each.topic].version, self._known[each.topic].topic_id)
            != (each.version, each.topic_id)
            for each in versions
        )

    def width(self, rows: Rows, topic: str | None) -> int:
        """Number of partitions that rows may go to."""
        names, _ = self._names(rows, topic)
        return sum(self._known[name].partitions for name in names)

    def _names(self, rows: Rows, topic: str | None) -> tuple[list[str], Ints | None]:
        """Topics of rows, which are known then, and the index of each row's."""
        names, topic_of_row = ([topic], None) if topic is not None else rows.topics()
        self._describe([each for each in names if each not in self._known])
        return names, topic_of_row

    def place(
        self, rows: Rows, number: int, topic: str | None
    ) -> tuple[dict[int, tuple[str, int]], Ints, list[pb.TopicVersion]]:
        """Topic and partition by slot, the slot of each row, and the topic versions that these
        depend on.
        """
        names, topic_of_row = self._names(rows, topic)
        slots = np.empty(len(rows.value), np.int64)
        slot_names: dict[int, tuple[str, int]] = {}
        versions = []
        for place, name in enumerate(names):
            known = self._known[name]
            chosen = np.arange(len(slots)) if topic_of_row is None else np.flatnonzero(topic_of_row == place)
            partitions, by_version = self._partitions(
                rows.at(chosen) if topic_of_row is not None else rows, known, number
            )
            slots[chosen] = partitions + len(slot_names)
            if by_version:
                versions.append(pb.TopicVersion(topic=name, version=known.version, topic_id=known.topic_id))
            base = len(slot_names)
            slot_names.update({base + each: (name, each) for each in range(known.partitions)})
        return slot_names, slots, versions

    def _partitions(self, rows: Rows, topic: pb.Topic, number: int) -> tuple[Ints, bool]:
        """The partition of each row, and True if these depend on the version of the topic."""
        count = len(rows.value)
        chosen = np.full(count, (self._turn + number) % topic.partitions, np.int64)
        if rows.key is not None and self._partitioner in KEY_PARTITIONERS:
            with_key = ~null_flags(rows.key)
            by_key = key_partitions(rows.key, topic.partitions, self._partitioner)
            chosen = np.where(with_key, by_key, chosen)
        if rows.partition is None:
            return chosen, True
        given = ~null_flags(rows.partition)
        wanted = np.frombuffer(rows.partition.buffers()[1], np.int32)[rows.partition.offset :][:count].astype(
            np.int64
        )
        wrong = np.flatnonzero(given & ((wanted < 0) | (wanted >= topic.partitions)))
        if wrong.size:
            raise InvalidArgument(
                f"a row says partition {wanted[wrong[0]]} of topic {topic.topic!r}: allowed are 0 to {topic.partitions - 1}"
            )
        return np.where(given, wanted, chosen), not bool(given.all())

    def _describe(self, names: Sequence[str]) -> None:
        if not names:
            return
        answer = self._client.describe(names, create_missing=True)
        self._partitioner = answer.partitioner
        self._known.update({each.topic: each for each in answer.topics})
        for name in names:
            if name not in {each.topic for each in answer.topics}:
                raise InvalidArgument(
                    f"topic {name!r} does not exist, and the daemon does not create topics automatically"
                )


def _gather(
    batches: Iterable[pa.RecordBatch], project_batch: Callable[[pa.RecordBatch], Rows]
) -> Iterator[Rows]:
    """Rows in pieces of at most `PIECE_BYTES`."""
    waiting: list[Rows] = []
    filled = 0
    for batch in batches:
        rows = project_batch(batch)
        room = np.cumsum(row_bytes(Columns(rows.key, rows.value, rows.headers)))
        first = 0
        while first < len(room):
            before = int(room[first - 1]) if first else 0
            stop = int(np.searchsorted(room, before + PIECE_BYTES - filled, "right"))
            if stop == first and not waiting:
                stop = first + 1
            if stop > first:
                waiting.append(rows.slice(first, stop - first))
                filled += int(room[stop - 1]) - before
                first = stop
            if first < len(room):
                yield Rows.concat(waiting)
                waiting, filled = [], 0
    if waiting:
        yield Rows.concat(waiting)
