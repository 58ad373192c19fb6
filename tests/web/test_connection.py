"""pixy/web/connection.py, exchange.py: exchanges of real connections, from request to receipt."""

import asyncio
import ssl
from pathlib import Path

import pytest

from pixy.config import TlsConfig
from pixy.http1 import Http1Options
from pixy.serving import ServerOptions
from pixy.web import JSON, TEXT, WebOptions
from tests.fakes.certificates import make_certificate
from tests.fakes.waiting import settle, until
from tests.fakes.web import open_client, open_web
from tests.http1.peer import SMUGGLING
from tests.serving.support import NotedReceipt

GET = b"GET /echo/a HTTP/1.1\r\nHost: h\r\n\r\n"


async def test_requests_are_answered_by_their_routes_on_one_connection() -> None:
    async with open_web() as web, open_client(web.address) as client:
        answer = await client.call("GET", "/echo/a%20b")
        assert (answer.status, answer.text) == (200, "a b")
        assert list(answer.fields) == ["content-type", "date", "content-length"]
        assert (await client.call("POST", "/echo/x", b"body")).text == "xbody"
        answer = await client.call("GET", "/task/t")
        assert (answer.fields["content-type"], answer.text) == ("application/json", "t")
        assert (web.server.counters.accepted, web.server.counters.calls) == (1, 3)
        assert web.server.open_calls == 0


@pytest.mark.parametrize("kind", ["echo", "task"])
async def test_errors_have_their_status_and_bugs_an_id(kind: str) -> None:
    async with open_web() as web, open_client(web.address) as client:
        assert (await client.call("GET", f"/{kind}/fail"))[::2] == (418, "no: é\n".encode())
        assert (await client.call("GET", f"/{kind}/missing"))[::2] == (404, b"topic x does not exist\n")
        assert web.faults == []
        answer = await client.call("GET", f"/{kind}/bug")
        assert answer.status == 500
        assert "secret" not in answer.text
        assert [type(fault) for fault in web.faults] == [KeyError]
        assert (await client.call("GET", f"/{kind}/next")).status == 200


async def test_requests_without_a_route_are_told_so() -> None:
    async with open_web() as web, open_client(web.address) as client:
        answer = await client.call("GET", "/nothing")
        assert (answer.status, answer.text) == (404, "404 page not found\n")
        assert answer.fields["content-type"].startswith("text/plain")
        answer = await client.call("PUT", "/echo/a")
        assert (answer.status, answer.body, answer.fields["allow"]) == (405, b"", "GET, POST")
        assert (await client.call("HEAD", "/echo/a")).status == 405
        assert (await client.call("BREW", "/echo/a")).status == 405
        answer = await client.call("GET", "//echo/./a?b=c")
        assert (answer.status, answer.fields["location"]) == (301, "/echo/a?b=c")
        client.request("POST", "/nothing", b"x" * 10)
        assert (await client.answer()).status == 404
        assert await client.closed() == b"", "its body is not read"


async def test_pipelined_answers_come_in_the_order_of_requests() -> None:
    async with open_web() as web, open_client(web.address) as client:
        client.send(b"".join(b"GET /hold HTTP/1.1\r\nHost: h\r\n\r\n" for _ in range(3)) + GET)
        await until(lambda: len(web.held) == 3)
        receipts = [NotedReceipt() for _ in web.held]
        for number in (2, 1, 0):
            web.held[number][0].answer(TEXT, b"%d" % number, receipts[number])
            assert number == 0 or receipts[number].said == []
        assert [(await client.answer()).body for _ in range(4)] == [b"0", b"1", b"2", b"a"]
        assert [receipt.said for receipt in receipts] == [["delivered"]] * 3


async def test_reading_stops_at_64_unanswered_requests() -> None:
    async with open_web() as web, open_client(web.address) as client:
        hold = b"GET /hold HTTP/1.1\r\nHost: h\r\n\r\n"
        client.send(hold * 100)
        await until(lambda: len(web.held) == 64)
        client.send(hold * 1000)
        await until(lambda: web.links[0]._paused)
        held = web.links[0].core.buffered_bytes
        assert len(web.held) == 64
        for number in range(1100):
            await until(lambda: len(web.held) > number)  # noqa: B023 - called within the turn
            web.held[number][0].answer(TEXT, b"x")
        for _ in range(1100):
            assert (await client.answer()).body == b"x"
        assert held < 64 * 1024


@pytest.mark.parametrize("path", ["/hold", "/wait"])
@pytest.mark.parametrize("behind", [0, 3])
async def test_a_client_that_closes_is_gone(path: str, behind: int) -> None:
    async with open_web() as web, open_client(web.address) as client:
        client.request("GET", path)
        await until(lambda: web.server.open_calls == 1)
        for _ in range(behind if path == "/wait" else 0):
            client.request("GET", "/echo/a")
        client.writer.write_eof()
        cancelled = web.held[0][1].cancelled if web.held else web.cancelled
        await asyncio.wait_for(cancelled.wait(), 60)
        await until(lambda: web.server.connections == 0)
        assert (web.server.open_calls, web.server.counters.gone) == (0, 1)
        if web.held:
            receipt = NotedReceipt()
            web.held[0][0].answer(TEXT, b"late", receipt)
            assert receipt.said == ["undelivered"]


async def test_an_answer_behind_one_that_never_comes_is_undelivered() -> None:
    async with open_web() as web, open_client(web.address) as client:
        client.send(b"GET /hold HTTP/1.1\r\nHost: h\r\n\r\n" * 2)
        await until(lambda: len(web.held) == 2)
        receipt = NotedReceipt()
        web.held[1][0].answer(TEXT, b"x", receipt)
        client.writer.close()
        await until(lambda: receipt.said)
        assert receipt.said == ["undelivered"]


async def test_an_answer_to_a_client_that_is_gone_by_then_is_undelivered() -> None:
    async with open_web() as web, open_client(web.address) as client:
        client.request("GET", "/hold")
        await until(lambda: web.held)
        receipt = NotedReceipt()
        client.writer.get_extra_info("socket").shutdown(1)
        # The end is in the socket, and nothing has read it.
        web.held[0][0].answer(JSON, b"x", receipt)
        await until(lambda: receipt.said)
        assert receipt.said == ["undelivered"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SMUGGLING)
async def test_what_smuggles_requests_ends_the_connection(name: str) -> None:
    async with open_web() as web, open_client(web.address) as client:
        client.send(b"POST /echo/a HTTP/1.1\r\nHost: h\r\n" + SMUGGLING[name] + GET)
        answer = await client.answer()
        assert answer.status == 400
        assert answer.fields["connection"] == "close"
        assert await client.closed() == b""
        assert web.server.counters.calls == 0


async def test_a_body_that_is_too_large_is_refused_by_its_head() -> None:
    async with open_web() as web, open_client(web.address) as client:
        client.send(
            b"POST /echo/a HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 100001\r\n\r\n"
        )
        answer = await client.answer()
        assert (answer.status, answer.text) == (413, "the body has 100001 bytes, 100000 are allowed\n")
        assert await client.closed() == b""


async def test_a_client_that_asks_first_is_told_to_go_on() -> None:
    async with open_web() as web, open_client(web.address) as client:
        client.send(b"POST /echo/a HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(b"hi")
        assert (await client.answer()).text == "ahi"


async def test_clients_of_http_1_0_are_served() -> None:
    async with open_web() as web, open_client(web.address) as client:
        client.send(b"GET /echo/a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert (await client.answer()).fields["connection"] == "keep-alive"
        client.send(b"GET /stream/2/3 HTTP/1.0\r\n\r\n")
        answer = await client.answer()
        assert (answer.body, answer.fields["connection"]) == (b"xxxxxx", "close")
        assert "transfer-encoding" not in answer.fields


async def test_http2_is_told_what_this_port_speaks() -> None:
    async with open_web() as web, open_client(web.address) as client:
        client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert (await client.answer()).status == 505
        assert web.server.counters.faulty == 1


# --- answers in pieces ----------------------------------------------------------------------------


async def test_an_answer_in_pieces_has_its_turn() -> None:
    async with open_web() as web, open_client(web.address) as client:
        client.send(b"GET /hold HTTP/1.1\r\nHost: h\r\n\r\nGET /stream/3/2 HTTP/1.1\r\nHost: h\r\n\r\n" + GET)
        await until(lambda: web.held)
        assert web.sent == 0
        web.held[0][0].answer(TEXT, b"first")
        assert [(await client.answer()).body for _ in range(3)] == [b"first", b"xxxxxx", b"a"]


async def test_pieces_wait_for_a_client_that_reads_slowly() -> None:
    async with open_web() as web, open_client(web.address) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.request("GET", "/stream/300/100000")
        await until(lambda: web.links[0].transport.writable is False)
        sent = web.sent
        assert sent < 200, "the system's buffers and no more"
        assert web.server.memory.total < 1 << 21
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len((await client.answer()).body) == 30_000_000


async def test_an_answer_that_fails_in_the_middle_ends_the_connection() -> None:
    async with open_web() as web, open_client(web.address) as client:
        client.request("GET", "/stream/bug/3")
        assert (await client.closed()).endswith(b"\r\n\r\n3\r\nxxx\r\n"), "without the last chunk"
        assert [type(fault) for fault in web.faults] == [KeyError]


async def test_pieces_are_delivered_one_by_one() -> None:
    async with open_web() as web, open_client(web.address) as client:
        receipts = [NotedReceipt(), NotedReceipt()]
        web.receipts = [*receipts]
        client.request("GET", "/stream/2/3")
        await client.answer()
        assert [receipt.said for receipt in receipts] == [["delivered"]] * 2


async def test_a_client_that_leaves_an_answer_in_pieces_is_gone() -> None:
    async with open_web() as web, open_client(web.address) as client:
        client.request("GET", "/stream/-1/3")
        await client.reader.readuntil(b"xxx\r\n")
        client.writer.close()
        await asyncio.wait_for(web.cancelled.wait(), 60)
        await until(lambda: web.server.connections == 0)


# --- limits and the end ---------------------------------------------------------------------------


async def test_calls_beyond_the_limit_are_refused() -> None:
    async with open_web(limits=ServerOptions(calls_max=1)) as web, open_client(web.address) as client:
        client.request("GET", "/hold")
        await until(lambda: web.held)
        client.request("GET", "/echo/a")
        await until(lambda: web.server.counters.rejected)
        web.held[0][0].answer(TEXT, b"x")
        assert (await client.answer()).status == 200
        answer = await client.answer()
        assert answer.status == 429
        assert "grpc.max_calls" in answer.text
        assert web.server.limits_reached == ["grpc.max_calls"]


TIMES = WebOptions(http1=Http1Options(head_s=0.2, body_s=0.2, idle_s=0.2))


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent", [b"GET /", b"POST /echo/a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhe"]
)
async def test_a_client_that_is_slow_is_told_so(sent: bytes) -> None:
    async with open_web(TIMES) as web, open_client(web.address) as client:
        client.send(sent)
        answer = await client.answer()
        assert answer.status == 408
        assert "within 0.2 s" in answer.text
        assert await client.closed() == b""


@pytest.mark.slow
async def test_an_idle_connection_is_closed() -> None:
    async with open_web(TIMES) as web, open_client(web.address) as client:
        await client.call("GET", "/echo/a")
        assert await client.closed() == b""


@pytest.mark.slow
async def test_a_drain_ends_connections_behind_their_answers() -> None:
    async with open_web() as web, open_client(web.address) as client, open_client(web.address) as idle:
        client.request("GET", "/hold")
        await idle.call("GET", "/echo/a")
        await until(lambda: web.held)
        web.server.begin_drain()
        answer = await idle.call("GET", "/echo/a")
        assert (answer.text, answer.fields["connection"]) == ("a", "close")
        stopping = asyncio.create_task(web.server.stop(60))
        await until(lambda: web.server.connections == 1)
        web.held[0][0].answer(TEXT, b"x")
        assert (await client.answer()).fields["connection"] == "close"
        await stopping


async def test_a_grace_that_is_over_ends_all_exchanges() -> None:
    async with open_web() as web, open_client(web.address) as client:
        client.request("GET", "/hold")
        await until(lambda: web.held)
        await web.server.stop(0)
        assert web.held[0][1].cancelled.is_set()
        assert await client.closed() == b""


async def test_coroutines_of_a_connection_run_one_at_a_time() -> None:
    async with open_web() as web, open_client(web.address) as client:
        client.send(b"GET /stream/-1/3 HTTP/1.1\r\nHost: h\r\n\r\n" + GET * 3)
        await client.reader.readuntil(b"xxx\r\n")
        await settle()
        assert web.server.counters.calls == 1
        assert web.server.open_calls == 1
    async with open_web() as web, open_client(web.address) as client:
        client.send(b"GET /task/a HTTP/1.1\r\nHost: h\r\n\r\n" * 50 + GET)
        assert [(await client.answer()).body for _ in range(51)] == [b"a"] * 51


async def test_a_client_that_does_not_read_its_pipelined_answers_is_cut_off() -> None:
    async with open_web(WebOptions(output_bytes=100_000)) as web, open_client(web.address) as client:
        client.send(b"GET /hold HTTP/1.1\r\nHost: h\r\n\r\n" * 3)
        await until(lambda: len(web.held) == 3)
        receipts = [NotedReceipt() for _ in range(3)]
        for number in (2, 1):
            web.held[number][0].answer(TEXT, bytes(60_000), receipts[number])
        await until(lambda: web.server.connections == 0)
        assert [receipt.said for receipt in receipts] == [[], ["undelivered"], ["undelivered"]]
        assert web.held[0][1].cancelled.is_set()
        assert web.server.limits_reached == ["grpc.output_buffer_bytes"]


@pytest.mark.slow
async def test_those_that_hold_most_memory_are_evicted() -> None:
    limits = ServerOptions(buffer_bytes=1 << 20)
    async with (
        open_web(limits=limits) as web,
        open_client(web.address) as client,
        open_client(web.address) as small,
    ):
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.request("GET", "/large/20000000")
        await until(lambda: web.server.limits_reached)
        assert web.server.limits_reached == ["grpc.buffer_bytes"]
        assert (await small.call("GET", "/echo/a")).status == 200


@pytest.mark.slow
async def test_tls_needs_no_alpn(tmp_path: Path) -> None:
    make_certificate(tmp_path, "one")
    tls = TlsConfig(certificate_path=str(tmp_path / "one.pem"), key_path=str(tmp_path / "one.key"))
    for names in (["http/1.1"], ["h2", "http/1.1"], []):
        context = ssl.create_default_context(cafile=str(tmp_path / "one.pem"))
        if names:
            context.set_alpn_protocols(names)
        async with open_web(tls=tls) as web, open_client(web.address, context) as client:
            assert (await client.call("GET", "/echo/a")).status == 200
