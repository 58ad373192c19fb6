"""Processor time and memory of three nodes at rest: with partitions, with thousands of topics, and
with thousands of consumer groups that wait in long polls.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import grpc

from bench.kit.figures import Figure
from bench.kit.processes import Server
from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto import pixy_topics_pb2 as topics_pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from pixy.proto.pixy_topics_pb2_grpc import TopicsStub
from tests.backend.idle_groups import bytes_of_idle_group
from tests.integration.clusters import Cluster
from tests.integration.daemon import proxy_config

_TOPIC = "bench"
_PARTITIONS = 4
_REST_PARTITIONS = 100
_PERCENT_WANTED = 2.0
_PERCENT_PER_1000_WANTED = 2.0
_KB_PER_GROUP_WANTED = 20.0
_REST_S = 30.0
_SETTLE_S = 40.0
"""Partitions come to rest within 10 s. A full garbage collection comes within 30 s."""
_GROUPS_AT_ONCE = 50
_GROUPS_TRACED = 100
_PAUSE_S = 0.5
_LONGEST_S = 3600.0


@contextmanager
def _cluster(**sections: Any) -> Iterator[Cluster]:
    with (
        tempfile.TemporaryDirectory(prefix="pixy-bench-") as folder,
        Cluster(Path(folder), config={**proxy_config(**sections), "shutdown_timeout": "1s"}) as cluster,
    ):
        cluster.start()
        yield cluster


def _servers(cluster: Cluster) -> list[Server]:
    return [Server(node.address, node.process.pid, 0.0) for node in cluster.nodes]


def used_percent(servers: Sequence[Server], settle_s: float = _SETTLE_S) -> float:
    """Processor time of the busiest node without any calls, once it had time to come to rest."""
    time.sleep(settle_s)
    before = [server.cpu_seconds() for server in servers]
    time.sleep(_REST_S)
    return max(
        100 * (server.cpu_seconds() - used) / _REST_S for server, used in zip(servers, before, strict=True)
    )


def partitions_figure() -> Figure:
    """Processor time with few partitions."""
    with _cluster() as cluster:
        cluster.create_topic("rest", _REST_PARTITIONS)
        used = used_percent(_servers(cluster))
    return Figure(
        f"processor of a node at rest with {_REST_PARTITIONS} partitions, the busiest",
        used,
        "% of a core",
        target=f"<= {_PERCENT_WANTED:g} %",
        met=used <= _PERCENT_WANTED,
    )


def topics_figure(count: int) -> Figure:
    """Processor time with many idle topics, per thousand of them."""
    with _cluster(limits={"max_topics": count, "max_partitions": _PARTITIONS * count}) as cluster:
        servers = _servers(cluster)
        with grpc.insecure_channel(cluster[1].address) as channel:
            stub = TopicsStub(channel)
            for number in range(count):
                request = topics_pb.CreateTopicRequest(topic=f"idle-{number}", partitions=_PARTITIONS)
                stub.CreateTopic(request, timeout=_LONGEST_S)
        cluster.wait_in_sync()
        used = 1000 * used_percent(servers) / count
    return Figure(
        f"processor of a node for 1000 of {count} idle topics of {_PARTITIONS} partitions, the busiest",
        used,
        "% of a core",
        target=f"<= {_PERCENT_PER_1000_WANTED:g} %",
        met=used <= _PERCENT_PER_1000_WANTED,
    )


def group_memory_figures() -> list[Figure]:
    """Python's memory of a group of one partition and of four, without the calls and connections of
    clients.
    """
    figures = []
    states = (("subscribed lately", 3.0), ("waiting", 1800.0))
    for partitions, (what, polls_s) in product((1, _PARTITIONS), states):
        with tempfile.TemporaryDirectory(prefix="pixy-bench-") as folder:
            each_kb = bytes_of_idle_group(Path(folder), polls_s, _GROUPS_TRACED, partitions) / 1000
        figures.append(
            Figure(
                f"memory of a node for an idle group, partitions: {partitions}, {what}",
                each_kb,
                "KB",
                target=f"<= {_KB_PER_GROUP_WANTED:g} KB",
                met=each_kb <= _KB_PER_GROUP_WANTED,
            )
        )
    return figures


def groups_figures(count: int) -> list[Figure]:
    """Memory and processor time with many groups, each with a consumer at every node that waits."""
    consumer = {"long_polling_timeout": "1h", "subscription_timeout": "2h"}
    with _cluster(consumer=consumer) as cluster, ExitStack() as stack:
        cluster.create_topic(_TOPIC, _PARTITIONS)
        servers = _servers(cluster)
        stubs = [
            KafkaPixyStub(stack.enter_context(grpc.insecure_channel(node.address))) for node in cluster.nodes
        ]
        time.sleep(_SETTLE_S)
        before = [server.rss_bytes() for server in servers]
        calls = []
        for number in range(count):
            request = pb.ConsNAckRq(topic=_TOPIC, group=f"resting-{number}", no_ack=True)
            calls += [stub.ConsumeNAck.future(request, timeout=_LONGEST_S) for stub in stubs]
            if not (number + 1) % _GROUPS_AT_ONCE:
                time.sleep(_PAUSE_S)
        time.sleep(_SETTLE_S)
        assert not any(call.done() for call in calls)
        grown = [server.rss_bytes() - rss for server, rss in zip(servers, before, strict=True)]
        each_kb = max(grown) / count / 1000
        used = used_percent(servers, 0.0)
        for call in calls:
            call.cancel()
    return [
        Figure(
            f"memory of a node for each of {count} idle groups, the largest",
            each_kb,
            "KB",
            target=f"<= {_KB_PER_GROUP_WANTED:g} KB",
            met=each_kb <= _KB_PER_GROUP_WANTED,
        ),
        Figure(f"processor of a node with {count} idle groups, the busiest", used, "% of a core"),
    ]
