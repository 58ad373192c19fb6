"""kafka-python at a real daemon: producer, consumers of a group, admin client."""

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType

from tests.fakes.waiting import until_blocking
from tests.integration.conftest import MakeDaemon
from tests.integration.daemon import Daemon, proxy_config

pytestmark = [pytest.mark.process, pytest.mark.slow]

TOPIC, GROUP, PARTITIONS = "orders", "workers", 4
VALUES = [b"message %d" % number for number in range(400)]


@pytest.fixture
def daemon(make_daemon: MakeDaemon) -> Iterator[Daemon]:
    proxy = proxy_config(storage={"group_initial_rebalance_delay": "0.1s"})
    with make_daemon({"kafka_addr": "127.0.0.1:0", **proxy}) as daemon:
        yield daemon


def admin_of(daemon: Daemon) -> AbstractContextManager[KafkaAdminClient]:
    return closing(KafkaAdminClient(bootstrap_servers=daemon.addresses["kafka"]))


def produce(daemon: Daemon, codec: str | None = None) -> None:
    """Produce all values idempotently, to all partitions in turn."""
    address = daemon.addresses["kafka"]
    with closing(KafkaProducer(bootstrap_servers=address, compression_type=codec, linger_ms=5)) as producer:
        sent = [
            producer.send(TOPIC, value, key=b"key", headers=[("name", b"value")], partition=at % PARTITIONS)
            for at, value in enumerate(VALUES)
        ]
        producer.flush(60)
        assert [each.get(60).offset for each in sent] == [at // PARTITIONS for at in range(len(sent))]


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_it_produces_and_reads(daemon: Daemon, codec: str | None) -> None:
    produce(daemon, codec)
    address = daemon.addresses["kafka"]
    with closing(
        KafkaConsumer(
            bootstrap_servers=address, group_id=None, auto_offset_reset="earliest", consumer_timeout_ms=60_000
        )
    ) as consumer:
        consumer.assign([TopicPartition(TOPIC, number) for number in range(PARTITIONS)])
        found = [next(consumer) for _ in VALUES]
    assert sorted(each.value for each in found) == sorted(VALUES)
    assert {(each.key, *each.headers) for each in found} == {(b"key", ("name", b"value"))}


def test_its_consumers_share_a_group_and_commit(daemon: Daemon) -> None:
    produce(daemon)
    found: Counter[bytes] = Counter()
    with ExitStack() as stack:
        options = {"bootstrap_servers": daemon.addresses["kafka"], "auto_offset_reset": "earliest"}
        members = [
            stack.enter_context(
                closing(KafkaConsumer(TOPIC, group_id=GROUP, enable_auto_commit=False, **options))
            )
            for _ in range(2)
        ]

        def share() -> bool:
            for member in members:
                for records in member.poll(50).values():
                    found.update(each.value for each in records)
                    end = OffsetAndMetadata(records[-1].offset + 1, "", -1)
                    member.commit({TopicPartition(TOPIC, records[-1].partition): end})
            return len(found) == len(VALUES) and [len(each.assignment()) for each in members] == [2, 2]

        until_blocking(share, lambda: f"{len(found)} {[each.assignment() for each in members]}")
    with admin_of(daemon) as admin:
        share_of_each = len(VALUES) // PARTITIONS
        committed = {each.partition: at.offset for each, at in admin.list_group_offsets(GROUP)[GROUP].items()}
        assert committed == dict.fromkeys(range(PARTITIONS), share_of_each)
        assert [each["group_id"] for each in admin.list_groups()] == [GROUP]
        assert admin.describe_groups([GROUP])[GROUP]["group_state"] == "Empty", "they have left"
        assert admin.delete_groups([GROUP]) == {GROUP: "OK"}
        assert admin.list_groups() == []


def test_its_admin_client_administers_topics(daemon: Daemon) -> None:
    with admin_of(daemon) as admin:
        configs = {"cleanup.policy": "compact", "segment.ms": "60000"}
        admin.create_topics({TOPIC: {"num_partitions": 2, "replication_factor": 1, "configs": configs}})
        admin.create_partitions({TOPIC: 3})
        (topic,) = admin.describe_topics([TOPIC])
        assert [each["leader_id"] for each in topic["partitions"]] == [1, 1, 1]
        resource = ConfigResource(ConfigResourceType.TOPIC, TOPIC)
        shown = admin.describe_configs([resource])["topic"][TOPIC]
        assert {name: shown[name]["value"] for name in configs} == configs
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, TOPIC, {"segment.ms": "70000"})])
        assert admin.describe_configs([resource])["topic"][TOPIC]["segment.ms"]["value"] == "70000"
        (broker,) = admin.describe_log_dirs()
        (directory,) = broker["log_dirs"]
        assert Path(directory["log_dir"]).is_relative_to(daemon.folder)
        assert len(directory["topics"][0]["partitions"]) == 3
        assert 0 < directory["usable_bytes"] < directory["total_bytes"]
        admin.delete_topics([TOPIC])
        assert admin.list_topics() == []
