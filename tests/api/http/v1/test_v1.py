"""pixy/api/http/v1: records and acks in batches, streams and peeks."""

import asyncio
import json
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from structlog.testing import capture_logs

from pixy.api.http.v1 import openapi_document
from pixy.http1.head import parse_head
from tests.api.http.conftest import CONFIG
from tests.api.http.openapi_client import ApiError, OpenApiClient
from tests.api.quick_polls import QUICK_POLLS
from tests.fakes.backend import FakeBackend
from tests.fakes.http_server import ServedHttp, serve_http
from tests.fakes.waiting import until
from tests.fakes.web import RawAnswer, open_client

JSON = "Content-Type: application/json"
LINES = "Content-Type: application/x-ndjson"
TARGET = "/v1/topics/t/records"


async def post(served: ServedHttp, body: Any, target: str = TARGET, *fields: str) -> RawAnswer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await served.client.call("POST", target, data, *(fields or [JSON]))


async def get(served: ServedHttp, query: str = "group=g&wait_ms=60000", name: str = "records") -> Any:
    answer = await served.client.call("GET", f"/v1/topics/t/{name}?{query}")
    assert (answer.status, answer.fields["content-type"]) == (200, "application/json")
    return json.loads(answer.body)["records"]


async def get_all(served: ServedHttp, count: int, query: str = "group=g&wait_ms=60000") -> list[Any]:
    """So many records: an answer has those that are there, of the partitions that have begun."""
    found: list[Any] = []
    while len(found) < count:
        found += await get(served, query)
    return found


async def lag(served: ServedHttp) -> int:
    """Records that the group has not acked."""
    answer = await served.client.call("GET", "/topics/t/offsets?group=g")
    return sum(of["lag"] if of["offset"] >= 0 else of["count"] for of in json.loads(answer.body))


# --- produce --------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "/clusters/first"])
async def test_a_record_is_produced_and_answered(served: ServedHttp, prefix: str) -> None:
    record = {"key": "k", "value": "é", "headers": [{"name": "h", "value": "x"}, {"name": "n"}]}
    answer = await post(served, record, f"/v1{prefix}/topics/t/records")
    place = json.loads(answer.body)
    assert set(place) == {"partition", "offset"}
    (found,) = await get(served)
    assert found.pop("timestamp_ms") > 1_700_000_000_000
    assert found == {
        **place,
        "key": "k",
        "value": "é",
        "headers": [{"name": "h", "value": "x"}, {"name": "n", "value": None}],
    }


async def test_bytes_and_nulls_come_back(served: ServedHttp) -> None:
    await post(
        served, [{"value_base64": "/w==", "key_base64": ""}, {"value": None}, {"value": "", "key": None}]
    )
    found = await get_all(served, 3, "group=g&wait_ms=60000&max_records=9")
    keys = [(each.get("key"), each.get("value"), each.get("value_base64")) for each in found]
    assert sorted(keys, key=str) == sorted(
        [("", None, "/w=="), (None, None, None), (None, "", None)], key=str
    )
    shown = await get(served, "encoding=base64&max_records=9", "peek")
    assert {each.get("value_base64") for each in shown} == {"/w==", "", None}


@pytest.mark.slow
async def test_a_peek_ends_behind_the_first_mebibyte_of_its_answer(served: ServedHttp) -> None:
    headers = [{"name": "", "value": "x"}] * 1000
    for _ in range(60):
        await post(served, {"value": "v", "partition": 0, "headers": headers})
    answer = await served.client.call("GET", "/v1/topics/t/peek?partition=0&max_records=60")
    shown = json.loads(answer.body)["records"]
    assert 1 < len(shown) < 60
    assert 1 << 20 <= len(answer.body) < (1 << 20) + 2 * len(answer.body) // len(shown)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["list", "lines"])
async def test_each_record_of_a_batch_is_answered(served: ServedHttp, kind: str) -> None:
    records: list[Any] = [{"value": str(n), "key": "k"} for n in range(5)]
    records[2] = {"value": 7}
    records.append({"value": "x" * 1_000_001})
    body = (
        json.dumps(records).encode()
        if kind == "list"
        else b"\n".join(json.dumps(each).encode() for each in records) + b"\n"
    )
    answer = await post(served, body, TARGET, JSON if kind == "list" else LINES)
    results = json.loads(answer.body)["records"]
    offsets = [each.get("offset") for each in results]
    assert sorted(offset for offset in offsets if offset is not None) == [0, 1, 2, 3]
    assert results[2]["error"] == {
        "type": "about:blank",
        "title": "Bad Request",
        "status": 400,
        "detail": "value is no text: bytes go into value_base64",
    }
    assert results[5]["error"]["status"] == 413
    assert len(await get_all(served, 4)) == 4


async def test_records_with_a_partition_and_no_timestamp_have_the_time_of_the_cluster(
    served: ServedHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the machine may be wrong, and is corrected by those of the other nodes."""
    monkeypatch.setattr(served.proxy.log, "now_ms", lambda: 1_600_000_000_000)
    await post(served, [{"value": "a", "partition": 3}])
    assert [each["timestamp_ms"] for each in await get(served, "", "peek")] == [1_600_000_000_000]


async def test_partition_and_timestamp_can_be_given(served: ServedHttp) -> None:
    records = [
        {"value": "a", "partition": 3, "timestamp_ms": 1000},
        {"value": "b", "partition": 3},
        {"value": "c", "key": "k", "timestamp_ms": 5},
        {"value": "d", "partition": 4},
    ]
    with capture_logs() as logs:
        results = json.loads((await post(served, records)).body)["records"]
    (made,) = [each for each in logs if each["event"] == "a topic was made on its first use"]
    assert made["asked_by"].startswith("127.0.0.1:")
    assert results[:2] == [{"partition": 3, "offset": 0}, {"partition": 3, "offset": 1}]
    assert results[2]["offset"] in {0, 2}
    assert results[3]["error"]["status"] == 404
    shown = {each["value"]: each["timestamp_ms"] for each in await get(served, "", "peek")}
    assert (shown["a"], shown["c"]) == (1000, 5)
    assert shown["b"] > 1_700_000_000_000


async def test_a_record_that_is_refused_takes_no_other_of_its_partition_with_it(served: ServedHttp) -> None:
    records = [
        {"value": "a", "partition": 0},
        {"value": "late", "partition": 0, "timestamp_ms": 1 << 62},
        {"value": "\ud800", "partition": 0},
        {"value": "c", "partition": 0, "headers": [{"name": "\udc00"}]},
        {"value": "d", "headers": [{"name": "\udc00"}]},
        {"value": "e" * 400_000, "partition": 0},
        {"value": "f" * 900_000, "partition": 0},
        {"value": "g", "partition": 0},
    ]
    results = []
    for some in (records[:5], records[5:7], records[7:]):
        results += json.loads((await post(served, [*some, {"value": "z", "partition": 1}])).body)["records"]
    assert [each.get("offset", each.get("error", {}).get("status")) for each in results] == [
        *(0, 400, 400, 400, 400, 0),
        *(1, 2, 1),
        *(3, 2),
    ]
    assert results[2]["error"]["detail"] == "value has half of a surrogate pair, which is no text"


@pytest.mark.parametrize("content_type", ["text/plain; charset=utf-8", "application/octet-stream"])
async def test_a_body_of_bytes_is_one_record(served: ServedHttp, content_type: str) -> None:
    answer = await post(served, b"\xff{", f"{TARGET}?key=k", f"Content-Type: {content_type}")
    assert json.loads(answer.body)["offset"] == 0
    (found,) = await get(served)
    assert (found["key"], found["value_base64"]) == ("k", b64encode(b"\xff{").decode())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "target", "status", "detail"),
    [
        ("GET", "/v1/topics", 404, "there is no /v1/topics"),
        ("DELETE", TARGET, 405, "DELETE is not allowed here, expected POST, GET"),
        ("GET", f"{TARGET}?group=g&max_record=1", 400, "max_record is no parameter here, expected group or "),
        ("POST", f"{TARGET}?synk=false", 400, "synk is no parameter here, expected key or sync"),
        ("POST", "/v1/topics/t/acks?group=g&ack=auto", 400, "ack is no parameter here, expected group"),
        ("GET", "/v1/topics/t/peek?group=g", 400, "group is no parameter here, expected partition or "),
    ],
)
async def test_what_is_not_there_is_told(
    served: ServedHttp, method: str, target: str, status: int, detail: str
) -> None:
    answer = await served.client.call(method, target, b"" if method == "POST" else None, JSON)
    assert (answer.status, answer.fields["content-type"]) == (status, "application/problem+json")
    assert json.loads(answer.body)["detail"].startswith(detail)
    assert answer.fields.get("allow") == ("POST, GET" if status == 405 else None)


async def test_an_asynchronous_record_has_no_offset(served: ServedHttp) -> None:
    assert json.loads((await post(served, {"value": "x"}, f"{TARGET}?sync=false")).body) == {}
    assert len(await get(served)) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "fields", "status", "detail"),
    [
        (b"{", [JSON], 400, "the body is no JSON"),
        (b"1", [JSON], 400, "a record is an object"),
        (b'{"values": 1}', [JSON], 400, "values is no member of a record"),
        (b'{"value": "x", "value_base64": "eA=="}', [JSON], 400, "both given"),
        (b'{"value_base64": "x"}', [JSON], 400, "no base64"),
        (b'{"partition": -1}', [JSON], 400, "partition is -1"),
        (b'{"partition": true}', [JSON], 400, "partition is true"),
        (b'{"headers": {}}', [JSON], 400, "headers is a list"),
        (b"[]", [JSON], 400, "the body has 0 records, expected 1 to 1000"),
        (b"[" + b",".join([b"{}"] * 1001) + b"]", [JSON], 400, "the body has 1001 records"),
        (b'{}\n{"value"\n', [LINES], 400, "line 2 is no JSON"),
        (b"[" * 100_000, [JSON], 400, "no JSON"),
        (b"[" + b"{}," * 400_000 + b"{}]", [JSON], 413, "bytes beside its texts"),
        (b"[" + b'"",' * 400_000 + b'""]', [JSON], 413, "texts, 50000 are allowed"),
        (b"{}\n" * 2001, [LINES], 400, "the body has 2001 lines, expected 1 to 2000"),
        (b"x", ["Content-Type: text/xml"], 415, "the body is text/xml"),
        (b"x", ["X: y"], 415, "the body is of no type"),
    ],
)
async def test_what_cannot_be_read_is_a_problem(
    served: ServedHttp, body: bytes, fields: list[str], status: int, detail: str
) -> None:
    answer = await post(served, body, TARGET, *fields)
    problem = json.loads(answer.body)
    assert (answer.status, problem["status"], problem["type"]) == (status, status, "about:blank")
    assert answer.fields["content-type"] == "application/problem+json"
    assert detail in problem["detail"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/v1/clusters/nope/topics/t/peek", 400),
        ("/v1/topics/nothing/peek", 404),
        ("/v1/topics/t/peek?partition=4", 404),
        ("/v1/topics/t/peek?partition=x", 400),
        ("/v1/topics/t/peek?max_records=1001", 400),
        ("/v1/topics/t/peek?encoding=hex", 400),
        ("/v1/topics/t/peek?encoding=%zz", 400),
        ("/v1/topics/t/records", 400),
        ("/v1/topics/t/records?group=g&group=h", 400),
        ("/v1/topics/t/records?group=g&ack=all", 400),
        ("/v1/topics/a%20b/records?group=g", 400),
    ],
)
async def test_parameters_that_are_wrong_are_a_problem(served: ServedHttp, target: str, status: int) -> None:
    await post(served, {"value": "x"})
    answer = await served.client.call("GET", target)
    assert answer.status == status
    assert json.loads(answer.body)["status"] == status


# --- consume --------------------------------------------------------------------------------------


async def test_messages_are_bounded_in_number_and_bytes(served: ServedHttp) -> None:
    await post(served, [{"value": "x" * 1000, "partition": 0} for _ in range(20)])
    assert 1 <= len(await get(served, "group=g&wait_ms=60000&max_records=3")) <= 3
    assert 1 <= len(await get(served, "group=g&wait_ms=60000&max_bytes=2500")) <= 3
    rest: list[Any] = []
    while not rest or rest[-1]["offset"] < 19:
        rest += await get(served)
    assert await get(served, "group=g&wait_ms=10") == []
    assert await lag(served) == 20


@pytest.mark.slow
async def test_messages_are_acked_in_batches(served: ServedHttp) -> None:
    await post(served, [{"value": str(n)} for n in range(10)])
    places = [{"partition": each["partition"], "offset": each["offset"]} for each in await get(served)]
    assert len(places) == 10
    answer = await post(served, [*places, {"partition": 0, "offset": 99}], "/v1/topics/t/acks?group=g")
    acked = json.loads(answer.body)
    assert acked["acked"] == 10
    assert [(each["partition"], each["offset"], each["error"]["status"]) for each in acked["refused"]] == [
        (0, 99, 400)
    ]
    await until(lambda: has_lag(served, 0))
    assert (await post(served, [{"partition": 0}], "/v1/topics/t/acks?group=g")).status == 400
    assert (await post(served, [], "/v1/topics/t/acks?group=g")).status == 400


async def has_lag(served: ServedHttp, expected: int) -> bool:
    return await lag(served) == expected


@pytest.mark.slow
async def test_messages_are_acked_when_they_are_with_the_transport(served: ServedHttp) -> None:
    await post(served, [{"value": str(n)} for n in range(10)])
    assert len(await get_all(served, 10, "group=g&ack=auto&wait_ms=60000")) == 10
    await until(lambda: has_lag(served, 0))


async def test_a_client_that_leaves_while_it_waits_takes_nothing(served: ServedHttp) -> None:
    await post(served, {"value": "x", "partition": 0})
    await get(served, "group=g&ack=auto&wait_ms=60000")
    async with open_client(served.address) as client:
        client.request("GET", f"{TARGET}?group=g&wait_ms=60000")
        await until(lambda: served.server.open_calls == 1)
    await until(lambda: served.server.open_calls == 0)
    await post(served, {"value": "y", "partition": 0})
    assert [each["value"] for each in await get(served)] == ["y"]


# --- streams --------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_stream_has_a_message_a_line(served: ServedHttp) -> None:
    await post(served, [{"value": str(n), "partition": 0} for n in range(3)])
    async with open_client(served.address) as client:
        client.request("GET", f"{TARGET}?group=g&ack=auto", None, "Accept: application/x-ndjson")
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert b"Content-Type: application/x-ndjson\r\n" in head
        lines = [await line(client.reader) for _ in range(3)]
        assert [each["value"] for each in lines] == ["0", "1", "2"]
        await post(served, {"value": "later", "partition": 0})
        assert (await line(client.reader))["value"] == "later"
        await until(lambda: has_lag(served, 0))
    await until(lambda: served.server.open_calls == 0)


async def line(reader: asyncio.StreamReader) -> Any:
    """The next message of a stream, which has a chunk of its own."""
    async with asyncio.timeout(60):
        while True:
            size = int(await reader.readline(), 16)
            piece = await reader.readexactly(size + 2)
            if piece != b"\n\r\n":
                return json.loads(piece)


@pytest.mark.slow
@QUICK_POLLS
async def test_a_stream_shows_now_and_then_that_there_is_nothing(served: ServedHttp) -> None:
    await post(served, {"value": "x"})
    async with open_client(served.address) as client:
        client.request("GET", f"{TARGET}?group=g&ack=auto", None, "Accept: application/x-ndjson")
        await line_of(client.reader, b"1\r\n\n\r\n")


async def line_of(reader: asyncio.StreamReader, expected: bytes) -> None:
    async with asyncio.timeout(60):
        await reader.readuntil(expected)


@pytest.mark.slow
async def test_a_stream_hands_out_no_more_than_its_client_reads(served: ServedHttp) -> None:
    count = 1000
    for _ in range(count // 40):
        await post(served, [{"value": "x" * 30_000, "partition": 0} for _ in range(40)])
    async with open_client(served.address) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.request("GET", f"{TARGET}?group=g&ack=auto", None, "Accept: application/x-ndjson")
        await until(lambda: any(not each.transport.writable for each in served.server._connections))
        assert served.server.memory.total < 4 << 20
        left = await lag(served)
        assert left > count // 2
    assert await get(served, "group=g&wait_ms=60000&max_records=1")


async def test_a_stream_ends_with_the_daemons_drain(served: ServedHttp) -> None:
    await post(served, {"value": "x"})
    async with open_client(served.address) as client:
        client.request("GET", f"{TARGET}?group=g", None, "Accept: application/x-ndjson")
        await client.reader.readuntil(b"\r\n\r\n")
        await line(client.reader)
        served.proxy.begin_drain()
        served.server.begin_drain()
        async with asyncio.timeout(60):
            assert (await client.reader.readuntil(b"0\r\n\r\n")).endswith(b"0\r\n\r\n")


async def test_what_a_stream_is_refused_has_a_status() -> None:
    proxy = replace(CONFIG.proxies["first"], auto_create_topics=False)
    async with serve_http(FakeBackend(), replace(CONFIG, proxies={"first": proxy})) as served:
        answer = await served.client.call("GET", f"{TARGET}?group=g", None, "Accept: application/x-ndjson")
        assert answer.status == 404


# --- peek -----------------------------------------------------------------------------------------


async def test_stored_records_are_shown_without_a_group(served: ServedHttp) -> None:
    await post(served, [{"value": str(n), "partition": n % 2} for n in range(40)])
    assert [each["value"] for each in await get(served, "partition=1&max_records=3", "peek")] == [
        "1",
        "3",
        "5",
    ]
    assert [each["offset"] for each in await get(served, "partition=1&offset=18", "peek")] == [18, 19]
    assert [each["offset"] for each in await get(served, "offset=-2", "peek")] == [18, 19, 18, 19]
    assert len(await get(served, "max_records=1000", "peek")) == 40
    assert await get(served, "partition=0&offset=1000", "peek") == []
    assert await lag(served) == 40


# --- the description ------------------------------------------------------------------------------


async def test_the_description_is_served_and_every_route_is_in_it(served: ServedHttp) -> None:
    answer = await served.client.call("GET", "/v1/openapi.json")
    document = json.loads(answer.body)
    assert document == openapi_document()
    assert document == json.loads((Path(__file__).parents[4] / "docs" / "openapi.json").read_text())
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    (link,) = served.server._connections
    factory: Any = link.protocol
    router = factory.environment._router
    routes = {(route.method, route.pattern) for route in router.routes if route.pattern.startswith("/v1/")}
    assert routes - {("GET", "/v1/openapi.json")} == described
    parse_head(b"GET /v1/openapi.json HTTP/1.1\r\nHost: h\r\n\r\n")


@pytest.mark.slow
def test_the_description_is_openapi_3_1_for_a_validator_of_others() -> None:
    document = openapi_document()
    assert [error.message for error in OpenAPIV31SpecValidator(document).iter_errors()] == []
    # It reads all of it: a reference without a target, deep in it, is an error.
    answers = document["paths"]["/v1/topics/{topic}/peek"]["get"]["responses"]
    answers["200"]["content"]["application/json"]["schema"] = {"type": "nonsense"}
    assert list(OpenAPIV31SpecValidator(document).iter_errors())


async def test_a_client_that_is_generated_from_the_description_works(served: ServedHttp) -> None:
    client = OpenApiClient(openapi_document(), served.client)
    produced = await client.produce(
        topic="t", body=[{"value": "a", "partition": 0}, {"value": "b", "partition": 0}]
    )
    assert [each["offset"] for each in produced["records"]] == [0, 1]
    consumed = await client.consume(topic="t", group="g", wait_ms=60000, max_records=2)
    places = [{"partition": each["partition"], "offset": each["offset"]} for each in consumed["records"]]
    assert (await client.ack(topic="t", group="g", body=places))["acked"] == 2
    peeked = await client.peekInCluster(cluster="first", topic="t", offset=-1)
    assert [each["value"] for each in peeked["records"]] == ["b"]
    with pytest.raises(ApiError, match="404"):
        await client.peek(topic="nothing")
    with pytest.raises(TypeError, match="max_records"):
        await client.peek(topic="t", max_records=0)
    for count in (0, 1001):  # refused, so the description says so
        with pytest.raises(AssertionError, match="ack"):
            await client.ack(topic="t", group="g", body=places[:1] * count)
        with pytest.raises(AssertionError, match="produce"):
            await client.produce(topic="t", body=[{"value": "a"}] * count)
