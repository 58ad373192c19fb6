"""Options have the meaning of Spark's Kafka connector; unsupported ones are rejected with option,
value and allowed values.
"""

from typing import Any

import pytest

from pixy.errors import InvalidArgument
from pixy.records import TopicPartition
from pixy.spark import options
from pixy.spark.connection import Tls
from pixy.spark.options import Use, read_options, wants_headers, write_options
from pixy.spark.positions import At
from tests.spark.conftest import ROOT

READS = (Use.BATCH_READ, Use.STREAM_READ)
WRITES = (Use.BATCH_WRITE, Use.STREAM_WRITE)


def test_defaults_are_those_of_the_kafka_connector() -> None:
    batch = read_options({"subscribe": "events"}, Use.BATCH_READ)
    stream = read_options({"subscribe": "events"}, Use.STREAM_READ)
    assert (batch.start.at, batch.end.at, stream.start.at) == (At.EARLIEST, At.LATEST, At.LATEST)
    assert batch.fail_on_data_loss
    assert not batch.include_headers
    assert batch.min_partitions is None
    assert batch.max_records_per_partition is None
    assert stream.max_offsets_per_trigger is None
    assert stream.max_trigger_delay_seconds == 900
    assert batch.connection.addresses == ("127.0.0.1:19091",)


def test_names_are_found_in_lower_case_as_spark_passes_them() -> None:
    read = read_options(
        {"SUBSCRIBE": "a, b", "startingoffsets": "Latest", "failondataloss": "FALSE"}, Use.STREAM_READ
    )
    assert read.subscription.topics == ("a", "b")
    assert read.start.at is At.LATEST
    assert not read.fail_on_data_loss
    assert wants_headers({"includeheaders": "True"})


def test_the_kafka_connectors_address_is_an_alias() -> None:
    written = write_options({"kafka.bootstrap.servers": "a:1, b:2", "topic": "t"}, Use.STREAM_WRITE)
    assert written.connection.addresses == ("a:1", "b:2")
    assert write_options({"pixy.address": "unix:/run/p,[::1]:9"}, Use.BATCH_WRITE).connection.addresses == (
        "unix:/run/p",
        "[::1]:9",
    )


@pytest.mark.parametrize(
    ("given", "at", "stamp"),
    [
        ({"startingOffsets": "latest"}, At.LATEST, 0),
        ({"startingOffsets": "latest", "startingOffsetsByTimestamp": '{"t": {"0": 7}}'}, At.TIMESTAMP, 0),
        ({"startingTimestamp": "5", "startingOffsetsByTimestamp": '{"t": {"0": 7}}'}, At.TIMESTAMP, 5),
        ({"startingOffsets": '{"t": {"0": 12, "1": -2}}'}, At.OFFSETS, 0),
    ],
)
def test_timestamps_take_precedence_over_offsets(given: dict[str, str], at: At, stamp: int) -> None:
    start = read_options({"subscribe": "t", **given}, Use.STREAM_READ).start
    assert (start.at, start.timestamp_ms) == (at, stamp)


def test_offsets_by_partition_are_parsed() -> None:
    start = read_options(
        {"subscribe": "T", "startingOffsets": '{"T": {"0": 12, "1": -2}}'}, Use.BATCH_READ
    ).start
    assert start.by_partition == {TopicPartition("T", 0): 12, TopicPartition("T", 1): -2}


def test_tls_is_enabled_by_any_of_its_options() -> None:
    given = {"topic": "t", "pixy.tls.caPath": "/ca", "pixy.tls.serverName": "n"}
    assert write_options(given, Use.BATCH_WRITE).connection.tls == Tls("/ca", None, None, "n")
    assert write_options({"topic": "t", "pixy.tls": "true"}, Use.BATCH_WRITE).connection.tls == Tls()
    assert write_options({"topic": "t"}, Use.BATCH_WRITE).connection.tls is None


def test_every_option_is_documented() -> None:
    text = (ROOT / "docs" / "spark.md").read_text()
    assert [name for name in (*options._KNOWN, *options._WITHOUT_EFFECT) if f"`{name}`" not in text] == []


REFUSED_READS = [
    ({}, "exactly one of the options subscribe, subscribePattern, assign is needed, found none"),
    ({"subscribe": "a", "assign": '{"a": [0]}'}, "found subscribe='a' and assign="),
    ({"subscribe": "a b"}, "option subscribe is 'a b': invalid topic name 'a b'"),
    ({"subscribe": ""}, "option subscribe is '': invalid topic name ''"),
    ({"subscribePattern": "("}, r"option subscribePattern is '\(': it is not a regular expression"),
    ({"assign": "a"}, "option assign is 'a': allowed is JSON"),
    ({"assign": '{"a": [-1]}'}, r"'a' has \[-1\]; allowed is JSON"),
    ({"assign": '{"a": [true]}'}, r"'a' has \[True\]; allowed is JSON"),
    ({"assign": '{"a": []}'}, r"'a' has \[\]; allowed is JSON"),
    (
        {"subscribe": "a", "startingOffsets": "newest"},
        "option startingOffsets is 'newest': allowed is earliest",
    ),
    ({"subscribe": "a", "startingOffsets": '{"a": {"0": -3}}'}, "partition '0' of 'a' has -3"),
    ({"subscribe": "a", "startingOffsets": '{"a": {"x": 3}}'}, "partition 'x' of 'a' has 3"),
    ({"subscribe": "a", "startingOffsets": '{"a": 3}'}, "'a' has 3"),
    ({"subscribe": "a", "startingOffsets": "{"}, "option startingOffsets is '{': allowed is JSON"),
    ({"subscribe": "a", "startingTimestamp": "yesterday"}, "option startingTimestamp is 'yesterday'"),
    ({"subscribe": "a", "startingOffsetsByTimestamp": '{"a": {"0": -1}}'}, "has -1; allowed is JSON"),
    ({"subscribe": "a", "startingOffsetsByTimestampStrategy": "no"}, "is 'no': allowed is error or latest"),
    ({"subscribe": "a", "failOnDataLoss": "no"}, "option failOnDataLoss is 'no': allowed is true or false"),
    (
        {"subscribe": "a", "minPartitions": "0"},
        "option minPartitions is '0': allowed is a whole number above 0",
    ),
    ({"subscribe": "a", "maxRecordsPerPartition": "1e3"}, "option maxRecordsPerPartition is '1e3'"),
    ({"subscribe": "a", "subscrib": "b"}, "unknown option subscrib in .* did you mean subscribe"),
    ({"subscribe": "a", "bogus": "b"}, "unknown option bogus in a .* read: allowed are pixy.address"),
    ({"subscribe": "a", "kafka.ssl.truststore.location": "x"}, "secured with pixy.tls"),
    ({"subscribe": "a", "kafka.auto.offset.reset": "latest"}, "is not supported: use startingOffsets"),
    ({"subscribe": "a", "kafka.enable.auto.commit": "true"}, "is not supported"),
    ({"subscribe": "a", "path": "/x"}, "option path is not supported: name topics with subscribe"),
    (
        {"subscribe": "a", "topic": "b"},
        "option topic='b' is not allowed in .* only in a batch write and a stream write",
    ),
    ({"subscribe": "a", "pixy.address": "nowhere"}, "option pixy.address is 'nowhere': allowed is HOST:PORT"),
    (
        {"subscribe": "a", "pixy.address": "a:1,,b:2"},
        "option pixy.address is 'a:1,,b:2': .* by commas, none empty",
    ),
    ({"subscribe": "a", "pixy.address": "a:1,b,c:2"}, "is 'a:1,b,c:2': .* by commas, and 'b' is not"),
    ({"subscribe": "a", "pixy.address": "a:1;b:2"}, "option pixy.address is 'a:1;b:2': allowed is HOST:PORT"),
    ({"subscribe": "a", "pixy.address": "a:1, b:2,a:1"}, "is 'a:1, b:2,a:1': a:1 is there twice"),
    (
        {"subscribe": "a", "pixy.address": "a:99999"},
        "'a:99999': allowed is HOST:PORT with a port from 1 to 65535",
    ),
    ({"subscribe": "a", "kafka.bootstrap.servers": "a:0"}, "option kafka.bootstrap.servers is 'a:0'"),
    ({"subscribe": "a", "pixy.address": "a:1", "kafka.bootstrap.servers": "b:1"}, "are the same option"),
    ({"subscribe": "a", "pixy.tls": "false", "pixy.tls.caPath": "/x"}, "contradicts pixy.tls=false"),
    ({"subscribe": "a", "pixy.tls.keyPath": "/x"}, "go together"),
    ({"subscribe": "a", "pixy.timeoutMs": "soon"}, "option pixy.timeoutMs is 'soon'"),
]


@pytest.mark.parametrize("use", READS)
@pytest.mark.parametrize(("given", "message"), REFUSED_READS)
def test_a_reader_rejects_what_it_cannot_honour(given: dict[str, str], message: str, use: Use) -> None:
    with pytest.raises(InvalidArgument, match=message):
        read_options(given, use)


REFUSED_BATCH_READS = [
    ({"startingOffsets": "latest"}, "option startingOffsets is 'latest': allowed is earliest, or JSON"),
    ({"startingOffsets": '{"a": {"0": -1}}'}, "-1, latest, is not allowed there"),
    ({"endingOffsets": "earliest"}, "option endingOffsets is 'earliest': allowed is latest, or JSON"),
    ({"endingOffsets": '{"a": {"0": -2}}'}, "-2, earliest, is not allowed there"),
    (
        {"startingOffsets": '{"a": {"0": -2, "1": 4}}', "endingOffsets": '{"a": {"0": 2, "1": 3}}'},
        "option startingOffsets says 4 for a-1 and endingOffsets 3: reading must not end before it starts",
    ),
    (
        {"startingTimestamp": "5", "endingTimestamp": "4"},
        "option startingTimestamp says 5 and endingTimestamp 4: reading must not end before it starts",
    ),
    (
        {"startingTimestamp": "5", "endingOffsetsByTimestamp": '{"a": {"0": 4}}'},
        "option startingTimestamp says 5 for a-0 and endingOffsetsByTimestamp 4",
    ),
]


@pytest.mark.parametrize(("given", "message"), REFUSED_BATCH_READS)
def test_a_batch_starts_before_its_end(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        read_options({"subscribe": "a", **given}, Use.BATCH_READ)


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ({"startingOffsets": '{"a": {"0": -2, "1": 4}}'}, {"endingOffsets": '{"a": {"0": -1, "1": 4}}'}),
        ({"startingOffsets": '{"a": {"0": 4}}'}, {"endingTimestamp": "3"}),
        ({"startingTimestamp": "5"}, {"endingTimestamp": "5"}),
        ({"startingTimestamp": "5"}, {}),
    ],
)
def test_a_batch_may_be_empty_or_end_where_only_the_log_knows(
    start: dict[str, str], end: dict[str, str]
) -> None:
    read_options({"subscribe": "a", **start, **end}, Use.BATCH_READ)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(
        InvalidArgument, match=f"option {name}='latest' is not allowed in a stream read, only in a batch read"
    ):
        read_options({"subscribe": "a", name: "latest"}, Use.STREAM_READ)


def test_contradicting_limits_of_a_stream_are_rejected() -> None:
    with pytest.raises(
        InvalidArgument,
        match="option minOffsetsPerTrigger is 10: it must not be above maxOffsetsPerTrigger, 5",
    ):
        read_options(
            {"subscribe": "a", "maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "10"}, Use.STREAM_READ
        )
    with pytest.raises(InvalidArgument, match="option maxTriggerDelay is 'long': allowed is a duration like"):
        read_options({"subscribe": "a", "maxTriggerDelay": "long"}, Use.STREAM_READ)


def test_a_batch_warns_of_the_limits_of_a_stream() -> None:
    with pytest.warns(UserWarning, match="option maxOffsetsPerTrigger has no effect in a batch read"):
        read = read_options({"subscribe": "a", "maxOffsetsPerTrigger": "5"}, Use.BATCH_READ)
    assert read.max_offsets_per_trigger is None


def test_options_without_effect_give_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"option kafka.group.id has no effect: .*checkpoint"):
        read_options({"subscribe": "a", "kafka.group.id": "g"}, Use.STREAM_READ)
    with pytest.warns(
        UserWarning, match=r"option kafka.acks has no effect: every confirmed write is durable"
    ):
        write_options({"topic": "a", "kafka.acks": "all"}, Use.STREAM_WRITE)


@pytest.mark.parametrize(
    "given",
    [
        {"kafka.session.timeout.ms": "30000"},
        {"kafka.isolation.level": "read_committed"},
        {"kafka.security.protocol": "PLAINTEXT"},
    ],
)
def test_options_of_kafkas_clients_that_cannot_matter_give_a_warning(given: dict[str, str]) -> None:
    with pytest.warns(UserWarning, match=f"option {next(iter(given))} has no effect"):
        read_options({"subscribe": "a", **given}, Use.STREAM_READ)


def test_a_protocol_that_would_matter_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"unknown option kafka.security.protocol .*pixy.tls"):
        read_options({"subscribe": "a", "kafka.security.protocol": "SASL_SSL"}, Use.STREAM_READ)


@pytest.mark.parametrize("use", READS)
def test_a_topic_may_be_named_as_a_whole(use: Use) -> None:
    start = read_options(
        {"subscribe": "a,b", "startingOffsets": '{"a": "Earliest", "b": {"0": 7}}'}, use
    ).start
    partitions = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)]
    assert start.by_each(partitions).by_partition == dict(zip(partitions, (-2, -2, 7), strict=True))
    with pytest.raises(InvalidArgument, match="option startingOffsets names topic 'a', which is not read"):
        start.by_each(partitions[2:])


def test_a_word_that_is_not_allowed_for_all_is_not_allowed_for_a_topic() -> None:
    with pytest.raises(InvalidArgument, match="-1, latest, is not allowed there"):
        read_options({"subscribe": "a", "startingOffsets": '{"a": "latest"}'}, Use.BATCH_READ)
    with pytest.raises(InvalidArgument, match="-2, earliest, is not allowed there"):
        read_options({"subscribe": "a", "endingOffsets": '{"a": "earliest"}'}, Use.BATCH_READ)


@pytest.mark.parametrize("use", WRITES)
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topic": "a b"}, "option topic is 'a b': allowed is 1 to 249 of the characters"),
        ({"subscribe": "a"}, "option subscribe='a' is not allowed in a .* write"),
        (
            {"kafka.compression.type": "brotli"},
            "option kafka.compression.type is 'brotli': allowed is none, gzip",
        ),
        ({"maxBatchBytes": "1MB"}, "option maxBatchBytes is '1MB'"),
        ({"kafka.key.serializer": "x"}, "keys are string or binary columns"),
    ],
)
def test_a_writer_rejects_what_it_cannot_honour(given: dict[str, str], message: str, use: Use) -> None:
    with pytest.raises(InvalidArgument, match=message):
        write_options(given, use)


@pytest.mark.parametrize("use", WRITES)
def test_a_sink_has_an_id_and_a_query_to_take_it_over_from(use: Use) -> None:
    written = write_options({"topic": "t", "sinkId": "s", "sinkReset": "q-1"}, use)
    assert (written.sink_id, written.replaces_query_id) == ("s", "q-1")
    assert not write_options({"topic": "t", "sinkId": "s", "sinkReset": "false"}, use).replaces_query_id
    with pytest.raises(InvalidArgument, match="option sinkId is 'a/b'"):
        write_options({"topic": "t", "sinkId": "a/b"}, use)


@pytest.mark.parametrize("value", ["true", "TRUE", "a/b"])
def test_a_takeover_must_name_the_query_of_the_sink(value: str) -> None:
    with pytest.raises(
        InvalidArgument,
        match=f"option sinkReset is '{value}': allowed is the id of the query that is replaced",
    ):
        write_options({"topic": "t", "sinkId": "s", "sinkReset": value}, Use.STREAM_WRITE)


def test_a_batch_write_may_name_its_query_and_batch() -> None:
    written = write_options({"sinkId": "s", "queryId": "q", "batchId": "0"}, Use.BATCH_WRITE)
    assert (written.query_id, written.batch_id) == ("q", 0)
    unsaid = write_options({"sinkId": "s"}, Use.BATCH_WRITE)
    assert (unsaid.query_id, unsaid.batch_id) == (None, None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"queryId": "q", "batchId": "1"}, "option queryId='q' needs the option sinkId"),
        ({"sinkId": "s", "batchId": "1"}, "options queryId and batchId go together"),
        ({"sinkId": "s", "queryId": "q"}, "options queryId and batchId go together"),
        (
            {"sinkId": "s", "queryId": "q", "batchId": "-1"},
            "option batchId is '-1': allowed is a whole number from 0 on",
        ),
        ({"sinkId": "s", "queryId": "a/b", "batchId": "1"}, "option queryId is 'a/b'"),
    ],
)
def test_an_incomplete_name_of_a_batch_is_rejected(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        write_options(given, Use.BATCH_WRITE)


def test_spark_names_the_batch_of_a_stream() -> None:
    with pytest.raises(InvalidArgument, match="is not allowed in a stream write, only in a batch write"):
        write_options({"sinkId": "s", "queryId": "q", "batchId": "1"}, Use.STREAM_WRITE)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({}, (30, 120)),
        ({"pixy.timeoutMs": "1000"}, (1, 120)),
        ({"pixy.timeoutMs": "600000"}, (600, 600)),
        ({"pixy.timeoutMs": "5000", "pixy.publishTimeoutMs": "1000"}, (5, 1)),
    ],
)
def test_a_publication_is_retried_longer_than_other_calls(
    given: dict[str, str], seconds: tuple[float, float]
) -> None:
    connection = write_options(given, Use.STREAM_WRITE).connection
    assert (connection.timeout_seconds, connection.publish_timeout_seconds) == seconds


SECRETS = [
    "kafka.sasl.jaas.config",
    "kafka.ssl.keystore.password",
    "kafka.ssl.key.password",
    "kafka.ssl.truststore.PASSWORD",
    "pixy.token",
    "kafka.sasl.oauthbearer.client.secret",
    "kafka.key.deserializer",
    "kafka.interceptor.classes",
    "pixy.tls.keyPath",
    "anything.else",
    "subscribePatern",
]


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("use", list(Use))
def test_no_error_shows_the_value_of_an_option_that_may_be_a_secret(name: str, use: Use) -> None:
    reads = use in (Use.BATCH_READ, Use.STREAM_READ)
    options = {"subscribe" if reads else "topic": "t", name: "hunter2", "pixy.tls": "false"}
    parse: Any = read_options if reads else write_options
    with pytest.raises(InvalidArgument, match=name) as raised:
        parse(options, use)
    assert "hunter2" not in str(raised.value)
