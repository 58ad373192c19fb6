"""Downloads of copies: every byte once, from whichever sources; nothing that is wrong is taken."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pixy.copies import CopyDownload, CopySources
from pixy.errors import CorruptData
from pixy.proto.copies_pb2 import FetchCopyResponse
from pixy.records import crc32c, read_header
from tests.copies.sources import Source, log_of

LOG = log_of(60, Random(7))
END = read_header(LOG[-1]).next_offset
EPOCH = read_header(LOG[-1]).leader_epoch
CUTS = st.lists(st.integers(1, len(LOG) - 1), max_size=8)


@settings(max_examples=60, deadline=None)
@given(st.lists(CUTS, min_size=1, max_size=3), st.integers(0, len(LOG) - 1), st.integers(0, 1 << 32))
def test_every_batch_comes_once_from_whatever_sources(cuts: list[list[int]], first: int, seed: int) -> None:
    rng = Random(seed)
    sources = [Source(LOG, each) for each in cuts]
    download = CopyDownload(read_header(LOG[first]).base_offset, END, EPOCH)
    source, found = sources[0], list[bytes]()
    while not download.is_complete:
        if rng.random() < 0.1:  # a break: from here on another source, or the same one again
            source = rng.choice(sources)
            download.restart(download.offset)
        size = rng.choice((1, 60, 100, 500, 5000))
        answer = source.answer(download.request(1, size))
        found += [bytes(each) for each in download.take(answer, size)]
        assert download.offset == (
            read_header(found[-1]).next_offset if found else read_header(LOG[first]).base_offset
        )
    assert found == LOG[first:]


def test_a_copy_ends_within_a_segment() -> None:
    end = read_header(LOG[30]).base_offset
    download = CopyDownload(0, end, EPOCH)
    answer = Source(LOG, []).answer(download.request(1, 1 << 20))
    assert [bytes(each) for each in download.take(answer, 1 << 20)] == LOG[:30]
    assert download.is_complete


def _with_crc(answer: FetchCopyResponse) -> None:
    answer.crc = answer.run_crc = crc32c(answer.data)


def _other_position(answer: FetchCopyResponse) -> None:
    answer.position = answer.run_position = 1


def _behind_the_end(answer: FetchCopyResponse) -> None:
    answer.total_bytes = len(answer.data) - 1


def _empty(answer: FetchCopyResponse) -> None:
    answer.data = b""
    _with_crc(answer)


def _flipped(answer: FetchCopyResponse) -> None:
    answer.data = answer.data[:70] + bytes([answer.data[70] ^ 1]) + answer.data[71:]


def _rotten(answer: FetchCopyResponse) -> None:
    _flipped(answer)
    _with_crc(answer)


def _without_a_batch(answer: FetchCopyResponse) -> None:
    answer.data = answer.data[len(LOG[0]) :]
    _with_crc(answer)


def _wrong_run(answer: FetchCopyResponse) -> None:
    answer.run_crc ^= 1


def _earlier_run(answer: FetchCopyResponse) -> None:
    answer.run_position = 5


def _later_segment(answer: FetchCopyResponse) -> None:
    answer.segment = 1


def _cut_short(answer: FetchCopyResponse) -> None:
    answer.data = answer.data[:-1]
    answer.total_bytes = len(answer.data)
    _with_crc(answer)


def _epoch(epoch: int) -> Callable[[FetchCopyResponse], None]:
    def change(answer: FetchCopyResponse) -> None:
        content = bytearray(answer.data)
        at = len(LOG[0]) + 12
        content[at : at + 4] = epoch.to_bytes(4, "big")
        answer.data = bytes(content)
        _with_crc(answer)

    return change


@pytest.mark.parametrize(
    "damage",
    [
        _other_position,
        _behind_the_end,
        _empty,
        _flipped,
        _rotten,
        _without_a_batch,
        _wrong_run,
        _earlier_run,
        _later_segment,
        _cut_short,
        _epoch(0),
        _epoch(EPOCH + 1),
    ],
)
def test_a_wrong_answer_is_refused_and_changes_nothing(damage: Callable[[FetchCopyResponse], None]) -> None:
    source = Source(LOG, [])
    download = CopyDownload(0, END, EPOCH)
    wrong = source.answer(download.request(1, 1 << 20))
    damage(wrong)
    with pytest.raises(CorruptData):
        download.take(wrong, 1 << 20)
    assert download.offset == 0
    right = source.answer(download.request(1, 1 << 20))
    assert [bytes(each) for each in download.take(right, 1 << 20)] == LOG


def test_an_answer_larger_than_asked_for_is_refused() -> None:
    download = CopyDownload(0, END, EPOCH)
    answer = Source(LOG, []).answer(download.request(1, 100))
    with pytest.raises(CorruptData, match="99 were asked for"):
        download.take(answer, 99)


def test_a_batch_of_another_place_is_refused_before_all_of_it_has_come() -> None:
    large = bytearray(LOG[0])
    large[8:12] = (1 << 29).to_bytes(4, "big")
    for offset in (1, 0):
        large[:8] = offset.to_bytes(8, "big")
        data = bytes(large[:70])
        crc = crc32c(data)
        answer = FetchCopyResponse(data=data, crc=crc, run_crc=crc, total_bytes=1 << 30)
        download = CopyDownload(0, END, EPOCH)
        if offset:
            with pytest.raises(CorruptData, match="has offsets 1 to"):
                download.take(answer, 100)
        else:
            assert download.take(answer, 100) == []


def test_bytes_of_another_place_than_the_run_are_refused() -> None:
    source, download = Source(LOG, []), CopyDownload(0, END, EPOCH)
    download.take(source.answer(download.request(1, 100)), 100)
    again = source.answer(CopyDownload(0, END, EPOCH).request(1, 100))
    with pytest.raises(CorruptData, match="asked for was byte 100"):
        download.take(again, 100)


def test_a_source_that_fails_is_asked_again_after_the_others_and_given_up_after_some_failures() -> None:
    sources = CopySources([3, 1, 2], 2)
    asked = []
    for for_good in (False, True, False):
        asked.append(sources.next)
        sources.failed(for_good=for_good)
    assert asked == [3, 1, 2]
    sources.progressed()
    for _ in range(3):
        asked.append(sources.next)
        sources.failed(for_good=False)
    assert asked[3:] == [3, 2, 3]
    assert sources.next is None
