"""Routes of `/v1`, each also below `/v1/clusters/{cluster}`."""

import json
from collections.abc import Mapping
from random import Random

from pixy.api.http.at_once import a_few_at_a_time
from pixy.api.http.clusters import proxy_of
from pixy.api.http.v1.consuming import (
    GroupReader,
    RecordsQuery,
    ack_all,
    answer_records,
    stream_records,
)
from pixy.api.http.v1.openapi import openapi_document
from pixy.api.http.v1.peeking import peek
from pixy.api.http.v1.problems import PROBLEM
from pixy.api.http.v1.producing import produce_all
from pixy.api.http.v1.records import encode, read_lines, read_list, records_body
from pixy.consume import ConsumeRequest
from pixy.proxy import Proxy
from pixy.records import Partitioner, make_partitioner
from pixy.web import JSON, Answer, AnswerHead, Exchange, HttpError, Route

_RECORDS_MAX = 1000
"""Records and acks of one request."""
_BYTES_MAX = 4 << 20
_WAIT_MS_MAX = 300_000
_LINES_TYPE = "application/x-ndjson"
_TEXT_TYPES = ("text/plain", "application/octet-stream")


class V1Routes:
    """Handlers of `/v1`.

    Args:
        proxies: by name of the cluster; "" is the default cluster.
        body_bytes_max: largest body with records.
        rng: for the partitions of records that are appended.
    """

    def __init__(self, proxies: Mapping[str, Proxy], body_bytes_max: int, rng: Random) -> None:
        self._proxies = proxies
        self._body_bytes_max = body_bytes_max
        self._rng = rng
        # By name.
        self._partitioners: dict[str, Partitioner] = {}
        self._document = json.dumps(openapi_document(), indent=2).encode()

    def routes(self) -> list[Route]:
        """All routes."""
        named = [
            ("POST", "records", a_few_at_a_time(self.produce), self._body_bytes_max),
            ("GET", "records", self.consume, 0),
            ("POST", "acks", a_few_at_a_time(self.ack), 1 << 20),
            ("GET", "peek", a_few_at_a_time(self.peek), 0),
        ]
        return [
            Route("GET", "/v1/openapi.json", self.document, style=PROBLEM),
            *(
                Route(method, f"/v1{prefix}/topics/{{topic}}/{name}", handler, body, PROBLEM)
                for method, name, handler, body in named
                for prefix in ("", "/clusters/{cluster}")
            ),
        ]

    def document(self, exchange: Exchange) -> None:
        """Answers with the description of all routes."""
        exchange.answer(JSON, self._document)

    async def produce(self, exchange: Exchange) -> Answer:
        """Produce records; each is answered."""
        _check_parameters(exchange, "key", "sync")
        proxy = proxy_of(self._proxies, exchange)
        given, is_list = _given(exchange)
        if not 1 <= len(given) <= _RECORDS_MAX:
            raise HttpError(400, f"the body has {len(given)} records, expected 1 to {_RECORDS_MAX}")
        results = await produce_all(
            proxy,
            exchange.parameters["topic"],
            given,
            exchange,
            sync=_choice(exchange, "sync", ("true", "false")) != "false",
            partitioner=self._partitioner(proxy),
        )
        if is_list:
            return Answer(JSON, encode({"records": results}) + b"\n")
        problem = results[0].get("error")
        if problem is not None:
            return PROBLEM.render(problem["status"], problem["detail"])
        return Answer(JSON, encode(results[0]) + b"\n")

    async def consume(self, exchange: Exchange) -> None:
        """Messages of a consumer group, in one answer or as a stream."""
        _check_parameters(exchange, "group", "max_records", "max_bytes", "wait_ms", "ack", "encoding")
        proxy = proxy_of(self._proxies, exchange)
        query = _records_query(exchange)
        request = ConsumeRequest(query.group, exchange.parameters["topic"], query.auto_ack)
        reader = GroupReader(proxy, request, exchange)
        accepted = (exchange.head.get(b"accept") or b"").decode("latin-1")
        if _LINES_TYPE in accepted:
            await stream_records(reader, exchange, is_base64=query.is_base64)
        else:
            await answer_records(reader, exchange, query)

    async def ack(self, exchange: Exchange) -> Answer:
        """Acknowledge messages."""
        _check_parameters(exchange, "group")
        proxy = proxy_of(self._proxies, exchange)
        given, _ = read_list(exchange.body)
        if not 1 <= len(given) <= _RECORDS_MAX:
            raise HttpError(400, f"the body has {len(given)} acks, expected 1 to {_RECORDS_MAX}")
        body = await ack_all(proxy, _group(exchange), exchange.parameters["topic"], given, exchange)
        return Answer(JSON, body)

    async def peek(self, exchange: Exchange) -> Answer:
        """Stored records, without a consumer group."""
        _check_parameters(exchange, "partition", "offset", "max_records", "encoding")
        proxy = proxy_of(self._proxies, exchange)
        partition = _integer(exchange, "partition", -1, 0, (1 << 31) - 1)
        lines = await peek(
            proxy,
            exchange.parameters["topic"],
            None if partition < 0 else partition,
            _integer(exchange, "offset", 0, -_RECORDS_MAX, (1 << 63) - 1),
            _integer(exchange, "max_records", 10, 1, _RECORDS_MAX),
            exchange.peer,
            is_base64=_is_base64(exchange),
        )
        body = records_body(lines)
        return Answer(AnswerHead(200, "application/json"), body)

    def _partitioner(self, proxy: Proxy) -> Partitioner:
        name = proxy.log.partitioner
        if name not in self._partitioners:
            self._partitioners[name] = make_partitioner(name, self._rng)
        return self._partitioners[name]


def _given(exchange: Exchange) -> tuple[list[object], bool]:
    """The records in a body, and whether they are a list."""
    content_type = (
        (exchange.head.get(b"content-type") or b"").decode("latin-1").partition(";")[0].strip().lower()
    )
    if content_type == _LINES_TYPE:
        return read_lines(exchange.body, 2 * _RECORDS_MAX), True
    if content_type == "application/json":
        return read_list(exchange.body)
    if content_type in _TEXT_TYPES:
        return [_plain_record(exchange)], False
    raise HttpError(
        415,
        f"the body is {content_type or 'of no type'}, expected application/json, {_LINES_TYPE}, {', '.join(_TEXT_TYPES)}",
    )


def _plain_record(exchange: Exchange) -> dict[str, str]:
    """A record of which the body is the value."""
    import base64

    record = {"value_base64": base64.b64encode(exchange.body).decode()}
    key = exchange.query.first("key")
    if key is not None:
        record["key_base64"] = base64.b64encode(key).decode()
    return record


def _records_query(exchange: Exchange) -> RecordsQuery:
    wait_ms = _integer(exchange, "wait_ms", -1, 0, _WAIT_MS_MAX)
    return RecordsQuery(
        _group(exchange),
        auto_ack=_choice(exchange, "ack", ("none", "auto")) == "auto",
        records_max=_integer(exchange, "max_records", 100, 1, _RECORDS_MAX),
        bytes_max=_integer(exchange, "max_bytes", 1 << 20, 1, _BYTES_MAX),
        wait_s=None if wait_ms < 0 else wait_ms / 1000,
        is_base64=_is_base64(exchange),
    )


def _group(exchange: Exchange) -> str:
    group = _text(exchange, "group")
    if not group:
        raise HttpError(400, "the parameter group is missing: the consumer group")
    return group


def _is_base64(exchange: Exchange) -> bool:
    return _choice(exchange, "encoding", ("text", "base64")) == "base64"


def _check_parameters(exchange: Exchange, *allowed: str) -> None:
    """Refuse a query that cannot be read, or with other parameters."""
    if exchange.query.fault:
        raise HttpError(400, exchange.query.fault)
    unknown = next((name for name in exchange.query if name not in allowed), None)
    if unknown is not None:
        raise HttpError(400, f"{unknown} is no parameter here, expected {' or '.join(allowed)}")


def _text(exchange: Exchange, name: str) -> str:
    """A parameter, "" if it is missing."""
    values = exchange.query.get(name, [])
    if len(values) > 1:
        raise HttpError(400, f"{name} is given {len(values)} times")
    try:
        return values[0].decode() if values else ""
    except UnicodeDecodeError:
        raise HttpError(400, f"{name} is not UTF-8") from None


def _choice(exchange: Exchange, name: str, choices: tuple[str, ...]) -> str:
    """A parameter with few values; the first one if it is missing."""
    text = _text(exchange, name) or choices[0]
    if text not in choices:
        raise HttpError(400, f"{name} is {text}, expected {' or '.join(choices)}")
    return text


def _integer(exchange: Exchange, name: str, default: int, least: int, most: int) -> int:
    text = _text(exchange, name)
    if not text:
        return default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 20 and least <= int(text) <= most):
        raise HttpError(400, f"{name} is {text}, expected a whole number from {least} to {most}")
    return int(text)
