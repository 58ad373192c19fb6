"""Options of the data source: one table of their names, the uses they apply to, and their values.

Names and meanings are those of Spark's Kafka connector, so that a job migrates by changing the
format's name. An option is either honoured, or ignored with a warning, or rejected with the allowed
values. None is dropped silently, because a misspelt option would change what is read.

Spark passes options with lower-case names. They are looked up in lower case and shown as spelt in
the table.
"""

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum

from pixy.errors import InvalidArgument
from pixy.spark.connection import ConnectionOptions, Tls
from pixy.spark.positions import Position, check_order, end_position, start_position
from pixy.spark.topic_selection import TopicSelection, parse_topic_selection

Options = Mapping[str, str]

_ADDRESS_DEFAULT = "127.0.0.1:19091"
_TIMEOUT_MS_DEFAULT = 30_000
_PUBLISH_TIMEOUT_MS_DEFAULT = 120_000
_BATCH_BYTES_DEFAULT = 512 * 1024
_MAX_TRIGGER_DELAY_DEFAULT = "15m"
_COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
_ADDRESS = re.compile(r"unix:/.+|([^\s:/]+|\[[0-9a-fA-F:.]+\]):(?P<port>\d{1,5})")
_PORT_MAX = 65535
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_NAME_ALLOWED = "1 to 249 of the characters a-z A-Z 0-9 . _ -"
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|min|h|d|)")
_DURATION_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "": 0.001}


class Use(Enum):
    """Use of the data source."""

    BATCH_READ = "a batch read"
    STREAM_READ = "a stream read"
    BATCH_WRITE = "a batch write"
    STREAM_WRITE = "a stream write"


_READ = frozenset({Use.BATCH_READ, Use.STREAM_READ})
_WRITE = frozenset({Use.BATCH_WRITE, Use.STREAM_WRITE})
_ALL = _READ | _WRITE
_STREAM_READ = frozenset({Use.STREAM_READ})
_BATCH_READ = frozenset({Use.BATCH_READ})
_BATCH_WRITE = frozenset({Use.BATCH_WRITE})

_KNOWN: dict[str, frozenset[Use]] = {
    "pixy.address": _ALL,
    "kafka.bootstrap.servers": _ALL,
    "pixy.cluster": _ALL,
    "pixy.timeoutMs": _ALL,
    "pixy.publishTimeoutMs": _WRITE,
    "pixy.tls": _ALL,
    "pixy.tls.caPath": _ALL,
    "pixy.tls.certificatePath": _ALL,
    "pixy.tls.keyPath": _ALL,
    "pixy.tls.serverName": _ALL,
    "subscribe": _READ,
    "subscribePattern": _READ,
    "assign": _READ,
    "startingOffsets": _READ,
    "startingTimestamp": _READ,
    "startingOffsetsByTimestamp": _READ,
    "startingOffsetsByTimestampStrategy": _READ,
    "endingOffsets": _BATCH_READ,
    "endingTimestamp": _BATCH_READ,
    "endingOffsetsByTimestamp": _BATCH_READ,
    "failOnDataLoss": _READ,
    "maxOffsetsPerTrigger": _STREAM_READ,
    "minOffsetsPerTrigger": _STREAM_READ,
    "maxTriggerDelay": _STREAM_READ,
    "minPartitions": _READ,
    "maxRecordsPerPartition": _READ,
    "includeHeaders": _ALL,
    "topic": _WRITE,
    "maxBatchBytes": _WRITE,
    "sinkId": _WRITE,
    "sinkReset": _WRITE,
    "queryId": _BATCH_WRITE,
    "batchId": _BATCH_WRITE,
    "kafka.compression.type": _WRITE,
}
"""Honoured options, and the uses that they apply to."""

_BATCH_WARNS = frozenset({"maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"})
"""Options that Spark's Kafka connector warns of in a batch read."""

_WITHOUT_EFFECT = {
    "groupIdPrefix": "progress is in Spark's checkpoint, there is no consumer group",
    "kafka.group.id": "progress is in Spark's checkpoint, there is no consumer group",
    "kafkaConsumer.pollTimeoutMs": "pixy.timeoutMs limits how long calls are retried",
    "fetchOffset.numRetries": "pixy.timeoutMs limits how long calls are retried",
    "fetchOffset.retryIntervalMs": "pixy.timeoutMs limits how long calls are retried",
    "kafkaConsumer.consumerCacheTimeout": "there is no cache of consumers",
    "kafka.client.id": "clients have no ids",
    "kafka.acks": "every confirmed write is durable",
    "kafka.enable.idempotence": "writes are exactly-once",
    "kafka.retries": "pixy.timeoutMs limits how long calls are retried",
    "kafka.request.timeout.ms": "pixy.timeoutMs limits how long calls are retried",
    "kafka.max.poll.records": "records arrive in whole batches",
    "kafka.fetch.max.bytes": "records arrive in whole batches",
    "kafka.max.partition.fetch.bytes": "records arrive in whole batches",
    "kafka.batch.size": "batches are built from the rows at hand",
    "kafka.linger.ms": "batches are built from the rows at hand",
    "kafka.max.request.size": "batches are built from the rows at hand",
    "kafka.isolation.level": "only published records are visible",
    **dict.fromkeys(
        (
            "kafka.session.timeout.ms",
            "kafka.heartbeat.interval.ms",
            "kafka.max.poll.interval.ms",
            "kafka.partition.assignment.strategy",
            "kafka.group.instance.id",
        ),
        "progress is in Spark's checkpoint, there is no consumer group",
    ),
    **dict.fromkeys(
        (
            "kafka.delivery.timeout.ms",
            "kafka.default.api.timeout.ms",
            "kafka.max.block.ms",
            "kafka.retry.backoff.ms",
            "kafka.retry.backoff.max.ms",
            "kafka.reconnect.backoff.ms",
            "kafka.reconnect.backoff.max.ms",
            "kafka.socket.connection.setup.timeout.ms",
            "kafka.socket.connection.setup.timeout.max.ms",
        ),
        "pixy.timeoutMs limits how long calls are retried",
    ),
    **dict.fromkeys(
        (
            "kafka.fetch.min.bytes",
            "kafka.fetch.max.wait.ms",
            "kafka.check.crcs",
            "kafka.receive.buffer.bytes",
            "kafka.send.buffer.bytes",
            "kafka.buffer.memory",
            "kafka.max.in.flight.requests.per.connection",
            "kafka.connections.max.idle.ms",
            "kafka.metadata.max.age.ms",
            "kafka.client.rack",
            "kafka.client.dns.lookup",
        ),
        "there is no Kafka client to pass it to",
    ),
}
"""Options of the Kafka connector that have no effect here."""

_WITHOUT_EFFECT_AS = {"kafka.security.protocol": ("plaintext", "connections are secured with pixy.tls")}
"""Options without effect at one value, in lower case; refused at any other."""

_REFUSED = {
    "kafka.auto.offset.reset": "use startingOffsets",
    "kafka.key.deserializer": "keys are binary; cast the column",
    "kafka.value.deserializer": "values are binary; cast the column",
    "kafka.key.serializer": "keys are string or binary columns",
    "kafka.value.serializer": "values are string or binary columns",
    "kafka.enable.auto.commit": "offsets are kept in Spark's checkpoint",
    "kafka.interceptor.classes": "there are no interceptors",
    "path": "name topics with subscribe or topic, and call load() and save() without a path",
}
"""Options that are rejected with a hint."""

_SECRET_WORDS = ("pass", "secret", "token", "jaas", "key", "credential")
"""Parts of the names of options whose values are in no error."""

_SPARK_OWN = frozenset({"checkpointlocation", "queryname"})
"""Options that Spark adds to those of a sink."""

_SPELLING = {name.lower(): name for name in (*_KNOWN, *_WITHOUT_EFFECT, *_REFUSED)}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of a read. Counts are in records; None: no limit."""

    connection: ConnectionOptions
    subscription: TopicSelection
    start: Position
    end: Position
    fail_on_data_loss: bool
    include_headers: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_seconds: float


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a write.

    `topic` None: each row names its topic. `sink_id` None: a batch write generates one, a stream
    uses the id of its query. `replaces_query_id` is the query to take the sink over from, empty for
    none. `query_id` and `batch_id` None: from Spark's local properties. `batch_bytes` is the size
    of the largest record batch.
    """

    connection: ConnectionOptions
    topic: str | None
    include_headers: bool
    sink_id: str | None
    replaces_query_id: str
    query_id: str | None
    batch_id: int | None
    compression: str
    batch_bytes: int


def read_options(options: Options, use: Use) -> ReadOptions:
    """Parses the options of a reader.

    Raises:
        InvalidArgument: the text names the option, its value and the allowed values.
    """
    given = _check_names(options, use)
    streaming = use is Use.STREAM_READ
    subscription = parse_topic_selection(given)
    maximum = _count(given, "maxOffsetsPerTrigger") if streaming else None
    minimum = _count(given, "minOffsetsPerTrigger") if streaming else None
    if maximum is not None and minimum is not None and minimum > maximum:
        raise InvalidArgument(
            f"option minOffsetsPerTrigger is {minimum}: it must not be above maxOffsetsPerTrigger, {maximum}"
        )
    start, end = start_position(given, streaming=streaming), end_position(given)
    check_order(start, end)
    return ReadOptions(
        connection=_connection(given),
        subscription=subscription,
        start=start,
        end=end,
        fail_on_data_loss=_flag(given, "failOnDataLoss", default=True),
        include_headers=_flag(given, "includeHeaders", default=False),
        min_partitions=_count(given, "minPartitions"),
        max_records_per_partition=_count(given, "maxRecordsPerPartition"),
        max_offsets_per_trigger=maximum,
        min_offsets_per_trigger=minimum,
        max_trigger_delay_seconds=_duration(given, "maxTriggerDelay", _MAX_TRIGGER_DELAY_DEFAULT),
    )


def write_options(options: Options, use: Use) -> WriteOptions:
    """Parses the options of a writer.

    Raises:
        InvalidArgument: the text names the option, its value and the allowed values.
    """
    given = _check_names(options, use)
    for name in ("topic", "sinkId", "queryId"):
        value = given.get(name)
        if value is not None and not _NAME.fullmatch(value):
            raise _bad(name, value, _NAME_ALLOWED)
    _check_batch_name(given)
    compression = given.get("kafka.compression.type", "none")
    if compression not in _COMPRESSIONS:
        raise _bad("kafka.compression.type", compression, ", ".join(_COMPRESSIONS))
    return WriteOptions(
        connection=_connection(given),
        topic=given.get("topic"),
        include_headers=_flag(given, "includeHeaders", default=True),
        sink_id=given.get("sinkId"),
        replaces_query_id=_replaced_query(given),
        query_id=given.get("queryId"),
        batch_id=None if "batchId" not in given else int(given["batchId"]),
        compression=compression,
        batch_bytes=_count(given, "maxBatchBytes") or _BATCH_BYTES_DEFAULT,
    )


def wants_headers(options: Options) -> bool:
    """True if rows of a read have headers. Other options are checked once their use is known."""
    return _flag(options, "includeheaders", default=False)


def _check_names(options: Options, use: Use) -> dict[str, str]:
    """Options that have an effect, by their names in the table; warns of those without."""
    given: dict[str, str] = {}
    for key, value in options.items():
        lower = key.lower()
        if lower in _SPARK_OWN:
            continue
        name = _SPELLING.get(lower)
        harmless, why = _WITHOUT_EFFECT_AS.get(lower, (None, ""))
        if harmless is not None and str(value).strip().lower() == harmless:
            warnings.warn(f"option {lower} has no effect: {why}", stacklevel=3)
            continue
        if name is None:
            raise _unknown(key, use)
        if name in _REFUSED:
            raise InvalidArgument(f"option {name} is not supported: {_REFUSED[name]}")
        if name in _WITHOUT_EFFECT:
            warnings.warn(f"option {name} has no effect: {_WITHOUT_EFFECT[name]}", stacklevel=3)
        elif use in _KNOWN[name]:
            given[name] = str(value).strip()
        elif use is Use.BATCH_READ and name in _BATCH_WARNS:
            warnings.warn(f"option {name} has no effect in a batch read", stacklevel=3)
        else:
            where = " and ".join(each.value for each in Use if each in _KNOWN[name])
            raise InvalidArgument(
                f"option {_shown(name, value)} is not allowed in {use.value}, only in {where}"
            )
    return given


def _shown(name: str, value: str) -> str:
    """An option and its value, without the value if the name is that of a secret.

    Errors are in the logs of drivers, in event logs and in notebooks.
    """
    is_secret = any(word in name.lower() for word in _SECRET_WORDS)
    return name if is_secret else f"{name}={value!r}"


def _unknown(key: str, use: Use) -> InvalidArgument:
    """Error for an option of any name, whose value may be any secret."""
    lower = key.lower()
    if lower.startswith(("kafka.ssl.", "kafka.sasl.", "kafka.security.")):
        hint = "connections are secured with pixy.tls, pixy.tls.caPath, pixy.tls.certificatePath and pixy.tls.keyPath"
    else:
        allowed = {name.lower(): name for name, uses in _KNOWN.items() if use in uses}
        near = get_close_matches(lower, allowed, n=1)
        hint = f"did you mean {allowed[near[0]]}?" if near else f"allowed are {', '.join(allowed.values())}"
    return InvalidArgument(f"unknown option {key} in {use.value}: {hint}")


def _replaced_query(given: Options) -> str:
    """The query to take the sink over from, empty for none."""
    value = given.get("sinkReset", "false")
    if value.lower() == "false":
        return ""
    if value.lower() == "true" or not _NAME.fullmatch(value):
        raise _bad(
            "sinkReset",
            value,
            f"the id of the query that is replaced, {_NAME_ALLOWED}; the daemon names it when it rejects a new query. "
            "The id is required, because a query that replaced any other would replace its own successor if it were restarted by mistake",
        )
    return value


def _check_batch_name(given: Options) -> None:
    """Check that the options which name a batch are complete."""
    for name in ("queryId", "batchId"):
        if name in given and "sinkId" not in given:
            raise InvalidArgument(f"option {name}={given[name]!r} needs the option sinkId")
    if ("queryId" in given) != ("batchId" in given):
        raise InvalidArgument("options queryId and batchId go together: one of them is missing")
    if "batchId" in given and not re.fullmatch(r"\d{1,18}", given["batchId"]):
        raise _bad("batchId", given["batchId"], "a whole number from 0 on")


def _connection(given: Options) -> ConnectionOptions:
    own, kafka = given.get("pixy.address"), given.get("kafka.bootstrap.servers")
    if own is not None and kafka is not None and own != kafka:
        raise InvalidArgument(
            f"options pixy.address={own!r} and kafka.bootstrap.servers={kafka!r} are the same option: give one of them"
        )
    text = own if own is not None else kafka if kafka is not None else _ADDRESS_DEFAULT
    addresses = _addresses("pixy.address" if own is not None else "kafka.bootstrap.servers", text)
    timeout_ms = _count(given, "pixy.timeoutMs") or _TIMEOUT_MS_DEFAULT
    publish_timeout_ms = _count(given, "pixy.publishTimeoutMs") or max(
        _PUBLISH_TIMEOUT_MS_DEFAULT, timeout_ms
    )
    cluster = given.get("pixy.cluster", "")
    return ConnectionOptions(addresses, cluster, timeout_ms / 1000, publish_timeout_ms / 1000, _tls(given))


def _addresses(name: str, text: str) -> tuple[str, ...]:
    addresses = tuple(part.strip() for part in text.split(","))
    for address in addresses:
        match = _ADDRESS.fullmatch(address)
        if match is None or not 0 < int(match["port"] or 1) <= _PORT_MAX:
            which = "" if len(addresses) == 1 else f", and {address!r} is not" if address else ", none empty"
            allowed = f"HOST:PORT with a port from 1 to {_PORT_MAX}, or unix:/PATH, or several of them, separated by commas"
            raise _bad(name, text, allowed + which)
        if addresses.count(address) > 1:
            raise InvalidArgument(f"option {name} is {text!r}: {address} is there twice")
    return addresses


def _tls(given: Options) -> Tls | None:
    parts = [name for name in given if name.startswith("pixy.tls.")]
    if not _flag(given, "pixy.tls", default=bool(parts)):
        if parts:
            raise InvalidArgument(f"option {_shown(parts[0], given[parts[0]])} contradicts pixy.tls=false")
        return None
    certificate, key = given.get("pixy.tls.certificatePath"), given.get("pixy.tls.keyPath")
    if (certificate is None) != (key is None):
        raise InvalidArgument(
            "options pixy.tls.certificatePath and pixy.tls.keyPath go together: one of them is missing"
        )
    return Tls(given.get("pixy.tls.caPath"), certificate, key, given.get("pixy.tls.serverName"))


def _flag(given: Options, name: str, *, default: bool) -> bool:
    value = given.get(name)
    if value is None:
        return default
    if value.lower() not in ("true", "false"):
        raise _bad(_SPELLING[name.lower()], value, "true or false")
    return value.lower() == "true"


def _count(given: Options, name: str) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if not re.fullmatch(r"\d{1,18}", value) or int(value) == 0:
        raise _bad(name, value, "a whole number above 0")
    return int(value)


def _duration(given: Options, name: str, default: str) -> float:
    value = given.get(name, default)
    match = _DURATION.fullmatch(value)
    if match is None:
        raise _bad(name, value, "a duration like 500ms, 30s, 15m or 1h")
    return int(match[1]) * _DURATION_SECONDS[match[2]]


def _bad(name: str, value: str, allowed: str) -> InvalidArgument:
    return InvalidArgument(f"option {name} is {value!r}: allowed is {allowed}")
