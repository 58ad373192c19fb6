"""kafka-pixy's HTTP API: every route below `/` for the default cluster, and below
`/clusters/{cluster}`.

Statuses, texts and bytes are kafka-pixy's. Where it answers 500 for what its client did wrong, the
table `_STATUSES` has another status.

Produce, consume and ack are answered by callback, without a task. The meaning of a head is read
once and kept with it (`RequestHead.memo`), because clients repeat their heads. An offer is the
receipt of its answer: it is delivered, and acked automatically, when the answer was handed to the
transport, and otherwise offered to another caller.
"""

import base64
import re
from binascii import b2a_base64
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from pixy.aio.steps import in_steps
from pixy.api.http.at_once import a_few_at_a_time
from pixy.api.http.clusters import proxy_of
from pixy.api.http.go_json import array, error_body, go_object, numbers, quote
from pixy.api.http.offsets_body import read_offsets
from pixy.api.http.parameters import FORM, ack_of, group_of, parameters_of
from pixy.backend import TopicDescription
from pixy.consume import ConsumeRequest, Offer, PendingRequest
from pixy.errors import (
    NotConsumed,
    PixyError,
    TopicMissing,
    UnknownGroup,
    UnknownPartition,
    UnknownTopic,
)
from pixy.http1 import RequestHead
from pixy.proxy import PartitionOffsets, Proxy
from pixy.records import Header
from pixy.web import JSON, TEXT, Answer, AnswerHead, Exchange, HttpError, Route, Style, status_of

_MIB = 1 << 20
_JSON_TYPE = re.compile(rb"application/(?:.*\+)?json(?:;.*)?")
_BASE64 = re.compile(rb"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_HEADER_PREFIX = b"x-kafka-"
_FRAMING_BYTES = 64 << 10
"""Room in a body beside the message: the names and escapes of a form."""
_EMPTY = b"{}"
_UNKNOWN_TOPIC = "Unknown topic"
V = TypeVar("V")
_PRODUCED = b'{\n  "partition": %d,\n  "offset": %d\n}'

Statuses = Mapping[type[PixyError], tuple[int, str]]
"""Status and text of errors; an empty text is the error's own."""

_NO_TOPIC: Statuses = {UnknownTopic: (404, _UNKNOWN_TOPIC)}
_STATUSES: dict[str, Statuses] = {
    "produce": {
        TopicMissing: (
            404,
            "kafka server: Request was for a topic or partition that does not exist on this broker.",
        )
    },
    "get offsets": _NO_TOPIC,
    "set offsets": {**_NO_TOPIC, UnknownPartition: (400, "")},
    "ack": {UnknownPartition: (400, "")},
    "consumers": {UnknownGroup: (400, ""), NotConsumed: (400, "")},
}
"""Statuses and texts that differ from those of the error's class, by route."""


class ProduceHead(NamedTuple):
    """A message but for its body, as a head tells it. A form may have `key` and `sync` as well."""

    proxy: Proxy
    topic: str
    key: bytes | None
    headers: Sequence[Header]
    sync: bool
    is_form: bool


class ConsumeHead(NamedTuple):
    """A consume request, as a head tells it."""

    proxy: Proxy
    request: ConsumeRequest


class KafkaPixyRoutes:
    """Handlers of kafka-pixy's routes.

    Args:
        proxies: by name of the cluster; "" is the default cluster.
        message_bytes_max: largest message of any of them.
        answer_bytes_max: largest answer with elements.
    """

    def __init__(self, proxies: Mapping[str, Proxy], message_bytes_max: int, answer_bytes_max: int) -> None:
        self._proxies = proxies
        self._answer_bytes_max = answer_bytes_max
        self._body_bytes_max = message_bytes_max + _FRAMING_BYTES

    def routes(self) -> list[Route]:
        """All routes."""
        body, style = self._body_bytes_max, _style
        named: Iterable[Route] = [
            Route("POST", "/topics/{topic}/messages", self.produce, body, style("produce")),
            Route("GET", "/topics/{topic}/messages", self.consume, style=style("consume")),
            Route("POST", "/topics/{topic}/acks", self.ack, style=style("ack")),
            Route(
                "GET",
                "/topics/{topic}/offsets",
                a_few_at_a_time(self.get_offsets),
                style=style("get offsets"),
            ),
            Route(
                "POST",
                "/topics/{topic}/offsets",
                a_few_at_a_time(self.set_offsets),
                _MIB,
                style("set offsets"),
            ),
            Route(
                "GET", "/topics/{topic}/consumers", a_few_at_a_time(self.consumers), style=style("consumers")
            ),
            Route("GET", "/topics", a_few_at_a_time(self.list_topics), style=style("topics")),
            Route("GET", "/topics/{topic}", a_few_at_a_time(self.topic), style=style("topic")),
        ]
        of_clusters = [
            Route(
                each.method,
                f"/clusters/{{cluster}}{each.pattern}",
                each.handler,
                each.body_bytes_max,
                each.style,
            )
            for each in named
        ]
        return [Route("GET", "/_ping", self.ping), *named, *of_clusters]

    def ping(self, exchange: Exchange) -> None:
        """Answers with pong."""
        exchange.answer(TEXT, b"pong")

    # --- messages ---------------------------------------------------------------------------------

    def produce(self, exchange: Exchange) -> PendingRequest | None:
        """Append a message."""
        known: ProduceHead | None = exchange.head.memo
        if known is None:
            known = exchange.head.memo = self._read_produce(exchange)
        proxy, topic, key, headers, sync, is_form = known
        body = exchange.body
        if is_form:
            parameters = parameters_of(exchange)
            key, sync = parameters.first("key"), "sync" in parameters
            body = parameters.first("msg") or b""
            if not body:
                raise HttpError(400, "empty message")
        return proxy.produce(topic, key, body, headers, _produced, exchange, sync)

    def _read_produce(self, exchange: Exchange) -> ProduceHead:
        head = exchange.head
        proxy = proxy_of(self._proxies, exchange)
        content_type = head.get(b"content-type") or b""
        is_form = content_type == FORM
        if not is_form:
            if content_type != b"text/plain" and not _JSON_TYPE.fullmatch(content_type):
                raise HttpError(400, f"unsupported content type {content_type.decode('utf-8', 'replace')}")
            if head.content_length is None:
                raise HttpError(400, "missing Content-Length header")
        query = exchange.query
        return ProduceHead(
            proxy,
            exchange.parameters["topic"],
            query.first("key"),
            _headers(head),
            "sync" in query,
            is_form,
        )

    def consume(self, exchange: Exchange) -> PendingRequest | None:
        """Ask for the next message of a topic, for a consumer group."""
        known: ConsumeHead | None = exchange.head.memo
        if known is None:
            known = exchange.head.memo = self._read_consume(exchange)
        return known.proxy.consume(known.request, partial(_consumed, exchange), None, exchange)

    def _read_consume(self, exchange: Exchange) -> ConsumeHead:
        proxy, query = proxy_of(self._proxies, exchange), exchange.query
        group = group_of(query)
        auto_ack, ack = ack_of(query, "ackPartition", "ackOffset")
        return ConsumeHead(proxy, ConsumeRequest(group, exchange.parameters["topic"], auto_ack, ack))

    def ack(self, exchange: Exchange) -> None:
        """Acknowledge a message."""
        proxy, parameters = proxy_of(self._proxies, exchange), parameters_of(exchange)
        group = group_of(parameters)
        _, ack = ack_of(parameters, "partition", "offset")
        if ack is None:
            raise HttpError(400, "partition and offset of a message are expected, neither of them negative")
        proxy.ack(group, exchange.parameters["topic"], *ack, partial(_acked, exchange), exchange)

    # --- offsets, consumers, topics ---------------------------------------------------------------

    async def get_offsets(self, exchange: Exchange) -> Answer:
        """Offsets of each partition, and those of a consumer group."""
        proxy, parameters = proxy_of(self._proxies, exchange), parameters_of(exchange)
        offsets = await proxy.get_offsets(group_of(parameters), exchange.parameters["topic"])
        return _json(array(await self._texts(_partition_offsets(of) async for of in in_steps(offsets))))

    async def set_offsets(self, exchange: Exchange) -> Answer:
        """Set the offsets of a consumer group."""
        proxy, parameters = proxy_of(self._proxies, exchange), parameters_of(exchange)
        group = group_of(parameters)
        await proxy.set_offsets(group, exchange.parameters["topic"], read_offsets(exchange.body))
        return Answer(JSON, _EMPTY)

    async def consumers(self, exchange: Exchange) -> Answer:
        """Members of consumer groups with their partitions."""
        proxy, parameters = proxy_of(self._proxies, exchange), parameters_of(exchange)
        group = group_of(parameters, optional=True)
        groups = await proxy.list_consumers(exchange.parameters["topic"], group)
        named = [(name, of) for name, of in _sorted(groups) if of]
        members = await self._texts(_members(of) async for _, of in in_steps(named))
        return _json(go_object(zip((name for name, _ in named), members, strict=True)))

    async def list_topics(self, exchange: Exchange) -> Answer:
        """Names of topics, or their descriptions."""
        proxy, parameters = proxy_of(self._proxies, exchange), parameters_of(exchange)
        if parameters.fault:
            raise HttpError(400, parameters.fault)
        with_config, with_partitions = "withConfig" in parameters, "withPartitions" in parameters
        by_name = _sorted({topic.name: topic for topic in await proxy.list_topics()})
        if not (with_config or with_partitions):
            return _json(array([quote(name) async for name, _ in in_steps(by_name)]))
        described = await self._texts(
            await _topic(topic, 1, with_config=with_config, with_partitions=with_partitions)
            async for _, topic in in_steps(by_name)
        )
        return _json(go_object(zip((name for name, _ in by_name), described, strict=True)))

    async def topic(self, exchange: Exchange) -> Answer:
        """Description of a topic."""
        proxy, parameters = proxy_of(self._proxies, exchange), parameters_of(exchange)
        if parameters.fault:
            raise HttpError(400, parameters.fault)
        topic = await proxy.describe_topic(exchange.parameters["topic"])
        with_partitions = "withPartitions" in parameters
        return _json(await _topic(topic, 0, with_config=True, with_partitions=with_partitions))

    async def _texts(self, made: AsyncIterator[str]) -> list[str]:
        """Parts of an answer.

        Raises:
            HttpError: it becomes too large.
        """
        texts, size = [], 0
        async for text in made:
            texts.append(text)
            size += len(text.encode())
            if size > self._answer_bytes_max:
                reason = f"the answer has more than grpc.output_buffer_bytes, {self._answer_bytes_max} bytes"
                raise HttpError(429, reason, "grpc.output_buffer_bytes")
        return texts


# --- errors ---------------------------------------------------------------------------------------


def _style(route: str) -> Style:
    return Style(_render, partial(_translate, _STATUSES.get(route, {})))


def _render(status: int, text: str) -> Answer:
    return Answer(AnswerHead(status, "application/json"), error_body(text))


def _translate(statuses: Statuses, error: Exception) -> HttpError | None:
    told = status_of(error)
    for kind, (status, text) in statuses.items():
        if told is not None and isinstance(error, kind):
            return HttpError(status, text or str(error), told.limit)
    return told


# --- callbacks ------------------------------------------------------------------------------------


def _produced(exchanges: Sequence[Exchange], partition: int, offset: int, error: PixyError | None) -> None:
    for exchange in exchanges:
        if error is not None:
            exchange.fail(error)
        elif offset < 0:
            exchange.answer(JSON, _EMPTY)
        else:
            exchange.answer(JSON, _PRODUCED % (partition, offset))
            offset += 1


def _consumed(exchange: Exchange, offer: Offer | None, error: PixyError | None) -> None:
    if offer is None:
        assert error is not None
        exchange.fail(error)
        return
    try:
        body = _message(offer)
    except Exception as bug:
        exchange.fail(bug, offer)
        return
    exchange.answer(JSON, body, offer)


def _acked(exchange: Exchange, error: PixyError | None) -> None:
    if error is None:
        exchange.answer(JSON, _EMPTY)
    else:
        exchange.fail(error)


# --- encoding -------------------------------------------------------------------------------------


def _json(text: str) -> Answer:
    return Answer(JSON, text.encode())


def _message(offer: Offer) -> bytes:
    record = offer.record
    key, value, headers = record.key, record.value, record.headers
    return b'{\n  "key": %b,\n  "value": %b,\n  "partition": %d,\n  "offset": %d,\n  "headers": %b\n}' % (
        b"null" if key is None else _bytes(key),
        _bytes(value),
        offer.partition,
        record.offset,
        _message_headers(headers) if headers else b"[]",
    )


def _bytes(value: bytes | None) -> bytes:
    return b"null" if value is None else b'"%b"' % b2a_base64(value, newline=False)


def _message_headers(headers: Sequence[Header]) -> bytes:
    pairs = (
        go_object([("key", quote(name)), ("value", _bytes(value).decode())], 2) for name, value in headers
    )
    return array(pairs, 1).encode()


def _headers(head: RequestHead) -> Sequence[Header]:
    """Record headers: the fields X-Kafka-NAME."""
    headers = []
    for name, value in head.fields:
        if not name.startswith(_HEADER_PREFIX):
            continue
        canonical = "-".join(part.capitalize() for part in name.decode().split("-"))
        if not _BASE64.fullmatch(value):
            raise HttpError(400, f"Invalid base64 encoding for header: {canonical}")
        headers.append((canonical[len(_HEADER_PREFIX) :], base64.b64decode(value)))
    return headers


def _partition_offsets(of: PartitionOffsets) -> str:
    pairs = [
        ("partition", of.partition),
        ("begin", of.begin),
        ("end", of.end),
        ("count", of.end - of.begin),
        ("offset", of.offset),
        # Not `of.lag`: kafka-pixy's is below 0 beyond the end, and counts what retention removed.
        ("lag", 0 if of.offset < 0 else of.end - of.offset),
    ]
    texts = [("metadata", of.metadata), ("sparse_acks", of.sparse_acks)]
    encoded = [(name, str(number)) for name, number in pairs]
    return go_object([*encoded, *((name, quote(text)) for name, text in texts if text)], 1)


def _members(consumers: Mapping[str, Sequence[int]]) -> str:
    """Partitions by member, those of each on one line."""
    pairs = ((client, f"[{','.join(map(str, partitions))}]") for client, partitions in _sorted(consumers))
    return go_object(pairs, 1)


async def _topic(topic: TopicDescription, level: int, *, with_config: bool, with_partitions: bool) -> str:
    parts = []
    if with_config:
        config = go_object(((name, quote(value)) for name, value in _sorted(topic.config)), level + 2)
        parts.append(
            ("config", go_object([("version", str(topic.metadata_version)), ("config", config)], level + 1))
        )
    if with_partitions and topic.partitions:
        partitions = [
            go_object(
                [
                    ("partition", str(of.partition)),
                    ("leader", str(of.leader)),
                    ("replicas", numbers(of.replicas, level + 3)),
                    ("isr", numbers(of.isr, level + 3)),
                ],
                level + 2,
            )
            async for of in in_steps(topic.partitions)
        ]
        parts.append(("partitions", array(partitions, level + 1)))
    return go_object(parts, level)


def _sorted(values: Mapping[str, V]) -> list[tuple[str, V]]:
    """Entries in the order of their names' bytes."""
    return sorted(values.items(), key=lambda entry: entry[0].encode("utf-8", "replace"))
