"""Record batches of a partition on their way to or from a target: what is taken of them. Pure.

Nothing is believed. Taken are whole batches with a right checksum, each of which begins where the
one before ends. The first one may begin earlier than the offset that is wanted: records are removed
one by one, and batches are not divided.

A cut by time leaves out the first record at or after that time, and all behind it, also those that
have an earlier timestamp. The batch that the first one is in is built anew without it.
"""

from collections.abc import Iterator

from pixy.errors import CorruptData
from pixy.records import (
    HEADER_BYTES,
    NewRecord,
    batch_bytes,
    build_batch,
    check_batch,
    patch_batch,
    read_header,
    read_records,
)

Buffer = bytes | bytearray | memoryview


class BatchRun:
    """Consecutive batches from an offset on.

    Args:
        offset: the first record that is wanted.

    Attributes:
        offset: the next one.
        first: where the first batch begins; `offset` before there is one.
        epoch: leader epoch of the last batch, 0 before there is one.
    """

    def __init__(self, offset: int) -> None:
        self.offset = self.first = offset
        self.epoch = 0
        self._begun = False

    def take(self, data: Buffer, end: int) -> list[memoryview]:
        """The whole batches of a buffer that come next, up to an offset; batches before are
        skipped.

        Raises:
            CorruptData: there are other bytes, or a batch is missing.
        """
        view, at, taken = memoryview(data), 0, []
        while at < len(view) and self.offset < end:
            size = batch_bytes(view, at) if at + HEADER_BYTES <= len(view) else HEADER_BYTES
            if size < HEADER_BYTES or at + size > len(view):
                raise CorruptData(f"a batch at byte {at} of {len(view)} is not whole")
            batch = view[at : at + size]
            header = read_header(batch)
            at += size
            if header.next_offset <= self.offset:
                continue
            follows = header.base_offset == self.offset or (
                not self._begun and header.base_offset < self.offset
            )
            if not follows or header.next_offset > end:
                raise CorruptData(
                    f"a batch has offsets {header.base_offset} to {header.next_offset}, expected is one from "
                    f"{self.offset} on, up to {end}"
                )
            check_batch(batch)
            if header.leader_epoch < self.epoch:
                raise CorruptData(
                    f"the batch at offset {header.base_offset} has leader epoch {header.leader_epoch}, one before it "
                    f"had {self.epoch}"
                )
            if not self._begun:
                self.first, self._begun = header.base_offset, True
            self.offset, self.epoch = header.next_offset, header.leader_epoch
            taken.append(batch)
        return taken


class TimeCut:
    """The end of a log by time.

    Args:
        before_ms: the first record with this or a later timestamp is left out, and all behind it.

    Attributes:
        end: the end of the log, None before it is found.
    """

    def __init__(self, before_ms: int) -> None:
        self._before_ms = before_ms
        self.end: int | None = None

    def take(self, batches: list[memoryview]) -> Iterator[Buffer]:
        """The batches, and the last one as far as it goes."""
        for batch in batches:
            if self.end is not None:
                return
            header = read_header(batch)
            if header.max_timestamp < self._before_ms:
                yield batch
                continue
            kept = self._kept(batch)
            if kept is None:  # its records are earlier than its header says
                yield batch
                continue
            self.end = header.base_offset + len(kept)
            if kept:
                first = kept[0]
                kept[0] = first._replace(timestamp_ms=max(0, first.timestamp_ms))
                shorter = build_batch(kept)
                patch_batch(shorter, header.base_offset, header.leader_epoch)
                yield shorter

    def _kept(self, batch: memoryview) -> list[NewRecord] | None:
        """Records of a batch before the first one that is left out; None if there is no such
        record. Records that cannot be decoded are left out.
        """
        kept: list[NewRecord] = []
        try:
            for record in read_records(batch):
                if record.timestamp >= self._before_ms:
                    return kept
                kept.append(NewRecord(record.key, record.value, record.headers, record.timestamp))
        except CorruptData:
            return kept
        return None
