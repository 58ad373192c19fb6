"""The management listener of a whole daemon."""

import asyncio
import json
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from pixy.cluster.log import RecoveredNode, read_directory
from pixy.config import load_config
from pixy.daemon import Daemon
from pixy.errors import StartError
from pixy.kafka_messages.generated.metadata import MetadataRequest
from pixy.metrics.families import FAMILIES
from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto import pixy_log_pb2 as log_pb2
from pixy.proto import pixy_topics_pb2 as topics_pb
from pixy.records import crc32c
from tests.fakes.batches import batch_of
from tests.fakes.certificates import make_certificate
from tests.fakes.grpc_client import open_client as open_grpc
from tests.fakes.kafka_client import kafka_client
from tests.fakes.waiting import until
from tests.fakes.web import WebClient, open_client

pytestmark = pytest.mark.slow

parse: Any = text_string_to_metric_families
Found = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@asynccontextmanager
async def running(folder: Path, **flags: Any) -> AsyncIterator[tuple[Daemon, dict[str, str]]]:
    """A daemon that is ready, with the addresses that it listens on."""
    given = {
        "grpc_addr": "127.0.0.1:0",
        "tcp_addr": "",
        "kafka_addr": "",
        "management_addr": "127.0.0.1:0",
        "shutdown_timeout": "1s",
    }
    daemon = Daemon(load_config(None, {}, {**given, "data_dir": str(folder), **flags}))
    addresses = await daemon.start()
    try:
        assert await daemon.wait_ready()
        yield daemon, dict(addresses)
    finally:
        await daemon._drain_and_stop()


async def scrape(client: WebClient) -> Found:
    """Values by name and labels, as a parser of OpenMetrics reads them."""
    answer = await client.call("GET", "/metrics", None, "Accept: application/openmetrics-text")
    assert answer.status == 200
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(answer.text)
        for sample in family.samples
    }


def value(found: Found, name: str, **labels: str) -> float:
    """The one sample of a name with these labels among its own."""
    (number,) = (
        number
        for (each, own), number in found.items()
        if each == name and labels.items() <= dict(own).items()
    )
    return number


async def test_everything_that_happens_is_counted(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, addresses):
        async with open_grpc(addresses["grpc"]) as grpc, open_client(addresses["management"]) as client:
            for number in range(5):
                produced = pb.ProdRq(topic="orders", message=b"%d" % number, key_value=b"k")
                await grpc.call("/KafkaPixy/Produce", produced.SerializeToString())
            consumed = pb.ConsNAckRq(topic="orders", group="billing", auto_ack=True)
            assert (await grpc.call("/KafkaPixy/ConsumeNAck", consumed.SerializeToString())).status == 0
            await grpc.call("/KafkaPixy/ConsumeNAck", pb.ConsNAckRq().SerializeToString())
            found = await scrape(client)
        of_topic = {"cluster": "default", "topic": "orders"}
        of_group = {**of_topic, "group": "billing"}
        produce = "KafkaPixy/Produce"
        assert value(found, "pixy_rpc_requests_total", method=produce, code="OK") == 5
        assert value(found, "pixy_rpc_duration_seconds_count", method=produce) == 5
        assert value(found, "pixy_rpc_requests_total", code="INVALID_ARGUMENT") == 1
        assert value(found, "pixy_produced_records_total", **of_topic) == 5
        assert value(found, "pixy_produced_bytes_total", **of_topic) == 10
        assert value(found, "pixy_offered_records_total", **of_group) == 1
        assert value(found, "pixy_acks_total", outcome="ack", **of_group) == 1
        assert value(found, "pixy_unacked_records", **of_group) == 0
        assert value(found, "pixy_journal_sync_seconds_count", cluster="default") > 0
        assert value(found, "pixy_raft_commit_seconds_count", cluster="default") > 0
        assert value(found, "pixy_raft_leader_changes_total", cluster="default") > 0
        assert value(found, "pixy_ready", cluster="default") == 1
        assert value(found, "pixy_node_up", cluster="default", node="1") == 1
        assert value(found, "pixy_disk_free_bytes", node="1") > 0
        assert value(found, "kafka_brokers") == 1
        assert value(found, "pixy_build_info") == 1
        assert value(found, "process_resident_memory_bytes") > 1 << 20
        assert (
            sum(each for (name, _), each in found.items() if name == "kafka_topic_partition_current_offset")
            == 5
        )
        names = {name.removesuffix(end) for name, _ in found for end in ("", "_bucket", "_sum", "_count")}
        # There was nothing to say about these.
        silent = {
            "pixy_node_silent_seconds",
            "pixy_moves",
            "pixy_http_requests_total",
            "pixy_http_duration_seconds",
            "pixy_kafka_requests_total",
        }
        of_peers = {name for name in FAMILIES if name.startswith("pixy_peer_")}
        assert FAMILIES.keys() - names == silent | of_peers


async def test_records_of_stages_are_counted_when_they_are_published(tmp_path: Path) -> None:
    batches = batch_of(b"one", b"two")
    part = log_pb2.PartitionBatches(topic="orders", partition=0, batches=batches)
    seal = log_pb2.Seal(pieces=1, crc=crc32c(crc32c(batches).to_bytes(4, "big")))
    staged = log_pb2.StageRequest(sink_id="sink", stage_id="stage", partitions=[part], seal=seal)
    published = log_pb2.PublishRequest(sink_id="sink", epoch=1, query_id="query", stage_ids=["stage"])
    calls = {
        "pixy.topics.v1.Topics/CreateTopic": topics_pb.CreateTopicRequest(topic="orders", partitions=1),
        "pixy.log.v1.Log/Stage": staged,
        "pixy.log.v1.Log/Publish": published,
    }
    async with running(tmp_path) as (_, addresses):
        async with open_grpc(addresses["grpc"]) as grpc, open_client(addresses["management"]) as client:
            for method, request in (*calls.items(), ("pixy.log.v1.Log/Publish", published)):
                assert (await grpc.call(f"/{method}", request.SerializeToString())).status == 0
            found = await scrape(client)
        of_topic = {"cluster": "default", "topic": "orders"}
        assert value(found, "pixy_produced_records_total", **of_topic) == 2
        assert value(found, "pixy_produced_bytes_total", **of_topic) == len(batches)


async def test_requests_of_http_are_counted_by_route_and_status(tmp_path: Path) -> None:
    async with running(tmp_path, tcp_addr="127.0.0.1:0") as (_, addresses):
        async with open_client(addresses["http"]) as http, open_client(addresses["management"]) as client:
            for number in range(3):
                fields = ("Content-Type: text/plain",)
                path = f"/topics/orders-{number}/messages?sync"
                assert (await http.call("POST", path, b"x", *fields)).status == 200
            assert (await http.call("GET", "/topics/orders/messages")).status == 400
            assert (await http.call("GET", "/nowhere")).status == 404
            found = await scrape(client)
        route = "/topics/{topic}/messages"
        assert value(found, "pixy_http_requests_total", route=route, method="POST", code="200") == 3
        assert value(found, "pixy_http_requests_total", route=route, method="GET", code="400") == 1
        assert value(found, "pixy_http_duration_seconds_count", route=route, method="POST") == 3
        assert value(found, "pixy_http_duration_seconds_count", route=route, method="GET") == 0
        assert value(found, "pixy_requests_rejected_total") == 1
        assert sum(number for (name, _), number in found.items() if name == "pixy_http_requests_total") == 4


async def test_requests_of_kafkas_protocol_are_counted_by_api_and_version(tmp_path: Path) -> None:
    async with running(tmp_path, kafka_addr="127.0.0.1:0") as (_, addresses):
        async with kafka_client(addresses["kafka"]) as kafka, open_client(addresses["management"]) as client:
            for version in (1, 4, 4):
                await kafka.call(3, version, MetadataRequest(None))
            found = await scrape(client)
        assert value(found, "pixy_kafka_requests_total", api="Metadata", version="1") == 1
        assert value(found, "pixy_kafka_requests_total", api="Metadata", version="4") == 2


async def test_lag_is_there_without_a_consumer_by_partition_and_summed(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, addresses):
        async with open_grpc(addresses["grpc"]) as grpc, open_client(addresses["management"]) as client:
            created = topics_pb.CreateTopicRequest(topic="orders", partitions=2)
            assert (
                await grpc.call("/pixy.topics.v1.Topics/CreateTopic", created.SerializeToString())
            ).status == 0
            for number in range(20):
                produced = pb.ProdRq(topic="orders", message=b"x", key_value=b"%d" % number)
                await grpc.call("/KafkaPixy/Produce", produced.SerializeToString())
            offsets = [pb.PartitionOffset(partition=0, offset=1), pb.PartitionOffset(partition=1, offset=2)]
            set_to = pb.SetOffsetsRq(topic="orders", group="nobody", offsets=offsets)
            assert (await grpc.call("/KafkaPixy/SetOffsets", set_to.SerializeToString())).status == 0
            found = await scrape(client)
        of_topic = {"cluster": "default", "topic": "orders"}
        for partition, offset in (("0", 1), ("1", 2)):
            end = value(found, "kafka_topic_partition_current_offset", partition=partition, **of_topic)
            labels = {**of_topic, "partition": partition, "consumergroup": "nobody"}
            assert value(found, "kafka_consumergroup_current_offset", **labels) == offset
            assert value(found, "kafka_consumergroup_lag", **labels) == end - offset > 0
        assert value(found, "pixy_group_lag_records", group="nobody", **of_topic) == 17


async def test_topics_and_groups_beyond_the_limits_are_counted_as_other(tmp_path: Path) -> None:
    limits = {"management.max_topics": 2, "management.max_groups": 1}
    async with running(tmp_path, **limits) as (_, addresses):
        async with open_grpc(addresses["grpc"]) as grpc, open_client(addresses["management"]) as client:
            for number in range(4):
                for _ in range(number + 1):
                    produced = pb.ProdRq(topic=f"t{number}", message=b"x")
                    await grpc.call("/KafkaPixy/Produce", produced.SerializeToString())
                asked = pb.ConsNAckRq(topic=f"t{number}", group=f"g{number}", auto_ack=True)
                await grpc.call("/KafkaPixy/ConsumeNAck", asked.SerializeToString())
            found = await scrape(client)
        records = {
            dict(labels)["topic"]: number
            for (name, labels), number in found.items()
            if name == "pixy_produced_records_total"
        }
        assert records == {"t2": 3, "t3": 4, "other": 3}
        groups = {
            dict(labels)["group"]: number
            for (name, labels), number in found.items()
            if name == "pixy_offered_records_total"
        }
        assert sum(groups.values()) == 4
        assert len(groups) == 2
        assert "other" in groups


async def test_the_size_of_logs_is_that_of_their_files(tmp_path: Path) -> None:
    """Of the topic with most records, and of all others together; after a start, too."""
    sizes: dict[str, float] = {}

    def on_disk() -> dict[str, float]:
        files = [(each.parts, each.stat().st_size) for each in tmp_path.rglob("topics/**/*.log")]
        large = sum(size for parts, size in files if any("large" in part for part in parts))
        return {"large": large, "other": sum(size for _, size in files) - large}

    async def are_true(client: WebClient) -> bool:
        found = await scrape(client)
        sizes.update(
            (dict(labels)["topic"], size)
            for (name, labels), size in found.items()
            if name == "pixy_log_bytes"
        )
        return min(sizes.get("large", 0), sizes.get("other", 0)) > 0 and sizes == on_disk()

    limits = {"management.max_topics": 1}
    async with (
        running(tmp_path, **limits) as (_, addresses),
        open_grpc(addresses["grpc"]) as grpc,
        open_client(addresses["management"]) as client,
    ):
        for topic in ("one", "two", *["large"] * 9):
            produced = pb.ProdRq(topic=topic, message=b"x" * 1000)
            await grpc.call("/KafkaPixy/Produce", produced.SerializeToString())
        # They are written later than produced, and gathered once in two seconds.
        await until(partial(are_true, client))
    async with running(tmp_path, **limits) as (_, addresses), open_client(addresses["management"]) as client:
        before = dict(sizes)
        sizes.clear()
        assert await are_true(client)
        assert sizes == before


async def accepts(path: str) -> bool:
    """True if somebody listens at a unix socket."""
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


async def test_health_is_told_while_clusters_recover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()

    def recover_once_asked(*arguments: Any) -> RecoveredNode:
        assert asked.wait(60)
        return read_directory(*arguments)

    monkeypatch.setattr("pixy.cluster.bootstrap.read_directory", recover_once_asked)
    listener = str(tmp_path / "management.sock")
    given = {"grpc_addr": "127.0.0.1:0", "tcp_addr": "", "kafka_addr": "", "management_addr": listener}
    daemon = Daemon(load_config(None, {}, {**given, "data_dir": str(tmp_path), "shutdown_timeout": "1s"}))
    start = asyncio.create_task(daemon.start())
    try:
        await until(partial(accepts, listener))
        async with open_client(f"unix:{listener}") as client:
            assert (await client.call("GET", "/livez")).status == 200
            for path in ("/readyz", "/startupz"):
                answer = await client.call("GET", path)
                reason = json.loads(answer.body)["checks"]["cluster:default"]
                assert (answer.status, reason) == (503, "recovering")
            found = await scrape(client)
            assert value(found, "pixy_ready", cluster="default") == 0
            assert value(found, "pixy_build_info") == 1
            for path in ("tasks", "stacks", "memory"):
                assert (await client.call("GET", f"/debug/{path}")).status == 200
            assert not start.done()
            asked.set()
            await start
            await daemon.wait_ready()
            assert (await client.call("GET", "/startupz")).status == 200
            assert value(await scrape(client), "kafka_brokers") == 1
    finally:
        asked.set()
        await start
        await daemon._drain_and_stop()


async def test_a_start_that_fails_ends_the_listener(tmp_path: Path) -> None:
    listener = str(tmp_path / "management.sock")
    given = {"grpc_addr": "127.0.0.1:0", "tcp_addr": "", "kafka_addr": "", "management_addr": listener}
    async with running(tmp_path):
        daemon = Daemon(load_config(None, {}, {**given, "data_dir": str(tmp_path)}))
        with pytest.raises(StartError, match="in use by another process"):
            await daemon.start()
        assert not await accepts(listener)


async def test_readiness_has_reasons(tmp_path: Path) -> None:
    daemon = Daemon(
        load_config(
            None,
            {},
            {
                "grpc_addr": "127.0.0.1:0",
                "tcp_addr": "",
                "kafka_addr": "",
                "management_addr": "127.0.0.1:0",
                "data_dir": str(tmp_path),
                "shutdown_timeout": "1s",
            },
        )
    )
    addresses = await daemon.start()
    async with open_client(addresses["management"]) as client:
        for path in ("/readyz", "/startupz"):
            answer = await client.call("GET", path)
            assert answer.status == 503
            assert json.loads(answer.body)["checks"]["cluster:default"] != "ok"
        await daemon.wait_ready()
        for path in ("/livez", "/readyz", "/startupz"):
            assert (await client.call("GET", path)).status == 200
        daemon.on_fault(OSError(5, "the disk is gone"))
        for path in ("/livez", "/readyz"):
            answer = await client.call("GET", path)
            assert (answer.status, "the disk is gone" in answer.text) == (503, True)
    await daemon._drain_and_stop()


async def test_a_drain_is_a_reason_not_to_be_ready_and_the_listener_ends_last(tmp_path: Path) -> None:
    async with (
        running(tmp_path, shutdown_timeout="300ms") as (daemon, addresses),
        open_grpc(addresses["grpc"]) as grpc,
        open_client(addresses["management"]) as client,
    ):
        produced = pb.ProdRq(topic="orders", message=b"x")
        await grpc.call("/KafkaPixy/Produce", produced.SerializeToString())
        consumed = pb.ConsNAckRq(topic="orders", group="billing", no_ack=True)
        assert (await grpc.call("/KafkaPixy/ConsumeNAck", consumed.SerializeToString())).status == 0
        draining = asyncio.create_task(daemon._drain_and_stop())
        await asyncio.sleep(0)
        # It waits for the ack of a message that is out.
        answer = await client.call("GET", "/readyz")
        assert (answer.status, json.loads(answer.body)["checks"]["drain"]) == (
            503,
            "the daemon is being stopped",
        )
        for path in ("/livez", "/startupz"):
            assert (await client.call("GET", path)).status == 200
        assert not draining.done()
        await draining


async def test_it_is_served_with_tls_if_that_is_wanted(tmp_path: Path) -> None:
    make_certificate(tmp_path, "one")
    flags = {
        "tls.certificate_path": str(tmp_path / "one.pem"),
        "tls.key_path": str(tmp_path / "one.key"),
        "management.tls": True,
    }
    context = ssl.create_default_context(cafile=str(tmp_path / "one.pem"))
    async with (
        running(tmp_path / "data", **flags) as (_, addresses),
        open_client(addresses["management"], context) as client,
    ):
        assert (await client.call("GET", "/livez")).status == 200


async def test_hosts_are_checked(tmp_path: Path) -> None:
    hosts = {"management.allowed_hosts": "pixy.example"}
    async with running(tmp_path, **hosts) as (_, addresses), open_client(addresses["management"]) as client:
        for host, status in (("pixy.example", 200), ("127.0.0.1:19093", 200), ("evil.example", 421)):
            client.send(f"GET /livez HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert (await client.answer()).status == status


async def test_an_address_that_is_taken_is_an_error_unless_it_is_the_default(tmp_path: Path) -> None:
    async with running(tmp_path / "a") as (_, addresses):
        with pytest.raises(StartError, match="cannot listen"):
            async with running(tmp_path / "b", management_addr=addresses["management"]):
                raise AssertionError
    default = "127.0.0.1:19093"
    async with (
        running(tmp_path / "c", management_addr=default),
        running(tmp_path / "d", management_addr=default) as (_, addresses),
    ):
        assert set(addresses) == {"grpc"}


async def test_there_may_be_none(tmp_path: Path) -> None:
    async with running(tmp_path, management_addr="") as (_, addresses):
        assert set(addresses) == {"grpc"}
