"""Downloads of copies: every byte once, from whichever sources; nothing that is wrong is taken."""

from collections import deque
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pixy.copies import CopyDownload, CopySources, DescendingEpoch, RequestsAhead, copy_download
from pixy.errors import CorruptData
from pixy.proto.copies_pb2 import FetchCopyRequest, FetchCopyResponse
from pixy.records import BatchHeader, crc32c, patch_batch, read_header
from tests.copies.sources import Source, log_of
from tests.storage.batches import batch

LOG = log_of(60, Random(7))
END = read_header(LOG[-1]).next_offset
EPOCH = read_header(LOG[-1]).leader_epoch
CUTS = st.lists(st.integers(1, len(LOG) - 1), max_size=8)


def taken(download: CopyDownload, answer: FetchCopyResponse, bytes_max: int = 1 << 20) -> list[memoryview]:
    return download.take(answer, answer.data, bytes_max)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(CUTS, min_size=1, max_size=3), st.integers(0, len(LOG) - 1), st.integers(0, 1 << 32))
def test_every_batch_comes_once_from_whatever_sources(cuts: list[list[int]], first: int, seed: int) -> None:
    rng = Random(seed)
    sources = [Source(LOG, each) for each in cuts]
    download = CopyDownload(read_header(LOG[first]).base_offset, END, EPOCH, begins=False)
    source, found = sources[0], list[bytes]()
    requests, ahead = RequestsAhead(1), deque[FetchCopyRequest]()
    while not download.is_complete:
        if rng.random() < 0.1:  # a break: from here on another source, or the same one again
            source = rng.choice(sources)
            download.change_source()
            ahead.clear()
        size = rng.choice((1, 60, 100, 500, 5000))
        request = ahead.popleft() if ahead else download.request(1, size)
        if rng.random() < 0.1:
            source.bytes_max = rng.choice((10, 1 << 20))
        answer = source.answer(request)
        if not requests.came(answer, len(answer.data), request.max_bytes, alone=not ahead):
            ahead.clear()
        while len(ahead) < 3 and (behind := requests.next(size)) is not None:
            ahead.append(behind)
        found += [bytes(each) for each in taken(download, answer, request.max_bytes)]
        assert download.offset == (
            read_header(found[-1]).next_offset if found else read_header(LOG[first]).base_offset
        )
    assert found == LOG[first:]


def test_a_copy_ends_within_a_segment() -> None:
    end = read_header(LOG[30]).base_offset
    download = CopyDownload(0, end, EPOCH, begins=True)
    answer = Source(LOG, []).answer(download.request(1, 1 << 20))
    assert [bytes(each) for each in taken(download, answer)] == LOG[:30]
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
    download = CopyDownload(0, END, EPOCH, begins=True)
    wrong = source.answer(download.request(1, 1 << 20))
    damage(wrong)
    with pytest.raises(CorruptData):
        taken(download, wrong)
    assert download.offset == 0
    right = source.answer(download.request(1, 1 << 20))
    assert [bytes(each) for each in taken(download, right)] == LOG


def test_an_answer_larger_than_asked_for_is_refused() -> None:
    download = CopyDownload(0, END, EPOCH, begins=True)
    answer = Source(LOG, []).answer(download.request(1, 100))
    with pytest.raises(CorruptData, match="99 were asked for"):
        taken(download, answer, 99)


def test_a_batch_of_another_place_is_refused_before_all_of_it_has_come() -> None:
    large = bytearray(LOG[0])
    large[8:12] = (1 << 29).to_bytes(4, "big")
    for offset in (1, 0):
        large[:8] = offset.to_bytes(8, "big")
        data = bytes(large[:70])
        crc = crc32c(data)
        answer = FetchCopyResponse(data=data, crc=crc, run_crc=crc, total_bytes=1 << 30)
        download = CopyDownload(0, END, EPOCH, begins=True)
        if offset:
            with pytest.raises(CorruptData, match="has offsets 1 to"):
                taken(download, answer, 100)
        else:
            assert taken(download, answer, 100) == []


def test_a_copy_begins_with_the_whole_batch_that_has_its_first_offset() -> None:
    number = next(at for at, each in enumerate(LOG) if at > 5 and _records(each) == 3)
    base = read_header(LOG[number]).base_offset
    for within in (0, 1, 2):
        download = CopyDownload(base + within, END, EPOCH, begins=True)
        answer = Source(LOG, [5]).answer(download.request(1, 1 << 20))
        assert [bytes(each) for each in taken(download, answer)] == LOG[number:]
        assert download.begin_offset == base


def _records(content: bytes) -> int:
    header = read_header(content)
    return header.next_offset - header.base_offset


def test_what_comes_behind_other_records_begins_at_their_end() -> None:
    number = next(at for at, each in enumerate(LOG) if at > 5 and _records(each) == 3)
    base = read_header(LOG[number]).base_offset
    download = CopyDownload(base + 1, END, EPOCH, begins=False)
    answer = Source(LOG, [5]).answer(download.request(1, 1 << 20))
    with pytest.raises(CorruptData, match=f"has offsets {base} to"):
        taken(download, answer)


def test_an_epoch_that_descends_is_told_apart_and_another_begin_knows_none() -> None:
    right, download = Source(LOG, []), CopyDownload(0, END, EPOCH, begins=True)
    first = right.answer(download.request(1, len(LOG[0])))
    first.data = first.data[:12] + EPOCH.to_bytes(4, "big") + first.data[16:]
    _with_crc(first)
    assert len(taken(download, first)) == 1
    download.change_source()
    with pytest.raises(DescendingEpoch):
        taken(download, right.answer(download.request(1, 1 << 20)))
    download.restart(0, begins=True)
    assert len(taken(download, right.answer(download.request(1, 1 << 20)))) == len(LOG)


def test_a_batch_of_many_chunks_is_put_together_once(monkeypatch: pytest.MonkeyPatch) -> None:
    content, looks = batch(1, 4 << 20), list[int]()
    patch_batch(content, 0, 1)

    def look(data: bytes, at: int = 0) -> BatchHeader:
        looks.append(len(data))
        return read_header(data, at)

    monkeypatch.setattr(copy_download, "read_header", look)
    download = CopyDownload(0, 1, 1, begins=True)
    source, chunk = Source([bytes(content)], []), 4096
    while not download.is_complete:
        found = taken(download, source.answer(download.request(1, chunk)), chunk)
    assert [bytes(each) for each in found] == [bytes(content)]
    assert looks[:2] == [chunk, len(content)]


def test_bytes_of_another_place_than_the_run_are_refused() -> None:
    source, download = Source(LOG, []), CopyDownload(0, END, EPOCH, begins=True)
    taken(download, source.answer(download.request(1, 100)), 100)
    again = source.answer(CopyDownload(0, END, EPOCH, begins=True).request(1, 100))
    with pytest.raises(CorruptData, match="asked for was byte 100"):
        taken(download, again, 100)


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


def test_batches_are_views_of_what_has_come_but_for_one_that_comes_in_parts() -> None:
    source, download = Source(LOG, []), CopyDownload(0, END, EPOCH, begins=True)
    for size in (len(LOG[0]) + 10, len(LOG[1]) + len(LOG[2]), 1 << 20):
        answer = source.answer(download.request(1, size))
        data = answer.data
        found = download.take(answer, data, size)
        views = [each for each in found if each.obj is data]
        assert len(found) - len(views) == (size != len(LOG[0]) + 10)
    assert download.is_complete
