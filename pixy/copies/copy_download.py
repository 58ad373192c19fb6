"""The records of a copy on their way: what to ask for next, and what of an answer is taken. Pure.

A committed log has the same bytes at every offset of every replica, but other segments. So the
place of a download is a log offset, and any replica can go on with it; within a segment of one
source it is a position in bytes. Nothing of an answer is believed:

    the answer is of other bytes than were asked for        refused
    CRC-32C of the chunk, or of the run of chunks           refused
    a batch with a wrong checksum                           refused
    a batch that does not begin where the last one ended    refused
    a leader epoch above the term of the snapshot           refused
    a leader epoch that descends                            refused, with all that has come
    a batch that goes on behind the end of the copy         refused

A refused answer leaves the download as it was; the caller asks another source. Of a leader epoch
the checksum of a batch does not know, so damage of it that keeps the order passes; if it does not,
the epoch that was taken before may be the wrong one.

The records before the begin of a log are removed one by one, but batches are not divided. So the
first batch of a copy may begin before the offset that was asked for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from pixy.errors import CorruptData
from pixy.proto.copies_pb2 import FetchCopyRequest, FetchCopyResponse
from pixy.records import (
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    batch_bytes,
    check_batch,
    crc32c,
    read_header,
)

_BATCH_BYTES_MAX = 1 << 30


class DescendingEpoch(CorruptData):
    """A leader epoch is lower than one that has come before."""


class _ChunkRun(NamedTuple):
    """Bytes of a segment that came one after the other: place behind them, begin, and checksum."""

    segment: int
    position: int
    begin: int
    crc: int


@dataclass(slots=True)
class _FoundBatches:
    """Whole batches of an answer, offset and epoch behind them, and the size of the next one, 0 if
    its header is not there.
    """

    batches: list[memoryview]
    offset: int
    epoch: int
    needed: int


class CopyDownload:
    """A download of the records from an offset to the end of a copy.

    Args:
        offset: the first offset that is missing.
        end_offset: the end of the copy.
        epoch: highest leader epoch that a batch may have.
        begins: no records come before; else they end at `offset`.

    Attributes:
        offset: the first offset that is missing now.
        end_offset: as given.
        begin_offset: where the records begin, if nothing comes before.
    """

    def __init__(self, offset: int, end_offset: int, epoch: int, *, begins: bool) -> None:
        self.offset = self.begin_offset = offset
        self.end_offset = end_offset
        # Nothing comes before `offset`.
        self._begins = begins
        self._epoch_max = epoch
        self._epoch = 0
        self._run: _ChunkRun | None = None
        # The begin of a batch whose end has not come, and the size that it has then, 0 if its
        # header has not come either.
        self._partial = bytearray()
        self._needed = 0

    @property
    def is_complete(self) -> bool:
        """True once everything is there."""
        return self.offset == self.end_offset

    def change_source(self) -> None:
        """Go on from any source: the batch that has begun to come is dropped."""
        self._run, self._partial, self._needed = None, bytearray(), 0

    def restart(self, offset: int, *, begins: bool) -> None:
        """Begin anew at an offset, see the arguments of the class."""
        self.change_source()
        self.offset = self.begin_offset = offset
        self._begins, self._epoch = begins, 0

    def request(self, session: int, max_bytes: int) -> FetchCopyRequest:
        """The next request to a source."""
        run = self._run
        if run is None:
            return FetchCopyRequest(session=session, log_offset=self.offset, max_bytes=max_bytes)
        return FetchCopyRequest(
            session=session, segment=run.segment, position=run.position, max_bytes=max_bytes
        )

    def take(self, answer: FetchCopyResponse, data: bytes | memoryview, bytes_max: int) -> list[memoryview]:
        """The whole batches that an answer brings, in their order: views of `data`, but for one
        that has begun to come before.

        Args:
            answer: its field `data` is ignored.
            data: the bytes that it brings.
            bytes_max: that were asked for.

        Raises:
            DescendingEpoch, CorruptData: see the table of the module.
        """
        run = self._checked(answer, data, bytes_max)
        ends = run.position == answer.total_bytes
        if not ends and len(self._partial) + len(data) < self._needed:
            self._partial += data
            self._run = run
            return []
        found = _FoundBatches([], self.offset, self._epoch, 0)
        left = memoryview(data)
        for piece in self._pieces(left):
            left = piece[self._find(found, piece) :]
        if found.offset == self.end_offset:
            left = left[:0]
        if ends and left:
            raise CorruptData(f"the segment at offset {run.segment} ends within a batch")
        if ends and not found.batches:
            raise CorruptData(f"the segment at offset {run.segment} ends before offset {self.offset}")
        if found.batches and self._begins:
            self.begin_offset, self._begins = read_header(found.batches[0]).base_offset, False
        self.offset, self._epoch = found.offset, found.epoch
        self._run = None if ends else run
        self._partial, self._needed = bytearray(left), found.needed
        return found.batches

    def _checked(self, answer: FetchCopyResponse, data: bytes | memoryview, bytes_max: int) -> _ChunkRun:
        """The run that an answer with some data ends, if it is what was asked for."""
        run, size = self._run, len(data)
        where = f"byte {answer.position} of the segment at offset {answer.segment}"
        if run is not None and (answer.segment, answer.position) != (run.segment, run.position):
            raise CorruptData(
                f"an answer has {where}, asked for was byte {run.position} of the one at {run.segment}"
            )
        if not 0 <= answer.segment <= self.offset:
            raise CorruptData(f"an answer has {where}, asked for was offset {self.offset}")
        if not 0 < size <= bytes_max or answer.position + size > answer.total_bytes:
            raise CorruptData(
                f"{size} bytes from {where}, which has {answer.total_bytes}, {bytes_max} were asked for"
            )
        if (found := crc32c(data)) != answer.crc:
            raise CorruptData(
                f"{size} bytes from {where} have CRC {found:#010x}, expected {answer.crc:#010x}"
            )
        begin, crc = answer.position, answer.crc
        if run is not None and answer.run_position == run.begin:
            begin, crc = run.begin, crc32c(data, run.crc)
        if (answer.run_position, answer.run_crc) != (begin, crc):
            raise CorruptData(
                f"the run from byte {answer.run_position} to {size} bytes behind {where} has CRC "
                f"{answer.run_crc:#010x}, from byte {begin} on it is {crc:#010x} here"
            )
        return _ChunkRun(answer.segment, answer.position + size, begin, crc)

    def _pieces(self, chunk: memoryview) -> Iterator[memoryview]:
        """A chunk in pieces that begin with batches: the one that has begun to come before, as far
        as it is there, and what follows it. Only that one is copied.
        """
        partial, size = self._partial, self._needed
        if not partial:
            yield chunk
            return
        if not size:
            header = b"".join((partial, chunk[: HEADER_BYTES - len(partial)]))
            size = batch_bytes(header) if len(header) == HEADER_BYTES else 0
        taken = max(size, HEADER_BYTES) - len(partial)
        yield memoryview(b"".join((partial, chunk[:taken])))
        if taken < len(chunk):
            yield chunk[taken:]

    def _find(self, found: _FoundBatches, chunk: memoryview) -> int:
        """Add the whole batches at the begin of a chunk; returns the bytes that they have."""
        batches = found.batches
        at, offset, epoch, needed = 0, found.offset, found.epoch, 0
        while at + HEADER_BYTES <= len(chunk) and offset < self.end_offset:
            header = read_header(chunk, at)
            size = LENGTH_PREFIX_BYTES + header.length
            if not HEADER_BYTES <= size <= _BATCH_BYTES_MAX:
                raise CorruptData(f"a batch for offset {offset} says that it has {size} bytes")
            may_begin_before = self._begins and not batches
            if (
                not (0 if may_begin_before else offset) <= header.base_offset <= offset
                or not offset < header.next_offset <= self.end_offset
            ):
                raise CorruptData(
                    f"a batch has offsets {header.base_offset} to {header.next_offset}, expected is one from {offset} "
                    f"on, up to {self.end_offset}"
                )
            if header.leader_epoch > self._epoch_max:
                raise CorruptData(
                    f"the batch at offset {offset} has leader epoch {header.leader_epoch}, expected {self._epoch_max} "
                    "at most"
                )
            if at + size > len(chunk):
                needed = size
                break
            batch = chunk[at : at + size]
            check_batch(batch)
            if header.leader_epoch < epoch:
                raise DescendingEpoch(
                    f"the batch at offset {offset} has leader epoch {header.leader_epoch}, one before it had {epoch}"
                )
            batches.append(batch)
            at, offset, epoch = at + size, header.next_offset, header.leader_epoch
        found.offset, found.epoch, found.needed = offset, epoch, needed
        return at


class RequestsAhead:
    """Requests for the rest of a segment before what was asked for has come, or has been taken.

    They are of no use if an answer is refused, or the copy ends within the segment.

    Args:
        session: of the source.
    """

    def __init__(self, session: int) -> None:
        self._session = session
        self._segment = self._position = self._total = 0

    def came(self, answer: FetchCopyResponse, size: int, bytes_max: int, *, alone: bool) -> bool:
        """An answer has come; False if those that were asked for behind it are of other bytes.

        Args:
            size: bytes that it has.
            bytes_max: that were asked for.
            alone: nothing was asked for behind it.
        """
        end = answer.position + size
        follows = alone or size == bytes_max
        if alone or not follows:
            self._segment, self._position, self._total = answer.segment, end, answer.total_bytes
        return follows

    def next(self, max_bytes: int) -> FetchCopyRequest | None:
        """The next request, None if the rest of the segment was asked for."""
        position = self._position
        if not 0 < position < self._total:
            return None
        self._position = position + max_bytes
        return FetchCopyRequest(
            session=self._session, segment=self._segment, position=position, max_bytes=max_bytes
        )


class CopySources:
    """Nodes that may have what a copy needs, the one to ask first.

    One that fails is asked again only after the others: it may be silent for long.

    Args:
        nodes: in the order in which they are asked.
        attempts_max: failures of a node, since it has given something, until it is asked no more.
    """

    def __init__(self, nodes: list[int], attempts_max: int) -> None:
        # Failures of each.
        self._nodes = dict.fromkeys(nodes, 0)
        self._attempts_max = attempts_max

    @property
    def next(self) -> int | None:
        """The node to ask, None if all have failed."""
        return next(iter(self._nodes), None)

    def progressed(self) -> None:
        """The node has given something."""
        self._nodes[next(iter(self._nodes))] = 0

    def failed(self, *, for_good: bool) -> None:
        """The node has given nothing.

        Args:
            for_good: it would not at another time.
        """
        node = next(iter(self._nodes))
        failures = self._nodes.pop(node) + 1
        if not for_good and failures < self._attempts_max:
            self._nodes[node] = failures
