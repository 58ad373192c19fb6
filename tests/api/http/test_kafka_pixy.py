"""pixy/api/http/kafka_pixy.py: each route of kafka-pixy's HTTP API, to the byte."""

import asyncio
import json
from base64 import b64encode
from dataclasses import replace

import pytest

from pixy.backend import TopicDescription
from pixy.config import ConsumerConfig, GrpcConfig, ProxyConfig
from pixy.errors import Internal
from tests.api.http.conftest import CONFIG
from tests.api.quick_polls import QUICK_POLLS
from tests.fakes.backend import FakeBackend
from tests.fakes.http_server import ServedHttp, serve_http
from tests.fakes.steps import count_turns
from tests.fakes.waiting import settle, until
from tests.fakes.web import RawAnswer, open_client

TEXT = "Content-Type: text/plain"
FORM = "Content-Type: application/x-www-form-urlencoded"
PREFIXES = pytest.mark.parametrize("prefix", ["", "/clusters/first"])


async def produce(served: ServedHttp, body: bytes, query: str = "key=1&sync", *fields: str) -> RawAnswer:
    return await served.client.call("POST", f"/topics/t/messages?{query}", body, TEXT, *fields)


async def produce_to(served: ServedHttp, topic: str) -> None:
    """Create a topic, which a group has read to its end."""
    await served.client.call("POST", f"/topics/{topic}/messages?sync", b"x", TEXT)
    await served.client.call("GET", f"/topics/{topic}/messages?group=other")


async def consume(served: ServedHttp, query: str = "group=g", prefix: str = "") -> RawAnswer:
    """Consume. A poll that ends on a busy machine before the group has its partitions is
    repeated.
    """
    for _ in range(100):
        answer = await poll(served, query, prefix)
        if answer.status != 408:
            break
    return answer


async def poll(served: ServedHttp, query: str = "group=g", prefix: str = "") -> RawAnswer:
    return await served.client.call("GET", f"{prefix}/topics/t/messages?{query}")


def error(text: str) -> str:
    """The body of an error without characters that are escaped."""
    return '{\n  "error": "' + text.replace('"', '\\"') + '"\n}'


# --- produce --------------------------------------------------------------------------------------


@PREFIXES
async def test_a_message_that_is_produced_has_a_partition_and_an_offset(
    served: ServedHttp, prefix: str
) -> None:
    for offset in range(2):
        answer = await served.client.call("POST", f"{prefix}/topics/t/messages?sync&key=1", b"x", TEXT)
        assert answer.text == f'{{\n  "partition": 0,\n  "offset": {offset}\n}}'
        assert (answer.status, answer.fields["content-type"]) == (200, "application/json")
    assert set(answer.fields) == {"content-type", "date", "content-length"}


async def test_an_asynchronous_message_is_answered_at_once(served: ServedHttp) -> None:
    answer = await served.client.call("POST", "/topics/t/messages?key=1", b"x", TEXT)
    assert (answer.status, answer.text) == (200, "{}")
    assert b64encode(b"x").decode() in (await consume(served)).text


@pytest.mark.slow
@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "application/json",
        "application/json; charset=utf-8",
        "application/vnd.kafka+json",
        "application/a+b+json;x",
    ],
)
async def test_a_body_is_the_message(served: ServedHttp, content_type: str) -> None:
    target = "/topics/t/messages?sync&key=1"
    for body in (b"{not json\0\xff", b""):
        answer = await served.client.call("POST", target, body, f"Content-Type: {content_type}")
        assert answer.status == 200
        assert json.loads((await consume(served)).body)["value"] == b64encode(body).decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain; charset=utf-8",
        "Text/plain",
        "application/octet-stream",
        "application/jsonx",
        "application/x-www-form-urlencoded; charset=utf-8",
        "",
    ],
)
async def test_other_content_types_are_refused(served: ServedHttp, content_type: str) -> None:
    fields = [f"Content-Type: {content_type}"] if content_type else []
    answer = await served.client.call("POST", "/topics/t/messages", b"x", *fields)
    assert (answer.status, answer.text) == (400, error(f"unsupported content type {content_type}"))


async def test_a_message_needs_a_length(served: ServedHttp) -> None:
    served.client.send(
        b"POST /topics/t/messages HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"
    )
    answer = await served.client.answer()
    assert (answer.status, answer.text) == (400, error("missing Content-Length header"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "key"),
    [("sync", None), ("sync&key=", ""), ("sync&key=a+b%00%ff", "a b\0\xff"), ("key=x&sync=false&key=y", "x")],
)
async def test_a_key_may_be_missing_or_empty(served: ServedHttp, query: str, key: str | None) -> None:
    await produce(served, b"v", query)
    expected = None if key is None else b64encode(key.encode("latin-1")).decode()
    assert json.loads((await consume(served)).body)["key"] == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "query", "key"),
    [
        (b"msg=Good+news%21", "sync&key=q", "q"),
        (b"msg=Good%20news!&key=f", "sync&key=q", "f"),
        (b"key=f&sync&msg=Good news!&msg=other", "", "f"),
        (b"key=f", "sync&msg=Good+news!", "f"),
    ],
)
async def test_a_form_has_the_message_and_parameters(
    served: ServedHttp, body: bytes, query: str, key: str
) -> None:
    answer = await served.client.call("POST", f"/topics/t/messages?{query}", body, FORM)
    assert json.loads(answer.body)["offset"] == 0
    message = json.loads((await consume(served)).body)
    assert (message["key"], message["value"]) == (
        b64encode(key.encode()).decode(),
        b64encode(b"Good news!").decode(),
    )


@pytest.mark.slow
@pytest.mark.parametrize("body", [b"", b"msg=", b"key=x", b"msg=%zz"])
async def test_a_form_without_a_message_is_refused(served: ServedHttp, body: bytes) -> None:
    answer = await served.client.call("POST", "/topics/t/messages", body, FORM)
    assert (answer.status, answer.text) == (400, error("empty message"))


async def test_too_many_parameters_are_refused(served: ServedHttp) -> None:
    many = b"a&" * 100_000
    answer = await served.client.call("POST", "/topics/t/messages", many + b"msg=x", FORM)
    assert answer.status == 400
    assert json.loads(answer.body)["error"] == "there are 100001 parameters, at most 1000 are allowed"
    target = "/topics/t/messages?group=g&" + (b"a&" * 1000).decode()
    answer = await served.client.call("GET", target)
    assert answer.status == 400


async def test_fields_of_the_head_are_headers(served: ServedHttp) -> None:
    value = b64encode(b"bar\xff").decode()
    await produce(served, b"v", "sync", f"x-kafka-foo-BAR: {value}", "X-Kafka-Foo: ", f"X-KAFKA-FOO: {value}")
    assert (await consume(served)).text == (
        '{\n  "key": null,\n  "value": "dg==",\n  "partition": PARTITION,\n  "offset": 0,\n  "headers": [\n'
        '    {\n      "key": "Foo-Bar",\n      "value": "YmFy/w=="\n    },\n'
        '    {\n      "key": "Foo",\n      "value": ""\n    },\n'
        '    {\n      "key": "Foo",\n      "value": "YmFy/w=="\n    }\n  ]\n}'
    ).replace("PARTITION", await partition_of(served))


async def partition_of(served: ServedHttp) -> str:
    """The partition that has a record."""
    offsets = json.loads((await served.client.call("GET", "/topics/t/offsets?group=x")).body)
    return str(next(of["partition"] for of in offsets if of["count"]))


@pytest.mark.slow
@pytest.mark.parametrize("value", ["invalid!", "YQ", "YQ=", "=", "YQ==YQ=="])
async def test_headers_are_base64(served: ServedHttp, value: str) -> None:
    answer = await produce(served, b"v", "sync", f"x-kafka-foo: {value}")
    assert (answer.status, answer.text) == (400, error("Invalid base64 encoding for header: X-Kafka-Foo"))


async def test_a_message_that_is_too_large_is_refused(served: ServedHttp) -> None:
    answer = await produce(served, bytes(1_000_001))
    assert answer.status == 413
    assert "producer.max_message_bytes" in json.loads(answer.body)["error"]
    answer = await produce(served, bytes(1_000_000), "sync")
    assert answer.status == 200
    served.client.request("POST", "/topics/t/messages", bytes(1_100_000), TEXT)
    answer = await served.client.answer()
    assert (answer.status, answer.fields["connection"]) == (413, "close")
    assert "are allowed" in json.loads(answer.body)["error"]


async def test_invalid_topic_names_are_refused(served: ServedHttp) -> None:
    for target in ("/topics/a%20b/messages?sync", "/topics/a%20b/messages?sync&key"):
        answer = await served.client.call("POST", target, b"x", TEXT)
        assert answer.status == 400
        assert "a b" in json.loads(answer.body)["error"]


async def test_a_topic_that_nobody_may_create_is_unknown() -> None:
    proxy = replace(CONFIG.proxies["first"], auto_create_topics=False)
    async with serve_http(FakeBackend(), replace(CONFIG, proxies={"first": proxy})) as served:
        answer = await produce(served, b"x")
        assert answer.status == 404
        text = "kafka server: Request was for a topic or partition that does not exist on this broker."
        assert answer.text == error(text)
        assert (await consume(served)).status == 404


async def test_a_failed_append_is_told(fake: ServedHttp) -> None:
    await produce(fake, b"x")
    fake.backend.fail_appends(Internal("no disk"))
    answer = await produce(fake, b"x")
    assert (answer.status, answer.text) == (500, error("no disk"))


# --- consume --------------------------------------------------------------------------------------


@pytest.mark.slow
@PREFIXES
@QUICK_POLLS
async def test_a_message_is_consumed_and_acked(served: ServedHttp, prefix: str) -> None:
    await produce(served, "Мария".encode(), "sync&key=1")
    answer = await consume(served, prefix=prefix)
    assert (answer.status, answer.fields["content-type"]) == (200, "application/json")
    assert answer.text == (
        '{\n  "key": "MQ==",\n  "value": "0JzQsNGA0LjRjw==",\n  "partition": 0,\n  "offset": 0,\n  "headers": []\n}'
    )
    answer = await poll(served)
    assert (answer.status, answer.text) == (408, error("long polling timeout"))


@pytest.mark.parametrize(("query", "count"), [("", 0), ("noAck", 0), ("group=a&group=b", 2), ("Group=a", 0)])
async def test_one_group_is_expected(served: ServedHttp, query: str, count: int) -> None:
    answer = await consume(served, query)
    assert (answer.status, answer.text) == (
        400,
        error(f"one consumer group is expected, but {count} provided"),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("ackPartition=0", "ackPartition and ackOffset either both should be provided or neither"),
        ("ackOffset=0", "ackPartition and ackOffset either both should be provided or neither"),
        (
            "ackPartition=x&ackOffset=0",
            'bad ackPartition: [x]: strconv.ParseInt: parsing "x": invalid syntax',
        ),
        ("ackPartition=&ackOffset=0", 'bad ackPartition: []: strconv.ParseInt: parsing "": invalid syntax'),
        ("ackPartition=1_0", 'bad ackPartition: [1_0]: strconv.ParseInt: parsing "1_0": invalid syntax'),
        (
            "ackPartition=x&ackPartition=y",
            'bad ackPartition: [x y]: strconv.ParseInt: parsing "x": invalid syntax',
        ),
        (
            "ackPartition=0&ackOffset=%2B-1",
            'bad ackOffset: [+-1]: strconv.ParseInt: parsing "+-1": invalid syntax',
        ),
        (
            "ackPartition=2147483648&ackOffset=0",
            'bad ackPartition: [2147483648]: strconv.ParseInt: parsing "2147483648": value out of range',
        ),
        (
            "ackPartition=0&ackOffset=9223372036854775808",
            'bad ackOffset: [9223372036854775808]: strconv.ParseInt: parsing "9223372036854775808": value out of range',
        ),
        (
            "ackPartition=-2147483649",
            'bad ackPartition: [-2147483649]: strconv.ParseInt: parsing "-2147483649": value out of range',
        ),
    ],
)
async def test_acks_that_cannot_be_read(served: ServedHttp, query: str, text: str) -> None:
    answer = await consume(served, f"group=g&{query}")
    assert (answer.status, answer.text) == (400, error(text))


@pytest.mark.slow
@pytest.mark.parametrize(
    "query",
    [
        "noAck",
        "noAck&ackPartition=x",
        "ackPartition=-1&ackOffset=x",
        "ackPartition=0&ackOffset=-1",
        "ackOffset=-1",
    ],
)
@QUICK_POLLS
async def test_a_message_that_is_not_acked_stays_outstanding(served: ServedHttp, query: str) -> None:
    await produce(served, b"one")
    answer = await consume(served, f"group=g&{query}")
    assert json.loads(answer.body)["offset"] == 0
    assert (await poll(served)).status == 408
    offsets = json.loads((await served.client.call("GET", "/topics/t/offsets?group=g")).body)
    assert offsets[0]["lag"] == 1


@pytest.mark.slow
async def test_the_ack_of_a_request_is_taken(served: ServedHttp) -> None:
    for _ in range(3):
        await produce(served, b"x")
    await consume(served, "group=g&noAck")
    for offset in range(2):
        answer = await consume(served, f"group=g&ackPartition=0&ackOffset=%2B{offset}")
        assert json.loads(answer.body)["offset"] == offset + 1
    answer = await served.client.call("POST", "/topics/t/acks?group=g&partition=0&offset=2", b"", TEXT)
    assert (answer.status, answer.text) == (200, "{}")
    await until(lambda: has_lag(served, 0))


async def has_lag(served: ServedHttp, lag: int) -> bool:
    offsets = json.loads((await served.client.call("GET", "/topics/t/offsets?group=g")).body)
    return bool(offsets[0]["lag"] == lag)


async def test_too_many_polls_are_refused() -> None:
    consumer = replace(ConsumerConfig(), channel_buffer_size=1, long_polling_timeout=60)
    proxy = replace(ProxyConfig(), default_partitions=1, consumer=consumer)
    async with (
        serve_http(FakeBackend(), replace(CONFIG, proxies={"first": proxy})) as served,
        open_client(served.address) as client,
    ):
        await produce(served, b"x")
        await consume(served, "group=g")
        for _ in range(4):
            client.request("GET", "/topics/t/messages?group=g")
        await until(lambda: served.server.open_calls >= 1)
        answer = await asyncio.wait_for(refused(served), 30)
        assert answer.status == 429
        assert json.loads(answer.body)["error"].startswith("Too many requests. Consider increasing ")


async def refused(served: ServedHttp) -> RawAnswer:
    """An answer that is not waited for."""
    async with open_client(served.address) as client:
        return await client.call("GET", "/topics/t/messages?group=g")


async def test_a_consumer_that_is_disabled() -> None:
    proxy = replace(ProxyConfig(), consumer=replace(ConsumerConfig(), disabled=True))
    async with serve_http(FakeBackend(), replace(CONFIG, proxies={"first": proxy})) as served:
        answer = await consume(served)
        assert (answer.status, answer.text) == (503, error("service is disabled by configuration"))


async def test_a_drain_is_told(served: ServedHttp) -> None:
    await produce(served, b"x")
    await consume(served, "group=g&noAck")
    served.proxy.begin_drain()
    for answer in (await produce(served, b"x"), await produce(served, b"x", ""), await consume(served)):
        assert (answer.status, answer.text) == (503, error("service is shutting down"))
    answer = await served.client.call("POST", "/topics/t/acks?group=g&partition=0&offset=0", b"")
    assert answer.status == 200


async def test_a_client_that_leaves_gives_its_message_back(served: ServedHttp) -> None:
    await produce(served, b"x")
    await consume(served)
    async with open_client(served.address) as client:
        client.request("GET", "/topics/t/messages?group=g")
        await until(lambda: served.server.open_calls == 1)
    await until(lambda: served.server.open_calls == 0)
    await produce(served, b"y")
    assert json.loads((await consume(served)).body)["offset"] == 1


async def test_a_message_whose_answer_was_not_written_is_not_acked(served: ServedHttp) -> None:
    """The answer waits behind a poll of the same connection, whose client goes away."""
    await produce(served, b"x")
    await produce_to(served, "empty")

    async def offered() -> bool:
        counters = await served.proxy.consumers.counters_by_topic()
        return ("g", "t") in counters and counters["g", "t"].offered == 1

    async with open_client(served.address) as client:
        client.request("GET", "/topics/empty/messages?group=other")
        client.request("GET", "/topics/t/messages?group=g")
        await until(offered)
        # Whether it is acked is decided by the next iterations of the loop.
        await settle()
    await until(lambda: served.server.open_calls == 0)
    assert (await served.proxy.consumers.counters_by_topic())["g", "t"].acked == 0
    again = await consume(served, "group=g&noAck")
    assert (again.status, json.loads(again.body)["value"]) == (200, b64encode(b"x").decode())


# --- acks -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("group=g&partition=0", "partition and offset either both should be provided or neither"),
        ("group=g&partition=x&offset=0", 'bad partition: [x]: strconv.ParseInt: parsing "x": invalid syntax'),
        ("partition=0&offset=0", "one consumer group is expected, but 0 provided"),
        ("group=g", "partition and offset of a message are expected, neither of them negative"),
        (
            "group=g&noAck&partition=0&offset=0",
            "partition and offset of a message are expected, neither of them negative",
        ),
        (
            "group=g&partition=-1&offset=0",
            "partition and offset of a message are expected, neither of them negative",
        ),
    ],
)
async def test_acks_need_a_partition_and_an_offset(served: ServedHttp, query: str, text: str) -> None:
    answer = await served.client.call("POST", f"/topics/t/acks?{query}", b"")
    assert (answer.status, answer.text) == (400, error(text))


@pytest.mark.parametrize("place", ["partition=0&offset=9", "partition=9&offset=0"])
async def test_acks_of_what_is_not_there(served: ServedHttp, place: str) -> None:
    await produce(served, b"x")
    await consume(served, "group=g&noAck")
    answer = await served.client.call("POST", f"/topics/t/acks?group=g&{place}", b"")
    assert answer.status == 400
    assert set(json.loads(answer.body)) == {"error"}


async def test_an_ack_may_be_a_form(served: ServedHttp) -> None:
    await produce(served, b"x")
    await consume(served, "group=g&noAck")
    answer = await served.client.call(
        "POST", "/topics/t/acks?offset=77", b"group=g&partition=0&offset=0", FORM
    )
    assert (answer.status, answer.text) == (200, "{}")


# --- offsets --------------------------------------------------------------------------------------


@PREFIXES
async def test_offsets_of_a_group(served: ServedHttp, prefix: str) -> None:
    await produce(served, b"x")
    target = f"{prefix}/topics/t/offsets?group=g"
    answer = await served.client.call("GET", target)
    none = [
        f'  {{\n    "partition": {n},\n    "begin": 0,\n    "end": {n == 0:d},\n    "count": {n == 0:d},\n'
        f'    "offset": -1,\n    "lag": 0\n  }}'
        for n in range(4)
    ]
    assert answer.text == "[\n" + ",\n".join(none) + "\n]"
    body = b'[{"Partition": 0, "OFFSET": 1, "metadata": "<&> \\u20ac\\ud800", "lag": 77, "x": []}, null]'
    answer = await served.client.call("POST", target, body.replace(b", null", b""))
    assert (answer.status, answer.text) == (200, "{}")
    first = (await served.client.call("GET", target)).text.split("  },\n")[0]
    assert first == (
        '[\n  {\n    "partition": 0,\n    "begin": 0,\n    "end": 1,\n    "count": 1,\n    "offset": 1,\n    "lag": 0,\n'
        '    "metadata": "\\u003c\\u0026\\u003e €\ufffd"\n'
    )


@pytest.mark.parametrize("content_type", ["text/plain", "application/octet-stream", "nonsense"])
async def test_offsets_may_have_any_content_type(served: ServedHttp, content_type: str) -> None:
    await produce(served, b"x")
    target, body = "/topics/t/offsets?group=g", b'[{"partition": 0, "offset": 1}]'
    answer = await served.client.call("POST", target, body, f"Content-Type: {content_type}")
    assert (answer.status, answer.text) == (200, "{}")
    assert json.loads((await served.client.call("GET", target)).body)[0]["offset"] == 1


async def test_offsets_have_a_mebibyte_at_most(served: ServedHttp) -> None:
    await produce(served, b"x")
    body = b'[{"partition": 0, "offset": 1, "ignored": "%b"}]'
    for size, status in ((1 << 20, 200), ((1 << 20) + 1, 413)):
        text = b"x" * (size - len(body % b""))
        answer = await served.client.call("POST", "/topics/t/offsets?group=g", body % text)
        assert answer.status == status


async def test_the_oldest_and_the_newest_offset_can_be_set(served: ServedHttp) -> None:
    for _ in range(3):
        await produce(served, b"x")
    body = b'[{"partition": 0, "offset": -2}, {"partition": 1, "offset": -1}, {"partition": 2, "offset": 1}]'
    assert (await served.client.call("POST", "/topics/t/offsets?group=g", body)).text == "{}"
    offsets = json.loads((await served.client.call("GET", "/topics/t/offsets?group=g")).body)
    assert [of["lag"] for of in offsets] == [3, 0, -1, 0]


@pytest.mark.slow
async def test_sparse_acks_are_told(served: ServedHttp) -> None:
    for _ in range(3):
        await produce(served, b"x")
    for _ in range(3):
        await consume(served, "group=g&noAck")
    await served.client.call("POST", "/topics/t/acks?group=g&partition=0&offset=1", b"")

    async def told() -> bool:
        answer = await served.client.call("GET", "/topics/t/offsets?group=g")
        return '"sparse_acks": "1-2"\n' in answer.text

    await until(told)


async def test_an_answer_beyond_the_buffer_of_a_connection_is_refused() -> None:
    small = replace(CONFIG, grpc=replace(GrpcConfig(), output_buffer_bytes=3000))
    async with serve_http(FakeBackend(), small) as served:
        await produce(served, b"x")
        for partition, status in ((0, 200), (1, 429)):
            body = b'[{"partition": %d, "offset": 0, "metadata": "%b"}]' % (partition, b"m" * 2000)
            assert (await served.client.call("POST", "/topics/t/offsets?group=g", body)).text == "{}"
            answer = await served.client.call("GET", "/topics/t/offsets?group=g")
            assert answer.status == status
        assert answer.text == error("the answer has more than grpc.output_buffer_bytes, 3000 bytes")
        assert (await served.client.call("GET", "/topics?withPartitions")).status == 200


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_offsets_of_an_unknown_topic(served: ServedHttp, method: str) -> None:
    body = b"[]" if method == "POST" else None
    answer = await served.client.call(method, "/topics/nothing/offsets?group=g", body)
    assert (answer.status, answer.text) == (404, error("Unknown topic"))


async def test_offsets_of_an_unknown_partition_are_not_set(served: ServedHttp) -> None:
    await produce(served, b"x")
    answer = await served.client.call("POST", "/topics/t/offsets?group=g", b'[{"partition": 5}]')
    assert answer.status == 400


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"garbage", "invalid character 'g' looking for beginning of value"),
        (b"", "unexpected end of JSON input"),
        (b" \n", "unexpected end of JSON input"),
        (b'[{"partition": 0', "unexpected end of JSON input"),
        (b'[{"partition', "unexpected end of JSON input"),
        (b"[1 2]", "invalid character '2' after array element"),
        (b'[{"a": "[" "b"]', "invalid character '\"' after object key:value pair"),
        (b"[{1: 2}]", "invalid character '1' looking for beginning of object key string"),
        (b'[{"a" 1}]', "invalid character '1' after object key"),
        (b"[] x", "invalid character 'x' after top-level value"),
        (b"[,]", "invalid character ',' looking for beginning of value"),
        (b"[NaN]", "invalid character 'N' looking for beginning of value"),
        (b"{}", "json: cannot unmarshal object into Go value of type []httpsrv.partitionInfo"),
        (b"7", "json: cannot unmarshal number 7 into Go value of type []httpsrv.partitionInfo"),
        (b"[7.5]", "json: cannot unmarshal number 7.5 into Go value of type httpsrv.partitionInfo"),
        (b"[true]", "json: cannot unmarshal bool into Go value of type httpsrv.partitionInfo"),
        (
            b'[{"partition": "0"}]',
            "json: cannot unmarshal string into Go struct field partitionInfo.partition of type int32",
        ),
        (
            b'[{"offset": 1.5}]',
            "json: cannot unmarshal number 1.5 into Go struct field partitionInfo.offset of type int64",
        ),
        (
            b'[{"partition": 2147483648}]',
            "json: cannot unmarshal number 2147483648 into Go struct field partitionInfo.partition of type int32",
        ),
        (
            b'[{"metadata": {}}]',
            "json: cannot unmarshal object into Go struct field partitionInfo.metadata of type string",
        ),
        (b"[" * 100_000, "exceeded max depth"),
    ],
)
async def test_offsets_that_cannot_be_read(served: ServedHttp, body: bytes, reason: str) -> None:
    await produce(served, b"x")
    answer = await served.client.call("POST", "/topics/t/offsets?group=g", body)
    assert (answer.status, answer.text) == (400, error(f"Failed to parse the request: err=({reason})"))


# --- consumers and topics -------------------------------------------------------------------------


@PREFIXES
async def test_consumers_of_a_topic(served: ServedHttp, prefix: str) -> None:
    target = f"{prefix}/topics/t/consumers"
    await produce(served, b"x")
    assert (await served.client.call("GET", target)).text == "{}"
    await consume(served)
    expected = '{\n  "g": {\n    "me": [0,1,2,3]\n  }\n}'
    for query in ("", "?group=g", "?group="):
        answer = await served.client.call("GET", f"{target}{query}")
        assert (answer.status, answer.text) == (200, expected)
    await served.client.call("POST", "/topics/other/messages?sync", b"x", TEXT)
    for where, text in (
        ("/topics/t/consumers?group=nobody", "unknown consumer group nobody"),
        ("/topics/other/consumers?group=g", "topic other is not consumed by g"),
        ("/topics/missing/consumers?group=nobody", "unknown consumer group nobody"),
        ("/topics/missing/consumers?group=g", "topic missing is not consumed by g"),
        ("/topics/t/consumers?group=a&group=b", "one consumer group is expected, but 2 provided"),
    ):
        answer = await served.client.call("GET", where)
        assert (answer.status, answer.text) == (400, error(text))
    answer = await served.client.call("GET", f"{prefix}/topics/missing/consumers")
    assert (answer.status, answer.text) == (200, "{}")
    assert json.loads((await served.client.call("GET", "/topics")).body) == ["other", "t"]


async def test_consumers_are_sorted_by_the_bytes_of_their_names(fake: ServedHttp) -> None:
    await produce(fake, b"x")
    for group in ("b", "a", "B"):
        for client in ("z", "y", "Z"):
            await fake.backend.join_consumer_group(group, client, ["t"], lambda _: None)
    answer = await fake.client.call("GET", "/topics/t/consumers")
    members = '    "Z": [3],\n    "y": [2],\n    "z": [0,1]'
    groups = ",\n".join(f'  "{group}": {{\n{members}\n  }}' for group in ("B", "a", "b"))
    assert answer.text == f"{{\n{groups}\n}}"


@pytest.mark.slow
@PREFIXES
async def test_topics_are_listed(served: ServedHttp, prefix: str) -> None:
    assert (await served.client.call("GET", f"{prefix}/topics")).text == "[]"
    assert (await served.client.call("GET", f"{prefix}/topics?withConfig")).text == "{}"
    for topic in ("b", "a", "B"):
        await served.client.call("POST", f"/topics/{topic}/messages?sync", b"x", TEXT)
    answer = await served.client.call("GET", f"{prefix}/topics")
    assert answer.text == '[\n  "B",\n  "a",\n  "b"\n]'
    answer = await served.client.call("GET", f"{prefix}/topics?withPartitions=false&withConfig")
    described = json.loads(answer.body)
    assert list(described) == ["B", "a", "b"]
    assert list(described["a"]) == ["config", "partitions"]
    assert answer.text == json.dumps(described, indent=2), "but for escapes, Go's indents are Python's"
    assert described["a"]["partitions"][3] == {"partition": 3, "leader": 0, "replicas": [0], "isr": [0]} | {
        name: described["a"]["partitions"][3][name] for name in ("leader", "replicas", "isr")
    }
    assert set(described["a"]["config"]) == {"version", "config"}
    answer = await served.client.call("GET", f"{prefix}/topics?withPartitions")
    assert [list(each) for each in json.loads(answer.body).values()] == [["partitions"]] * 3


@PREFIXES
async def test_a_topic_is_described(served: ServedHttp, prefix: str) -> None:
    await produce(served, b"x")
    answer = await served.client.call("GET", f"{prefix}/topics/t")
    described = json.loads(answer.body)
    assert list(described) == ["config"]
    assert answer.text == json.dumps(described, indent=2)
    answer = await served.client.call("GET", f"{prefix}/topics/t?withPartitions")
    assert len(json.loads(answer.body)["partitions"]) == 4
    assert (await served.client.call("GET", f"{prefix}/topics/nothing")).status == 404


@pytest.mark.slow
@pytest.mark.parametrize("target", ["/topics", "/topics/t"])
async def test_a_topic_with_many_partitions_is_described_in_steps(
    fake: ServedHttp, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    await produce(fake, b"x")
    topic = await fake.backend.describe_topic("t")
    many: TopicDescription = replace(
        topic, partitions=tuple(replace(topic.partitions[0], partition=at) for at in range(9000))
    )

    async def describe_topic(_: str) -> TopicDescription:
        return many

    async def list_topics() -> list[TopicDescription]:
        return [many]

    monkeypatch.setattr(fake.proxy, "describe_topic", describe_topic)
    monkeypatch.setattr(fake.proxy, "list_topics", list_topics)
    turns = count_turns(monkeypatch)
    answer = await fake.client.call("GET", f"{target}?withPartitions")
    assert answer.status == 200
    assert turns() >= 9000 // 500 - 1
    found = json.loads(answer.body)
    partitions = (found["t"] if target == "/topics" else found)["partitions"]
    assert [each["partition"] for each in partitions] == list(range(9000))


@pytest.mark.parametrize("target", ["/topics", "/topics/t"])
async def test_queries_of_topics_have_to_be_valid(served: ServedHttp, target: str) -> None:
    answer = await served.client.call("GET", f"{target}?a=%zz")
    assert (answer.status, answer.text) == (
        400,
        error('invalid URL escape \\"%zz\\"').replace('\\\\"', '\\"'),
    )


# --- every route ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/topics/t/messages"),
        ("GET", "/topics/t/messages"),
        ("POST", "/topics/t/acks"),
        ("GET", "/topics/t/offsets"),
        ("POST", "/topics/t/offsets"),
        ("GET", "/topics/t/consumers"),
        ("GET", "/topics"),
        ("GET", "/topics/t"),
    ],
)
async def test_an_unknown_cluster_is_told_first(served: ServedHttp, method: str, path: str) -> None:
    answer = await served.client.call(method, f"/clusters/nope{path}", b"" if method == "POST" else None)
    assert (answer.status, answer.text) == (400, error("proxy `nope` does not exist"))
    for other in ("PUT", "DELETE", "HEAD"):
        answer = await served.client.call(other, path)
        assert (answer.status, answer.body) == (405, b"")
        assert "content-type" not in answer.fields


async def test_the_ping_and_paths_without_a_route(served: ServedHttp) -> None:
    answer = await served.client.call("GET", "/_ping")
    assert (answer.status, answer.text) == (200, "pong")
    assert answer.fields["content-type"].startswith("text/plain")
    for path in ("/", "/topic/t/messages", "/topics/t/nothing", "/clusters/first", "/_ping/"):
        answer = await served.client.call("GET", path)
        assert (answer.status, answer.text) == (404, "404 page not found\n")
        assert answer.fields["content-type"] == "text/plain; charset=utf-8"
        assert answer.fields["x-content-type-options"] == "nosniff"


async def test_messages_of_one_batch_are_answered_one_by_one(fake: ServedHttp) -> None:
    await produce(fake, b"x")
    head = b"POST /topics/t/messages?key=1&sync HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nContent-Length: 1\r\n\r\n"
    fake.client.send(b"".join(head + bytes([48 + n]) for n in range(10)))
    offsets = [json.loads((await fake.client.answer()).body)["offset"] for _ in range(10)]
    assert offsets == list(range(1, 11))
