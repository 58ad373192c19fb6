"""Replicas to copy from: the same log in segments of one's own sizes."""

from collections.abc import Sequence
from random import Random

from pixy.copies import CopiedSegment, CopyKey, CopySession
from pixy.proto.copies_pb2 import FetchCopyRequest, FetchCopyResponse
from pixy.records import crc32c, patch_batch, read_header
from tests.storage.batches import batch

KEY = CopyKey(2, 5, 1000, 77)


def log_of(count: int, rng: Random) -> list[bytes]:
    """A log of batches with one to three records, of ascending epochs."""
    batches, offset, epoch = [], 0, 1
    for _ in range(count):
        new = batch(rng.choice((1, 1, 3)), rng.choice((1, 10, 300)))
        epoch += rng.random() < 0.1
        offset = patch_batch(new, offset, epoch)
        batches.append(bytes(new))
    return batches


class Source:
    """A source of a copy.

    Args:
        batches: its log.
        cuts: numbers of the batches with which segments begin.

    Attributes:
        bytes_max: that it gives at a time.
    """

    def __init__(self, batches: Sequence[bytes], cuts: Sequence[int]) -> None:
        self.segments: dict[int, list[bytes]] = {}
        self.bytes_max = 1 << 20
        for number, each in enumerate(batches):
            if number in cuts or not self.segments:
                self.segments[read_header(each).base_offset] = []
            next(reversed(self.segments.values())).append(each)
        self.session = CopySession(1, KEY, 0, 0.0)
        self.session.segments = [
            CopiedSegment(base, read_header(some[-1]).next_offset, sum(map(len, some)))
            for base, some in self.segments.items()
        ]

    def answer(self, request: FetchCopyRequest) -> FetchCopyResponse:
        """The answer to a request."""
        wanted = self.session.find(request, self.bytes_max)
        base, position = wanted.segment.base_offset, wanted.position
        if wanted.log_offset is not None:
            for each in self.segments[base]:
                if read_header(each).next_offset > wanted.log_offset:
                    break
                position += len(each)
        chunk = b"".join(self.segments[base])[position : position + wanted.max_bytes]
        crc = crc32c(chunk)
        run_crc, run_position = self.session.served(base, position, chunk, crc)
        return FetchCopyResponse(
            segment=base,
            position=position,
            data=chunk,
            crc=crc,
            total_bytes=wanted.segment.size,
            run_crc=run_crc,
            run_position=run_position,
        )
