"""Validation of record batches built by others: the one entrance of all batches.

Clients append and stage batches (`check_new_batches`), and nodes forward them to the leader of a
partition (`check_forwarded_batches`). A batch is rejected if it would harm the log, its readers, or
the offsets of other clients:

    shorter than a header, or than its length field    the start of the next batch is unknown
    magic other than 2                                 another format
    larger than `producer.max_message_bytes`           buffers would be unbounded; a record alone in
                                                       its batch may have so many bytes itself
    control batch, transactional                       markers that only a coordinator may write
    a producer id, where none is taken                 only appended batches are deduplicated
    a producer id with a negative epoch or sequence    nobody could tell whether the batch is new
    attributes undefined by Kafka, codec > 4           no reader could decode it
    no records, offsets with gaps                      an offset without a record looks lost
    more records than fit, without compression         the same
    wrong checksum                                     corrupted in transit

and if its records are not what the header says (`_Walk`):

    the wrong number, wrong lengths, undecodable       no reader could go past it
    offset deltas that are not 0, 1, 2 ...             the positions of readers would be wrong
    a timestamp below -1                               not a time; -1 is Kafka's "none"
    a max timestamp that is not their largest one      they could not be found by timestamp, and
                                                       retention by age would be wrong
    a timestamp too far in the future                  retention by age would keep it until then
    a record of more than `max_message_bytes`,         no client could receive it
    also inside compression
    more than `producer.max_headers` headers           each is 70 bytes of objects in a reader
    larger than `unpacked_bytes_max` without           readers would need unbounded memory
    compression
    several gzip members, snappy blocks below 1 KiB    a small batch would take long to decompress

Records of equal length are compared as columns of bytes (`uniform`), others decoded by the codec of
the readers, in windows: 0.2 us each and 0.1 ms/MB, half of what the fastest walk in Python takes.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pixy.errors import CorruptBatch, InvalidBatch, InvalidRecords, MessageTooLarge, Unavailable
from pixy.records.batch import (
    CODEC_BITS,
    CONTROL_BIT,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    batch_bytes,
    batch_crc,
    read_header,
)
from pixy.records.codec import Record, decompress_new, readable_batch
from pixy.records.compiled import UNREADABLE
from pixy.records.small import NOT_SMALL, SMALL_BYTES_MAX, headers_of_small
from pixy.records.uniform import largest_timestamp_delta
from pixy.records.unpack import UNPACKED_BYTES_MAX, UnpackLimitError
from pixy.records.windows import HEADERS_MAX, TooManyHeadersError, visit_windows

_CODEC_MAX = 4
_ALONE_BYTES = HEADER_BYTES + 36
_ALONE_HEADER_BYTES = 10
"""Largest overhead of a batch with one record, and of each header of that."""
_RECORD_BYTES_MIN = 7
"""Length, attributes, timestamp, offset, length of key and of value, number of headers: one byte
each.
"""
_BATCH_RECORDS = 64
"""Records that take as long as the rest of the check of a small batch."""
_UNIFORM_PER_RECORD = 8
"""Equal records that take as long as one that is decoded."""
_HEADERS_PER_RECORD = 4
"""Headers that take as long as a record besides."""
_NO_PRODUCER = -1
_NO_TIMESTAMP = -1
_PACKED_FACTOR = 8
"""Decompressed bytes that take as long as a compressed one at most: thousands of blocks may have a
byte or none.
"""
_UNPACKED_BYTES_MIN = 4 << 20
_UNPACKED_FACTOR = 4
_CHECKED_FACTOR = 4
"""Bytes of memory for a byte of the record that is decoded, at most, with its parts."""


class BatchLimits(NamedTuple):
    """Limits of new batches.

    Attributes:
        batch_bytes_max: largest batch, and largest record (key, value and headers together), inside
            compression or alone in its batch.
        timestamp_ms_max: latest timestamp; None: any.
        headers_max: headers of a record.
        producers: batches may have producer ids.
    """

    batch_bytes_max: int
    timestamp_ms_max: int | None = None
    headers_max: int = HEADERS_MAX
    producers: bool = False

    @property
    def unpacked_bytes_max(self) -> int:
        """Limit of the decompressed records of a batch; never above that of readers."""
        return min(max(_UNPACKED_FACTOR * self.batch_bytes_max, _UNPACKED_BYTES_MIN), UNPACKED_BYTES_MAX)


FORWARDED_LIMITS = BatchLimits(2**31, producers=True)
"""Of batches that another node has built or checked by its own limits: those that no configuration
exceeds, and any time.
"""


class NewBatch(NamedTuple):
    """Position of a batch in a buffer: its first byte, the byte after its last one, and its number
    of records.
    """

    begin: int
    end: int
    records: int


class LongCheckError(Exception):
    """A check takes more than its effort."""


class CheckEffort:
    """The limit of some checks together; by default, of those on the event loop: about half a
    millisecond.

    Args:
        records: to be decoded, with their headers.
        unpacked_bytes: of compressed records; a compressed byte counts as eight besides.
    """

    __slots__ = ("records", "unpacked_bytes")

    def __init__(self, records: int = 4096, unpacked_bytes: int = 128 << 10) -> None:
        self.records = records
        self.unpacked_bytes = unpacked_bytes


def check_new_batches(
    buffer: Buffer, limits: BatchLimits, effort: CheckEffort | None = None
) -> list[NewBatch]:
    """Check that `buffer` consists of whole, acceptable batches; returns their positions.

    Args:
        buffer: at least one batch.
        effort: what is left of it is updated.

    Raises:
        InvalidBatch: names the batch, its position, the error and what is allowed. Nothing was
            changed.
        CorruptBatch: the same, of a wrong checksum.
        InvalidRecords: the same, and the record; the batch itself is whole.
        MessageTooLarge: the batch is too large; the message has the same details.
        LongCheckError: it takes more than `effort`.
    """
    view = memoryview(buffer)
    found = [check_next_batch(view, (), limits, effort)]
    while found[-1].end < len(view):
        found.append(check_next_batch(view, found, limits, effort))
    return found


def check_next_batch(
    buffer: memoryview, before: Sequence[NewBatch], limits: BatchLimits, effort: CheckEffort | None = None
) -> NewBatch:
    """As `check_new_batches`, for the batch behind those before, which are checked.

    It can be checked again after a LongCheckError.
    """
    if not buffer:
        raise InvalidBatch("no record batch")
    begin = before[-1].end if before else 0
    small = _maybe_small(buffer, begin, limits, effort)
    if small is not None:
        return small
    place = f"record batch {len(before)} at byte {begin}"
    batch = buffer[begin : begin + _size(buffer, begin, limits, place)]
    header = read_header(batch)
    crc = batch_crc(batch)
    if crc != header.crc:
        raise CorruptBatch(f"{place} has CRC-32C {crc:#010x}, expected {header.crc:#010x}")
    if wrong := _wrong_kind(header, limits) or _wrong_numbers(batch, header):
        raise InvalidBatch(f"{place} {wrong}")
    _Walk(batch, header, limits, place).check(effort)
    return NewBatch(begin, begin + len(batch), header.records)


def check_forwarded_batches(buffer: Buffer, effort: CheckEffort | None = None) -> list[NewBatch]:
    """As `check_new_batches`, for batches that another node has built or checked."""
    return check_new_batches(buffer, FORWARDED_LIMITS, effort)


def _maybe_small(
    buffer: memoryview, begin: int, limits: BatchLimits, effort: CheckEffort | None
) -> NewBatch | None:
    """The batch at a byte if it is recognized as a small one (`small`), and within the limits."""
    if len(buffer) - begin < HEADER_BYTES:
        return None
    size = batch_bytes(buffer, begin)
    if not HEADER_BYTES < size <= min(SMALL_BYTES_MAX, limits.batch_bytes_max, len(buffer) - begin):
        return None
    batch = bytes(buffer[begin : begin + size])
    header = read_header(batch)
    cost = _BATCH_RECORDS + header.records + header.records // _UNIFORM_PER_RECORD
    if effort is not None and cost > effort.records:
        return None
    if limits.timestamp_ms_max is not None and header.max_timestamp > limits.timestamp_ms_max:
        return None
    headers = headers_of_small(batch, producers=limits.producers)
    if headers == NOT_SMALL or headers > limits.headers_max:
        return None
    _spend(effort, cost + headers // _HEADERS_PER_RECORD)
    return NewBatch(begin, begin + size, header.records)


def _size(view: memoryview, begin: int, limits: BatchLimits, place: str) -> int:
    """Size of the batch at byte `begin`, which must be complete."""
    left = len(view) - begin
    if left < HEADER_BYTES:
        raise InvalidBatch(f"{place} has {left} bytes, less than its header of {HEADER_BYTES}")
    header = read_header(view, begin)
    if header.magic != MAGIC:
        raise InvalidBatch(f"{place} has magic {header.magic}, expected {MAGIC}")
    size = LENGTH_PREFIX_BYTES + header.length
    if not HEADER_BYTES <= size <= left:
        raise InvalidBatch(f"{place} has a length field of {size} bytes, expected {HEADER_BYTES} to {left}")
    allowed = limits.batch_bytes_max
    alone = _ALONE_BYTES + _ALONE_HEADER_BYTES * limits.headers_max if header.records == 1 else 0
    if size > allowed + alone:
        raise MessageTooLarge(f"{place} has {size} bytes, producer.max_message_bytes allows {allowed}")
    return size


def _wrong_kind(header: BatchHeader, limits: BatchLimits) -> str:
    """Reason why the kind of batch is not allowed, "" if it is."""
    if header.attributes & CONTROL_BIT:
        return "is a control batch, which only a coordinator may write"
    if header.attributes & TRANSACTIONAL_BIT:
        return "is transactional, which is not supported"
    if header.attributes & ~(CODEC_BITS | TIMESTAMP_TYPE_BIT) or header.codec > _CODEC_MAX:
        return f"has attributes {header.attributes:#06x}, allowed are a codec of 0 to {_CODEC_MAX} and the timestamp type"
    return "" if header.producer_id == _NO_PRODUCER else _wrong_producer(header, limits)


def _wrong_producer(header: BatchHeader, limits: BatchLimits) -> str:
    if not limits.producers:
        return f"has producer id {header.producer_id}, expected {_NO_PRODUCER}: idempotent producers are not supported"
    if min(header.producer_id, header.producer_epoch, header.base_sequence) < 0:
        return (
            f"has producer id {header.producer_id}, epoch {header.producer_epoch} and base sequence {header.base_sequence}, "
            "expected 0 or above"
        )
    return ""


def _wrong_numbers(batch: memoryview, header: BatchHeader) -> str:
    """First contradiction in the header of a complete batch, "" if there is none."""
    if header.records < 1 or header.last_offset_delta != header.records - 1:
        return (
            f"has {header.records} records and last offset delta {header.last_offset_delta}, expected at least one record "
            "and a last offset delta of one less"
        )
    if not header.codec and header.records * _RECORD_BYTES_MIN > len(batch) - HEADER_BYTES:
        return f"has a count of {header.records} records, which do not fit in its {len(batch)} bytes"
    if header.base_timestamp < _NO_TIMESTAMP:
        return f"has base timestamp {header.base_timestamp}, expected {_NO_TIMESTAMP} or above"
    if header.max_timestamp < header.base_timestamp:
        return (
            f"has max timestamp {header.max_timestamp}, less than its base timestamp {header.base_timestamp}"
        )
    return ""


def _spend(effort: CheckEffort | None, records: int) -> None:
    if effort is not None:
        effort.records -= records
        if effort.records < 0:
            raise LongCheckError


class _Walk:
    """The walk through the records of one batch.

    Args:
        batch: with a valid header.
        place: the batch in error messages.
    """

    def __init__(self, batch: memoryview, header: BatchHeader, limits: BatchLimits, place: str) -> None:
        self._batch = batch
        self._header = header
        self._limits = limits
        self._place = place
        self._effort: CheckEffort | None = None
        self._check_sizes = False
        # The number of the next record, and the largest timestamp of those that were looked at.
        self._number, self._latest = 0, _NO_TIMESTAMP

    def check(self, effort: CheckEffort | None) -> None:
        """Check the records; the errors are those of `check_new_batches`."""
        header = self._header
        _spend(effort, _BATCH_RECORDS)
        plain = bytearray(self._batch)
        plain[:8] = bytes(8)  # so that offsets are deltas
        unpacked = self._unpacked(plain, effort) if header.codec else readable_batch(plain)
        records = min(header.records, len(unpacked) // _RECORD_BYTES_MIN)
        _spend(effort, records // _UNIFORM_PER_RECORD)
        latest = self._uniform_timestamp(bytearray(unpacked) if header.codec else plain)
        if latest is None:
            _spend(effort, records)
            latest = self._walk(unpacked, effort)
        if latest != header.max_timestamp:
            raise InvalidRecords(
                f"{self._place} has max timestamp {header.max_timestamp}, but {latest} is the largest of its records"
            )

    def _unpacked(self, batch: bytearray, effort: CheckEffort | None) -> Buffer:
        limit = self._limits.unpacked_bytes_max
        allowed = limit
        if effort is not None:
            effort.unpacked_bytes -= _PACKED_FACTOR * len(batch)
            allowed = min(limit, effort.unpacked_bytes)
            if allowed < 0:
                raise LongCheckError
        try:
            unpacked = decompress_new(batch, allowed)
        except UnpackLimitError:
            if allowed < limit:
                raise LongCheckError from None
            raise InvalidRecords(
                f"{self._place} decompresses to more than {limit} bytes, the limit at a producer.max_message_bytes of "
                f"{self._limits.batch_bytes_max}"
            ) from None
        except UNREADABLE as error:
            raise InvalidRecords(f"{self._place} cannot be decompressed: {error}") from None
        except MemoryError as error:
            raise self._no_memory() from error
        if effort is not None:
            effort.unpacked_bytes -= len(unpacked)
        return unpacked

    def _uniform_timestamp(self, plain: bytearray) -> int | None:
        """The largest timestamp; None if the records have to be decoded.

        Args:
            plain: the batch, not compressed.
        """
        header, latest = self._header, self._limits.timestamp_ms_max
        if len(plain) > self._limits.batch_bytes_max:
            return None  # the size of its record is to be checked
        if latest is not None and header.max_timestamp > latest:
            return None
        delta = largest_timestamp_delta(plain, header.records)
        return header.max_timestamp if delta == header.max_timestamp - header.base_timestamp else None

    def _walk(self, readable: Buffer, effort: CheckEffort | None) -> int:
        """Check the records one by one; returns their largest timestamp. They are overwritten."""
        place, header = self._place, self._header
        self._effort = effort
        self._check_sizes = len(readable) > self._limits.batch_bytes_max
        try:
            visit_windows(readable, header.records, self._visit)
        except TooManyHeadersError as error:
            raise InvalidRecords(self._headers(error.number, error.headers)) from None
        except UnicodeDecodeError:
            raise InvalidRecords(
                f"{place}: record {self._number} has a header name that is not UTF-8"
            ) from None
        except (*UNREADABLE, MemoryError) as error:
            if isinstance(error, MemoryError):
                self._check_memory(len(readable))
            raise InvalidRecords(
                f"{place}: record {self._number} of {header.records} cannot be decoded: {error}"
            ) from None
        return self._latest

    def _check_memory(self, size: int) -> None:
        """Raise `Unavailable` unless there is memory for records of this size."""
        try:
            bytearray(_CHECKED_FACTOR * size)
        except MemoryError as error:
            raise self._no_memory() from error

    def _no_memory(self) -> Unavailable:
        return Unavailable(f"there is not enough memory to check {self._place}")

    def _visit(self, records: Iterable[Record], first: int) -> None:
        """Check some records, the first of which has a number."""
        check_sizes, timestamp_max = self._check_sizes, self._limits.timestamp_ms_max
        latest, number = self._latest, first - 1
        try:
            for number, record in enumerate(records, first):
                if record.offset != number:
                    raise InvalidRecords(
                        f"{self._place}: record {number} has offset delta {record.offset}, expected {number}"
                    )
                timestamp = record.timestamp
                if timestamp > latest:
                    latest = timestamp
                    if timestamp_max is not None and timestamp > timestamp_max:
                        raise InvalidRecords(self._future(number, timestamp))
                elif timestamp < _NO_TIMESTAMP:
                    raise InvalidRecords(
                        f"{self._place}: record {number} has timestamp {timestamp}, expected {_NO_TIMESTAMP} or above"
                    )
                if record.headers:
                    self._check_headers(number, len(record.headers))
                if check_sizes:
                    self._check_size(number, record)
        finally:
            self._number, self._latest = number + 1, latest

    def _check_headers(self, number: int, headers: int) -> None:
        _spend(self._effort, headers // _HEADERS_PER_RECORD)
        if headers > self._limits.headers_max:
            raise InvalidRecords(self._headers(number, headers))

    def _headers(self, number: int, headers: int) -> str:
        allowed = self._limits.headers_max
        return f"{self._place}: record {number} has {headers} headers, producer.max_headers allows {allowed}"

    def _future(self, number: int, timestamp: int) -> str:
        return (
            f"{self._place}: record {number} has timestamp {timestamp}, producer.timestamp_after_max allows up to "
            f"{self._limits.timestamp_ms_max} at this moment; timestamps are milliseconds since 1970"
        )

    def _check_size(self, number: int, record: Record) -> None:
        size = len(record.key or b"") + len(record.value or b"")
        for name, content in record.headers:
            size += len(name.encode()) + len(content or b"")
        if size > self._limits.batch_bytes_max:
            raise InvalidRecords(
                f"{self._place}: record {number} has {size} bytes, "
                f"producer.max_message_bytes allows {self._limits.batch_bytes_max}"
            )
