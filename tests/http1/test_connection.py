"""pixy/http1: requests out of bytes however they are cut, answers in their order."""

import random
from functools import partial

import pytest

from pixy.http1 import CLOSE, Http1Connection, Http1Options, HttpRefusal, HttpRequest, chunk, status_line
from tests.http1.peer import GET, POST, SMUGGLING, Seen, connection, feed, refused

CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
STREAMS = {
    "a request": GET,
    "requests": GET + b"\r\n" + POST + b"Content-Length: 5\r\n\r\nhello" + GET,
    "chunks": CHUNKED + b"5\r\nhello\r\n0a\r\n0123456789\r\n0\r\n\r\n" + GET,
    "no chunks": CHUNKED + b"0\r\n\r\n" + GET,
    "trailers": CHUNKED + b"1\r\nx\r\n0\r\nA: b\r\nC: d\r\n\r\n" + GET,
    "an empty body": POST + b"Content-Length: 0\r\n\r\n" + GET,
    "the last one": GET + GET[:-2] + b"Connection: close\r\n\r\n" + GET,
    "empty lines": b"\r\n\r\n\r\n" + GET,
    "a body like a request": POST + b"Content-Length: %d\r\n\r\n" % len(GET) + GET + GET,
    "a body too large": GET + POST + b"Content-Length: 1001\r\n\r\n" + bytes(1001) + GET,
    "chunks too large": CHUNKED + b"3e8\r\n" + bytes(1000) + b"\r\n1\r\nx\r\n0\r\n\r\n",
    **{name: GET + POST + each + GET for name, each in SMUGGLING.items()},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMS)
def test_the_cuts_of_the_transport_change_nothing(name: str) -> None:
    sent = STREAMS[name]
    whole = feed(connection(), [sent])
    assert feed(connection(), [sent[at : at + 1] for at in range(len(sent))]) == whole
    assert feed(connection(), [sent], work=1) == whole
    chooser = random.Random(1)
    for at in sorted(chooser.sample(range(1, len(sent)), min(len(sent) - 1, 100))):
        assert feed(connection(), [sent[:at], sent[at:]]) == whole


def test_requests_and_bodies_are_those_that_were_sent() -> None:
    get = ("GET", b"/a", b"", b"")
    assert feed(connection(), [STREAMS["requests"]]) == Seen([get, ("POST", b"/a", b"", b"hello"), get], 0)
    assert feed(connection(), [STREAMS["chunks"]]) == Seen([("POST", b"/a", b"", b"hello0123456789"), get], 0)
    assert feed(connection(), [STREAMS["the last one"]]) == Seen([get, get], 0)
    assert feed(connection(), [STREAMS["trailers"]]) == Seen([("POST", b"/a", b"", b"x"), get], 0)


@pytest.mark.parametrize(
    ("sent", "slices_min"), [(b"1\r\n[\r\n" * 900, 5), (b"384\r\n" + bytes(900) + b"\r\n", 1)]
)
def test_chunks_of_a_byte_take_several_slices(sent: bytes, slices_min: int) -> None:
    core, slices = connection(), 0
    core.receive(CHUNKED + sent + b"0\r\n\r\n", 1 << 20)
    while (event := core.next_event(0.0)) is None:
        slices += 1
        core.receive(b"", 1 << 20)
    assert isinstance(event, HttpRequest)
    assert len(event.body) == 900
    assert slices_min - 1 <= slices <= 3 * slices_min


@pytest.mark.parametrize("name", SMUGGLING)
def test_what_smuggles_requests_is_refused_and_ends_the_connection(name: str) -> None:
    core = connection()
    seen = feed(core, [GET + POST + SMUGGLING[name] + GET])
    assert seen.refused == 400
    assert len(seen.requests) == 1, "nothing behind it is a request"
    assert is_closed(core)
    assert core.take_output(1000) == b"0,refused"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: h\r\n\r\n", 414),
        (b"GET /" + b"x" * 20_000, 414),
        (GET[:-2] + b"X: " + b"x" * 20_000, 431),
        (GET[:-2] + b"X: y\r\n" * 100 + b"\r\n", 431),
        (POST + b"Content-Length: 1001\r\n\r\n", 413),
        (CHUNKED + b"3e9\r\n", 413),
        (CHUNKED + b"ffffffff\r\n", 413),
        (CHUNKED + b"0\r\nX: " + b"x" * 20_000, 431),
        (b"GET / HTTP/1.1\nHost: h\n\n", 400),
        (b"\x16\x03\x01\x00\xa5\x01\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    ],
)
def test_limits_of_a_request(sent: bytes, status: int) -> None:
    assert refused(sent) == status
    core = connection()
    assert feed(core, [sent[at : at + 7] for at in range(0, len(sent), 7)]).refused == status
    assert core.buffered_bytes <= 20


@pytest.mark.slow
def test_chunks_may_be_small_but_not_all_of_them() -> None:
    small = b"1\r\nx\r\n"
    seen = feed(connection(body_bytes_max=1 << 20), [CHUNKED + small * 10_000 + b"0\r\n\r\n"])
    assert seen.requests[0][3] == b"x" * 10_000
    large = b"%x\r\n%b\r\n" % (500_000, bytes(500_000))
    seen = feed(connection(body_bytes_max=1 << 20), [CHUNKED + large + small * 50_000 + b"0\r\n\r\n"])
    assert len(seen.requests) == 1
    assert feed(connection(body_bytes_max=1 << 20), [CHUNKED + small * 50_000]).refused == 413


def test_the_head_of_a_refused_body_is_known() -> None:
    core = connection()
    core.receive(POST + b"Content-Length: 1001\r\n\r\n", 1000)
    event = core.next_event(0.0)
    assert isinstance(event, HttpRefusal)
    assert event.head is not None
    assert event.head.path == b"/a"


def is_closed(core: Http1Connection) -> bool:
    return core.closed


def events(core: Http1Connection) -> list[HttpRequest | HttpRefusal]:
    """All events that the core has."""
    return list(iter(partial(core.next_event, 0.0), None))


# --- answers --------------------------------------------------------------------------------------


def test_answers_leave_in_the_order_of_their_requests() -> None:
    core = connection()
    core.receive(GET * 4, 1000)
    numbers = [core.next_event(0.0).number for _ in range(4)]  # type: ignore[union-attr]
    assert numbers == [0, 1, 2, 3]
    assert core.respond(2, b"two") == 0
    assert core.respond(1, b"one") == 0
    assert not core.has_output
    assert core.respond(0, b"zero") == 3
    assert core.take_output(1000) == b"zeroonetwo"
    core.check_invariants()
    core.send(3, b"th")
    assert core.finish(3, b"ree") == 1
    assert core.take_output(1000) == b"three"
    assert core.unanswered == 0


def test_output_is_taken_in_parts() -> None:
    core = connection()
    feed(core, [GET * 30])
    assert core.take_output(5) == b"0,1,2,"
    assert core.has_output
    core.set_unwritten(6)
    assert core.queued_bytes == 30 * 3 - 10 - 6 + 6
    assert core.take_output(1000).endswith(b"29,")
    assert (core.take_output(1000), core.queued_bytes) == (b"", 0)


def test_a_client_that_is_asked_to_goes_on_with_its_body() -> None:
    expecting = POST + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n"
    core = connection()
    assert feed(core, [expecting]).requests == []
    assert core.take_output(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert len(feed(core, [b"hello"]).requests) == 1
    assert core.take_output(1000) == b"0,"
    feed(core, [expecting + b"h"])
    assert not core.has_output, "it has not waited"


def test_a_client_is_asked_behind_earlier_answers() -> None:
    core = connection()
    core.receive(GET + POST + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n", 1000)
    assert [type(event) for event in events(core)] == [HttpRequest]
    assert not core.has_output
    core.respond(0, b"first\n")
    assert core.take_output(1000) == b"first\nHTTP/1.1 100 Continue\r\n\r\n"


def test_a_body_that_is_too_large_is_not_asked_for() -> None:
    core = connection()
    assert feed(core, [POST + b"Expect: 100-continue\r\nContent-Length: 5000\r\n\r\n"]).refused == 413
    assert core.take_output(1000) == b"refused"


def test_nothing_is_read_ahead_of_64_answers() -> None:
    core = connection()
    core.receive(GET * 100, 1 << 20)
    assert len(events(core)) == 64
    assert core.full
    assert not core.pending
    core.respond(0, b"x")
    core.receive(b"", 1 << 20)
    assert len(events(core)) == 1


# --- the end --------------------------------------------------------------------------------------


def test_the_connection_closes_behind_the_last_request_of_the_client() -> None:
    core = connection()
    core.receive(GET[:-2] + b"Connection: close\r\n\r\n" + GET, 1000)
    assert len(events(core)) == 1
    assert core.closes_after(0)
    assert not is_closed(core)
    core.respond(0, b"bye")
    assert feed(core, []) == Seen([], 0)
    assert is_closed(core)
    assert core.has_output
    core.receive(GET, 1000)
    assert core.next_event(0.0) is None


def test_a_drain_that_is_announced_ends_with_the_next_answer() -> None:
    core = connection()
    core.announce_drain()
    assert not is_closed(core), "requests on idle connections are served"
    core.receive(GET * 2, 1000)
    assert core.next_event(0.0) is not None
    assert core.next_event(0.0) is not None
    assert not core.closes_after(0)
    core.respond(0, b"0")
    assert core.closes_after(1)
    core.respond(1, b"1")
    assert is_closed(core)


def test_a_drain_closes_what_is_idle() -> None:
    core = connection()
    core.drain()
    assert is_closed(core)
    core = connection()
    feed(core, [GET])
    core.drain()
    assert is_closed(core)
    assert core.has_output


@pytest.mark.parametrize("begun", [GET[:10], POST + b"Content-Length: 5\r\n\r\nhe"])
def test_a_drain_waits_for_a_request_that_has_begun(begun: bytes) -> None:
    core = connection()
    feed(core, [begun])
    core.drain()
    assert not is_closed(core)
    rest = GET[10:] if begun.startswith(b"GET") else b"llo"
    core.receive(rest, 1000)
    assert core.next_event(0.0) is not None
    assert core.closes_after(0)
    core.respond(0, b"x")
    assert is_closed(core)


def test_a_connection_that_is_terminated_is_closed() -> None:
    core = connection()
    core.receive(GET * 2, 1000)
    assert core.next_event(0.0) is not None
    core.terminate()
    assert (core.closed, core.pending, events(core)) == (True, False, [])


# --- time -----------------------------------------------------------------------------------------

TIMES = Http1Options(head_s=10, body_s=100, idle_s=50)


@pytest.mark.parametrize(
    ("sent", "limit"),
    [
        (b"G", 10),
        (GET[:-1], 10),
        (POST + b"Content-Length: 5\r\n\r\n", 100),
        (CHUNKED + b"5\r\nhe", 100),
        (CHUNKED + b"0\r\n", 100),
    ],
)
def test_a_request_that_is_not_complete_in_time_is_refused(sent: bytes, limit: float) -> None:
    core = connection(TIMES)
    feed(core, [sent], now=1000.0)
    assert core.tick(1000.0 + limit - 1) is None
    event = core.tick(1000.0 + limit)
    assert event is not None
    assert event.status == 408
    core.respond(event.number, b"late")
    assert is_closed(core)


def test_a_byte_now_and_then_does_not_extend_the_time() -> None:
    core = connection(TIMES)
    for second in range(10):
        feed(core, [GET[second : second + 1]], now=1000.0 + second)
        assert core.tick(1000.0 + second) is None
    assert core.tick(1010.0) is not None


def test_an_idle_connection_is_closed_without_a_word() -> None:
    core = connection(TIMES)
    assert core.tick(49.0) is None
    assert not is_closed(core)
    core.receive(GET, 1000)
    assert core.next_event(49.0) is not None
    core.tick(1000.0)
    assert not is_closed(core), "a request is unanswered"
    core.respond(0, b"x")
    core.take_output(10)
    core.tick(1049.0)
    assert not is_closed(core)
    core.tick(1050.0)
    assert is_closed(core)
    assert not core.has_output


def test_parts_of_answers() -> None:
    assert status_line(404) == b"HTTP/1.1 404 Not Found\r\n"
    assert chunk(b"x" * 20) == b"14\r\n" + b"x" * 20 + b"\r\n"
    assert CLOSE == b"Connection: close\r\n"
