"""Distinguishes torn flushes, left by a crash, from damaged ones. Pure: examines a buffer, no file.

A flush overwrites zeros: files are allocated and synced before their first flush and never reused,
and a cut restores zeros. Its sectors reach the device in any order, and the interrupted call of a
killed process ends at a page (see `File.write_durably`). So after a crash each sector has either
the written bytes, or zeros: a sector of zeros is *missing*. Everything else about the flush is
reliable. It is torn if

- only zeros follow: the next flush is written only after this one was synced;
- the file is as long as the flush, unless it is the first in the file: only the first may extend
  it;
- its frame is valid, or has bytes in a missing sector;
- each record with a wrong checksum has bytes in a missing sector, up to the first record whose
  length is missing.

A payload may have whole sectors of zeros. A record with such a payload, damaged elsewhere, passes
the last test although nothing is missing. Hence one more test: a record that becomes valid by
changing one byte outside of the missing sectors is damaged, not torn. By chance this takes a torn
record for a damaged one in at most one case of a thousand: only single bits are tried in large
records, and nothing in the largest.

Undecidable cases count as torn, because the daemon must start after every crash: sectors zeroed by
another cause, and two wrong bytes in a record with sectors of zeros.

The road not taken: any sector of zeros means torn. Messages of zeros are common, and etcd lost
committed entries by that rule.
"""

from collections.abc import Iterator
from functools import cache

from pixy.records import crc32c
from pixy.storage.journal.journal_format import (
    FILE_HEADER_BYTES,
    FLUSH_FRAME_BYTES,
    FileHeader,
    head_bytes,
    is_zero,
    read_flush_frame,
)

SECTOR_BYTES = 512
"""The smallest unit that devices write as a whole."""

_LENGTH_BYTES = 4
_CRC_END = 8
_POLYNOMIAL = 0x82F63B78
_BYTES = tuple(range(1, 256))
_BITS = tuple(1 << bit for bit in range(8))
_CHANGES_MAX = 1 << 22
"""Limit of tried changes, of which one in 2^32 is right by chance."""


def why_not_torn(view: memoryview, at: int, header: FileHeader, flush_number: int) -> str:
    """The reason that no crash leaves the bytes from `at` on; "" if the expected flush is torn.

    Args:
        view: a whole journal file.
        at: the position of the flush with that number, or of zeros.
        header: the file's header.
    """
    tail = _Tail(view, at, head_bytes(header.version))
    end = at + FLUSH_FRAME_BYTES
    frame = read_flush_frame(view, at, header.cluster_id) if end <= len(view) else None
    if frame is not None:
        number, in_file, position, size, _ = frame
        if (number, in_file, position) != (flush_number, header.file_number, at):
            return "its frame is another flush's"
        end += size
    if end > len(view) and at > FILE_HEADER_BYTES:
        return "the file was cut off within it"
    if frame is None:
        return "" if tail.is_missing(at, end) else "every sector of its frame was written"
    if not is_zero(view[end:]):
        return "something was written behind it"
    return tail.damaged_record(end)


class _Tail:
    """The end of a file, from a flush on. `head_bytes` is the size of a record's head."""

    def __init__(self, view: memoryview, at: int, head_bytes: int) -> None:
        self._view = view
        self._at = at
        self._head_bytes = head_bytes

    def is_missing(self, begin: int, end: int) -> bool:
        """True if any sector of these bytes is missing. Bytes behind the end of the file are."""
        sectors = range(begin - begin % SECTOR_BYTES, end, SECTOR_BYTES)
        return end > len(self._view) or any(
            is_zero(self._view[max(self._at, sector) : sector + SECTOR_BYTES]) for sector in sectors
        )

    def damaged_record(self, end: int) -> str:
        """The reason why the first damaged record before `end` is not torn; "" if none is."""
        begin = self._at + FLUSH_FRAME_BYTES
        while begin < end:
            if self.is_missing(begin, begin + _LENGTH_BYTES):
                return ""
            behind = begin + self._head_bytes + _u32(self._view, begin)
            if behind > end:
                return f"the record at byte {begin} is longer than the flush"
            if not self._is_right(begin, behind):
                if not self.is_missing(begin, behind):
                    return f"every sector of the record at byte {begin} was written"
                if behind <= len(self._view) and self._is_right_but_for_one_byte(begin, behind, end):
                    return f"one byte of the record at byte {begin} is wrong"
            begin = behind
        return ""

    def _is_right(self, begin: int, behind: int) -> bool:
        return behind <= len(self._view) and self._crc(begin, behind) == _u32(
            self._view, begin + _LENGTH_BYTES
        )

    def _crc(self, begin: int, behind: int) -> int:
        crc: int = crc32c(self._view[begin + _CRC_END : behind])
        return crc

    def _is_right_but_for_one_byte(self, begin: int, behind: int, end: int) -> bool:
        """True if changing one byte outside of the missing sectors makes a record valid."""
        payload = begin + self._head_bytes
        for other in _one_byte_changed(behind - payload):
            if payload + other <= end and self._is_right(begin, payload + other):
                return True
        wrong = self._crc(begin, behind) ^ _u32(self._view, begin + _LENGTH_BYTES)
        if wrong.to_bytes(4, "little").count(0) == 3:
            return True  # a byte of the checksum itself
        return any(not self.is_missing(at, at + 1) for at in _wrong_bytes(wrong, begin + _CRC_END, behind))


def _one_byte_changed(number: int) -> Iterator[int]:
    for shift in range(0, 8 * _LENGTH_BYTES, 8):
        for change in _BYTES:
            yield number ^ change << shift


def _wrong_bytes(wrong: int, begin: int, behind: int) -> Iterator[int]:
    """Positions of single bytes whose change corrects a checksum with the difference `wrong`.

    The checksum is linear: the change of a byte contributes an entry of the table, shifted once for
    each byte behind it. Here `wrong` is shifted back instead.
    """
    table, back = _tables()
    changes = next((each for each in (_BYTES, _BITS) if len(each) * (behind - begin) <= _CHANGES_MAX), ())
    contributions = {table[change] for change in changes}
    if not contributions:
        return
    for at in range(behind - 1, begin - 1, -1):
        if wrong in contributions:
            yield at
        index = back[wrong >> 24]
        wrong = (wrong ^ table[index]) << 8 | index


@cache
def _tables() -> tuple[list[int], list[int]]:
    """Contribution of each byte to a CRC-32C, and the inverse: the byte for each highest byte."""
    table = list(range(256))
    for _ in range(8):
        table = [crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0) for crc in table]
    back = [0] * 256
    for byte, crc in enumerate(table):
        back[crc >> 24] = byte
    return table, back


def _u32(view: memoryview, at: int) -> int:
    return int.from_bytes(view[at : at + 4], "little")
