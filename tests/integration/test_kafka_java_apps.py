"""Programs in Java that use Kafka, at three nodes: Kafka's verifiable clients while nodes and
members are killed, Kafka Connect, and Kafka Streams.
"""

import json
import re
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from tests.fakes.waiting import until_blocking
from tests.integration.clusters import Cluster
from tests.integration.daemon import proxy_config
from tests.integration.java_program import JavaProgram, write_properties
from tests.integration.kafka_tools import kafka_apps

pytestmark = [pytest.mark.process, pytest.mark.long]

TOOLS = "org.apache.kafka.tools"
CONNECT = "org.apache.kafka.connect"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    proxy = proxy_config(storage={"group_initial_rebalance_delay": "0.1s"})
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(folder, config={"kafka_addr": "127.0.0.1:0", **proxy}) as cluster:
        cluster.start()
        for node in cluster.nodes:
            node.config["kafka_addr"] = node.addresses["kafka"]  # also after a restart
        yield cluster


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def addresses(cluster: Cluster) -> str:
    return ",".join(node.addresses["kafka"] for node in cluster.nodes)


def make_topic(cluster: Cluster, name: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": addresses(cluster)})
    admin.create_topics([NewTopic(name, partitions)])[name].result(60)


def produce(cluster: Cluster, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": addresses(cluster), "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(60) == 0


def option(cluster: Cluster, topic: str, name: str) -> str:
    admin = AdminClient({"bootstrap.servers": addresses(cluster)})
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    (asked,) = admin.describe_configs([resource]).values()
    return str(asked.result(60)[name].value)


class Reader:
    """Reads a topic from its beginning.

    Attributes:
        found: values by partition and offset.
        latest: the last value of each key.
    """

    def __init__(self, cluster: Cluster, topic: str, partitions: int) -> None:
        options = {"bootstrap.servers": addresses(cluster), "group.id": "unused", "enable.auto.commit": False}
        self._consumer = Consumer(options)
        self._consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in range(partitions)])
        self.found: dict[tuple[int, int], bytes | None] = {}
        self.latest: dict[bytes | None, bytes | None] = {}

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def read(self) -> bool:
        """Take the next records; True for use in conditions."""
        for message in self._consumer.consume(1000, 0.05):
            if message.error() is None:
                self.found[message.partition(), message.offset()] = message.value()
                self.latest[message.key()] = message.value()
        return True


# --- verifiable clients ---------------------------------------------------------------------------

PARTITIONS, PER_SECOND = 6, 500


class VerifiableConsumer(JavaProgram):
    """A member of a group, which commits what it has read before it reads on."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        options = ("--topic", "verified", "--group-id", "verifiers", "--session-timeout", "6000")
        where = ("--bootstrap-server", addresses(cluster), "--reset-policy", "earliest")
        super().__init__(folder, [f"{TOOLS}.VerifiableConsumer", *where, *options])

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines()]

    def count(self) -> int:
        return sum(each["count"] for each in self.events() if each["name"] == "records_consumed")

    def consumed(self) -> tuple[Counter[tuple[int, int]], Counter[tuple[int, int]]]:
        """The number of reads of each offset; the same of those that it has committed then."""
        read, committed, open_ = Counter[tuple[int, int]](), Counter[tuple[int, int]](), []
        for event in self.events():
            if event["name"] == "records_consumed":
                for part in event["partitions"]:
                    offsets = range(part["minOffset"], part["maxOffset"] + 1)
                    open_ += [(part["partition"], offset) for offset in offsets]
                read.update(open_)
            elif event["name"] == "offsets_committed":
                if event["success"]:
                    committed.update(open_)
                open_ = []
        return read, committed


def committed(stub: KafkaPixyStub) -> int:
    """Sum of the offsets that the group has committed."""
    answer = stub.GetOffsets(pb.GetOffsetsRq(topic="verified", group="verifiers"), timeout=60)
    return sum(max(each.offset, 0) for each in answer.offsets)


def test_verifiable_clients_while_nodes_and_members_are_killed(
    cluster: Cluster, stack: ExitStack, tmp_path: Path
) -> None:
    make_topic(cluster, "verified", PARTITIONS)
    options = {
        "enable.idempotence": "true",
        "retries": 2**31 - 1,  # the tool's own is 0
        "request.timeout.ms": 5000,
        "partitioner.class": "org.apache.kafka.clients.producer.RoundRobinPartitioner",
    }
    producer = stack.enter_context(
        JavaProgram(
            tmp_path / "producer",
            [
                f"{TOOLS}.VerifiableProducer",
                *("--bootstrap-server", addresses(cluster), "--topic", "verified", "--acks", "-1"),
                *("--throughput", str(PER_SECOND)),
                *("--command-config", write_properties(tmp_path / "producer.properties", options)),
            ],
        )
    )
    members = [stack.enter_context(VerifiableConsumer(cluster, tmp_path / f"member-{at}")) for at in range(2)]

    def shown() -> str:
        return "\n".join(each.log() for each in (producer, *members))

    def until_read(*readers: VerifiableConsumer) -> None:
        before = [each.count() for each in readers]
        until_blocking(
            lambda: all(each.count() > at for each, at in zip(readers, before, strict=True)), shown
        )

    until_read(*members)
    lost = cluster.leader("verified-0")
    lost.kill()
    until_read(*members)
    members.append(stack.enter_context(VerifiableConsumer(cluster, tmp_path / "member-2")))
    until_read(members[2])
    members[0].kill()
    lost.start()
    next_lost = next(node for node in cluster.nodes if node is not lost)
    next_lost.kill()
    until_read(*members[1:])
    next_lost.start()
    producer.stop()

    sent: dict[tuple[int, int], str] = {}
    for event in map(json.loads, producer.lines()):
        assert event["name"] != "producer_send_error", event
        if event["name"] == "producer_send_success":
            sent[event["partition"], event["offset"]] = event["value"]
    assert sorted(map(int, sent.values())) == [*range(len(sent))]
    with Reader(cluster, "verified", PARTITIONS) as reader:
        until_blocking(lambda: reader.read() and len(reader.found) >= len(sent))
        assert reader.found == {where: value.encode() for where, value in sent.items()}

    stub = cluster.running[0].stub()  # one connection: each stub has its own
    until_blocking(lambda: committed(stub) == len(sent), shown)
    for each in members[1:]:
        each.stop()
    read, kept = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for each in members:
        more, of_these = each.consumed()
        read.update(more)
        kept.update(of_these)
    assert read.keys() == sent.keys()
    assert {*kept.values()} == {1}, "what a member has committed comes to no other"
    killed, _ = members[0].consumed()
    assert sent.keys() - kept.keys() <= killed.keys(), "it was killed before it could tell"


# --- Connect --------------------------------------------------------------------------------------

TELLS_ITS_ADDRESS = f"-Dorg.slf4j.simpleLogger.log.{CONNECT}.runtime.rest.RestServer=info"
CONVERTERS = {f"{each}.converter": f"{CONNECT}.storage.StringConverter" for each in ("key", "value")}


def connector(kind: str, topic: str, file: Path) -> dict[str, str]:
    """A connector from a file to a topic, or from a topic to a file."""
    topics = {"topic": topic} if kind == "Source" else {"topics": topic}
    return {
        "connector.class": f"{CONNECT}.file.FileStream{kind}Connector",
        "tasks.max": "1",
        "file": str(file),
        **topics,
    }


def worker(cluster: Cluster, **options: object) -> dict[str, object]:
    """Options of any worker of Connect."""
    return {
        "bootstrap.servers": addresses(cluster),
        "listeners": "HTTP://127.0.0.1:0",
        "plugin.discovery": "service_load",  # a scan of all classes takes longer than the test
        "offset.flush.interval.ms": 500,
        **CONVERTERS,
        **{name.replace("_", "."): value for name, value in options.items()},
    }


def is_written(file: Path, lines: list[str]) -> Callable[[], bool]:
    return lambda: file.exists() and file.read_text() == "".join(f"{line}\n" for line in lines)


def append(file: Path, lines: list[str]) -> None:
    with file.open("a") as out:
        out.writelines(f"{line}\n" for line in lines)


def test_connect_copies_a_file_through_a_topic(cluster: Cluster, stack: ExitStack, tmp_path: Path) -> None:
    source, sink = tmp_path / "in", tmp_path / "out"
    lines = [f"line {number}" for number in range(500)]
    append(source, lines)
    options = write_properties(
        tmp_path / "worker", worker(cluster, offset_storage_file_filename=tmp_path / "offsets")
    )
    connectors = [
        write_properties(tmp_path / kind, {"name": kind, **connector(kind, "copied", file)})
        for kind, file in (("Source", source), ("Sink", sink))
    ]
    command = [f"{CONNECT}.cli.ConnectStandalone", options, *connectors]
    program = stack.enter_context(JavaProgram(tmp_path / "connect", command, [kafka_apps()]))
    until_blocking(is_written(sink, lines), program.log)
    more = [f"more {number}" for number in range(500)]
    append(source, more)
    until_blocking(is_written(sink, lines + more), program.log)
    program.stop()


class ConnectWorker(JavaProgram):
    """A worker of a Connect cluster, whose connectors, offsets and states are in topics."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        topics = {f"{each}.storage.topic": f"connect-{each}" for each in ("config", "offset", "status")}
        partitions = {"offset.storage.partitions": 2, "status.storage.partitions": 2}
        options = worker(cluster, group_id="connect") | topics | partitions
        path = write_properties(folder / "worker", options)
        command = [f"{CONNECT}.cli.ConnectDistributed", path]
        super().__init__(folder, command, [kafka_apps()], [TELLS_ITS_ADDRESS])
        until_blocking(lambda: "server is started and ready" in self.errors(), self.log)
        found = re.search(r"REST server listening at (\S+?)/?,", self.errors())
        assert found is not None, self.log()
        self._address = found[1]

    def ask(self, path: str, body: object = None) -> Any:
        """The answer of its REST API, None if it has no good one yet; POST with a body."""
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self._address}/{path}", content, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=90) as answer:
                return json.load(answer)
        except urllib.error.HTTPError:
            return None

    def add(self, name: str, config: dict[str, str]) -> None:
        """Add a connector."""
        body = {"name": name, "config": config}
        until_blocking(lambda: self.ask("connectors", body) or self.ask(f"connectors/{name}"), self.log)

    def runs(self, name: str) -> bool:
        """True when a connector and its task run."""
        status = self.ask(f"connectors/{name}/status")
        parts = [] if status is None else [status["connector"], *status["tasks"]]
        return [each["state"] for each in parts] == ["RUNNING"] * 2


def test_a_connect_cluster_keeps_its_state_in_topics(
    cluster: Cluster, stack: ExitStack, tmp_path: Path
) -> None:
    source, sink = tmp_path / "in", tmp_path / "out"
    lines = [f"line {number}" for number in range(500)]
    append(source, lines)
    first = stack.enter_context(ConnectWorker(cluster, tmp_path / "first"))
    for kind, file in (("Source", source), ("Sink", sink)):
        first.add(kind, connector(kind, "moved", file))
    until_blocking(is_written(sink, lines), first.log)
    for topic in ("config", "offset", "status"):
        assert option(cluster, f"connect-{topic}", "cleanup.policy") == "compact"
    first.stop()
    more = [f"more {number}" for number in range(500)]
    append(source, more)
    second = stack.enter_context(ConnectWorker(cluster, tmp_path / "second"))
    until_blocking(is_written(sink, lines + more), second.log)
    assert sorted(second.ask("connectors")) == ["Sink", "Source"]
    until_blocking(lambda: second.runs("Sink") and second.runs("Source"), second.log)
    second.stop()


# --- Streams --------------------------------------------------------------------------------------

INPUT, OUTPUT = "streams-plaintext-input", "streams-wordcount-output"
CHANGES = "streams-wordcount-KSTREAM-AGGREGATE-STATE-STORE-0000000003-changelog"


class WordCount(JavaProgram):
    """Kafka's own example. It counts at least once, in a store with a topic of its changes."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        # A worker that ends does not leave its group.
        times = {"commit.interval.ms": 100, "session.timeout.ms": 6000}
        options = {"bootstrap.servers": addresses(cluster), "state.dir": folder, **times}
        path = write_properties(folder / "options", options)
        demo = "org.apache.kafka.streams.examples.wordcount.WordCountDemo"
        super().__init__(folder, [demo, path], [kafka_apps()])


def test_streams_counts_words_and_restores_its_store(
    cluster: Cluster, stack: ExitStack, tmp_path: Path
) -> None:
    for topic in (INPUT, OUTPUT):
        make_topic(cluster, topic, 2)
    reader = stack.enter_context(Reader(cluster, OUTPUT, 2))

    def until_counted(program: JavaProgram, **counts: int) -> None:
        wanted = {word.encode(): number.to_bytes(8, "big") for word, number in counts.items()}
        until_blocking(
            lambda: reader.read() and reader.latest == wanted, lambda: f"{reader.latest}\n{program.log()}"
        )

    produce(cluster, INPUT, *["all streams lead to Kafka"] * 100)
    first = stack.enter_context(WordCount(cluster, tmp_path / "first"))
    until_counted(first, all=100, streams=100, lead=100, to=100, kafka=100)
    first.stop()
    produce(cluster, INPUT, *["to Kafka"] * 50)
    second = stack.enter_context(WordCount(cluster, tmp_path / "second"))
    until_counted(second, all=100, streams=100, lead=100, to=150, kafka=150)
    second.stop()
    assert option(cluster, CHANGES, "cleanup.policy") == "compact"
    assert option(cluster, CHANGES.replace("changelog", "repartition"), "retention.ms") == "-1"
