"""Copy sessions at a source: what they refuse, in which order, and when they end."""

from random import Random

import pytest

from pixy.copies import CopySession, CopySessions
from pixy.errors import CopyTryLater, InvalidCopyRequest, NoCopySession, PixyError, SegmentNotFound
from pixy.proto.copies_pb2 import FetchCopyRequest
from pixy.records import crc32c, read_header
from tests.copies.sources import KEY, Source, log_of

LOG = log_of(20, Random(1))
SOURCE = Source(LOG, [5, 12])
BASE = list(SOURCE.segments)[1]
SIZE = SOURCE.session.segments[1].size
END = SOURCE.session.segments[-1].end_offset


def sessions(sessions_max: int = 2, idle_s: float = 60.0) -> CopySessions:
    return CopySessions(3, sessions_max, idle_s)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (FetchCopyRequest(), InvalidCopyRequest),
        (FetchCopyRequest(segment=BASE, log_offset=BASE), InvalidCopyRequest),
        (FetchCopyRequest(segment=-1), InvalidCopyRequest),
        (FetchCopyRequest(log_offset=-1), InvalidCopyRequest),
        (FetchCopyRequest(segment=BASE + 1), SegmentNotFound),
        (FetchCopyRequest(segment=END), SegmentNotFound),
        (FetchCopyRequest(log_offset=END), SegmentNotFound),
        (FetchCopyRequest(segment=BASE, position=SIZE), InvalidCopyRequest),
        (FetchCopyRequest(segment=BASE, position=SIZE + 1), InvalidCopyRequest),
    ],
)
def test_a_request_for_what_is_not_there_is_refused(
    request_: FetchCopyRequest, error: type[PixyError]
) -> None:
    with pytest.raises(error):
        SOURCE.session.find(request_, 100)


@pytest.mark.parametrize(
    ("request_", "position", "length"),
    [
        (FetchCopyRequest(segment=BASE), 0, 100),
        (FetchCopyRequest(segment=BASE, position=SIZE - 1), SIZE - 1, 100),
        (FetchCopyRequest(segment=BASE, position=7, max_bytes=10), 7, 10),
        (FetchCopyRequest(segment=BASE, max_bytes=1000), 0, 100),
        (FetchCopyRequest(log_offset=BASE), 0, 100),
    ],
)
def test_a_request_gets_at_most_what_it_and_the_source_want(
    request_: FetchCopyRequest, position: int, length: int
) -> None:
    wanted = SOURCE.session.find(request_, 100)
    assert (wanted.segment.base_offset, wanted.position, wanted.max_bytes) == (BASE, position, length)


def test_a_run_is_what_was_served_one_after_the_other() -> None:
    session = CopySession(1, KEY, 0, 0.0)
    assert session.served(0, 0, b"ab", crc32c(b"ab")) == (crc32c(b"ab"), 0)
    assert session.served(0, 2, b"c", crc32c(b"c")) == (crc32c(b"abc"), 0)
    # Again, elsewhere, and in another segment: a new run.
    assert session.served(0, 2, b"c", crc32c(b"c")) == (crc32c(b"c"), 2)
    assert session.served(0, 3, b"d", crc32c(b"d")) == (crc32c(b"cd"), 2)
    assert session.served(9, 4, b"e", crc32c(b"e")) == (crc32c(b"e"), 4)


def test_a_request_by_offset_begins_a_run_also_behind_what_was_served_last() -> None:
    session = Source(LOG, []).session
    first = LOG[0]
    assert session.served(0, 0, first, crc32c(first)) == (crc32c(first), 0)
    session.find(FetchCopyRequest(log_offset=read_header(first).next_offset), 100)
    assert session.served(0, len(first), b"c", crc32c(b"c")) == (crc32c(b"c"), len(first))


def test_the_same_copy_finds_its_session_and_another_one_does_not() -> None:
    open_ = sessions()
    session = open_.begin(KEY, 0, 1.0)
    assert open_.same(KEY, 2.0) is session
    assert session.used_at == 2.0
    for other in (KEY._replace(incarnation=6), KEY._replace(entry=78)):
        assert open_.same(other, 2.0) is None
        assert open_.older(other) is session
    for other in (KEY._replace(node_id=3), KEY._replace(raft_group=1001)):
        assert (open_.same(other, 2.0), open_.older(other)) == (None, None)


def test_a_session_is_that_of_its_node_and_of_this_start_of_the_source() -> None:
    open_ = sessions()
    number = open_.begin(KEY, 0, 1.0).number
    assert open_.use(number, KEY.node_id, 1.0).key == KEY
    for wrong in (number + 1, CopySessions(4, 2, 60.0).begin(KEY, 0, 1.0).number):
        assert not open_.active(wrong, KEY.node_id, 1.0, keepalive=True)
        with pytest.raises(NoCopySession, match=f"no copy session {wrong}"):
            open_.use(wrong, KEY.node_id, 1.0)
    assert not open_.active(number, 3, 1.0, keepalive=True)
    with pytest.raises(NoCopySession):
        open_.use(number, 3, 1.0)


def test_sessions_are_limited() -> None:
    open_ = sessions(2)
    first = open_.begin(KEY, 0, 1.0)
    open_.begin(KEY._replace(node_id=3), 0, 1.0)
    with pytest.raises(CopyTryLater, match="2 copy sessions are open, 2 are allowed"):
        open_.begin(KEY._replace(node_id=4), 0, 1.0)
    open_.end(first)
    open_.end(first)
    assert open_.begin(KEY._replace(node_id=4), 0, 1.0)


def test_a_node_leaves_sessions_for_others() -> None:
    some = sessions(sessions_max=8)
    for group in range(6):
        some.begin(KEY._replace(raft_group=group), 0, 0.0)
    with pytest.raises(CopyTryLater, match="node 2 has 6 copy sessions, 6 are allowed"):
        some.begin(KEY._replace(raft_group=6), 0, 0.0)
    other = some.begin(KEY._replace(node_id=3), 0, 0.0)
    some.begin(KEY._replace(node_id=4), 0, 0.0)
    with pytest.raises(CopyTryLater, match="8 copy sessions are open"):
        some.begin(KEY._replace(node_id=5), 0, 0.0)
    some.end(other)
    some.begin(KEY._replace(node_id=5), 0, 0.0)


@pytest.mark.parametrize(("keepalive", "ends"), [(False, True), (True, False)])
def test_a_session_ends_when_nobody_uses_it(keepalive: bool, ends: bool) -> None:
    open_ = sessions(idle_s=60.0)
    session = open_.begin(KEY, 0, 0.0)
    assert open_.expired(59.9) == []
    assert open_.active(session.number, KEY.node_id, 59.9, keepalive=keepalive)
    assert open_.expired(60.0) == ([session] if ends else [])


def test_an_idle_time_of_0_is_never() -> None:
    open_ = sessions(idle_s=0.0)
    open_.begin(KEY, 0, 0.0)
    assert open_.expired(1e9) == []
