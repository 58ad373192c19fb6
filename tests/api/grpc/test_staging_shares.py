"""The shares of a client address of `staging.max_bytes` and of the sinks of a cluster: over a real
gRPC server, on an embedded log; and on three nodes, which count together.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
from structlog.testing import capture_logs

from pixy.backend import EmbeddedBackend, Published, TopicPartition
from pixy.clock import SystemClock
from pixy.cluster.publications import staging_router
from pixy.cluster.state import publications
from pixy.config import ProxyConfig, StagingConfig
from pixy.errors import ResourceExhausted
from pixy.proto import pixy_log_pb2 as pb
from pixy.proto.pixy_log_pb2_grpc import LogStub
from pixy.proxy import PartitionBatches
from pixy.proxy.log import Log
from pixy.proxy.staging import Staging
from pixy.proxy.topics import TopicCreator
from tests.api.grpc.test_staging import batches_of, fails, stage_of
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster
from tests.fakes.batches import batch_of
from tests.fakes.node import make_embedded
from tests.fakes.server import CONFIG, serve_backend
from tests.fakes.waiting import until

if TYPE_CHECKING:
    # For type checkers only.
    from pixy.backend import Backend
    from pixy.proto.pixy_log_pb2_grpc import LogAsyncStub

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
VALUE = bytes(1000)
SIZE = len(batch_of(VALUE))
STAGING = StagingConfig(max_bytes=6 * SIZE)
PROXY = replace(ProxyConfig(), staging=STAGING)
THEIR_SHARE = f"have staged {3 * SIZE} bytes, and {3 * SIZE} are their share"


@asynccontextmanager
async def clients(backend: Backend, directory: Path) -> AsyncIterator[tuple[LogAsyncStub, LogAsyncStub]]:
    """Clients of two addresses."""
    config = replace(CONFIG, proxies={"first": PROXY}, unix_addr=str(directory / "s"))
    async with (
        serve_backend(backend, config) as served,
        grpc.aio.insecure_channel(served.address) as first,
        grpc.aio.insecure_channel(f"unix:{directory / 's'}") as second,
    ):
        yield LogStub(first), LogStub(second)
        assert not served.faults


async def share_is_kept(first: LogAsyncStub, second: LogAsyncStub, topic: str, sink: str) -> None:
    def stage(number: int) -> pb.StageRequest:
        return stage_of(batches_of(VALUE, topic=topic), stage=f"{number}", sink=sink)

    with capture_logs() as logs:
        for number in range(3):
            await first.Stage(stage(number))
        await fails(first.Stage(stage(3)), EXHAUSTED, THEIR_SHARE)
    (line,) = [each for each in logs if each["event"] == "a limit is reached"]
    assert (line["limit"], line["clients"]) == (
        "client_share_percent of staging.max_bytes",
        "127.0.0.1 1",
    )
    # What is there may be sent again, and other addresses have their share.
    await first.Stage(stage(2))
    for number in range(4, 7):
        await second.Stage(stage(number))
    # A stage that is gone makes room, at the request of whomever.
    await second.Discard(pb.DiscardRequest(sink_id=sink, stage_ids=["0"]))
    await first.Stage(stage(7))
    await fails(first.Stage(stage(8)), EXHAUSTED, THEIR_SHARE)


def embedded(directory: Path) -> EmbeddedBackend:
    return make_embedded(directory / "data", staging=STAGING)


async def test_an_address_stages_no_more_than_its_share(tmp_path: Path) -> None:
    backend = embedded(tmp_path)
    async with clients(backend, tmp_path) as (first, second):
        await backend.create_topic("t", 2)
        await share_is_kept(first, second, "t", "sink")


async def test_stages_that_a_restart_finds_are_nobodys(tmp_path: Path) -> None:
    for begin in (0, 3):
        backend = embedded(tmp_path)
        async with clients(backend, tmp_path) as (first, _):
            if not begin:
                await backend.create_topic("t", 1)
            for number in range(begin, begin + 3):
                await first.Stage(stage_of(batches_of(VALUE), stage=f"{number}"))
            await fails(first.Stage(stage_of(batches_of(VALUE), stage="more")), EXHAUSTED, THEIR_SHARE)


@pytest.fixture
def few_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four sinks are remembered."""
    for module in (publications, staging_router):
        monkeypatch.setattr(module, "SINKS_MAX", 4)


def publication(sink: str, epoch: int = 0) -> pb.PublishRequest:
    return pb.PublishRequest(sink_id=sink, epoch=epoch, query_id="q")


@pytest.mark.slow
@pytest.mark.usefixtures("few_sinks")
async def test_an_address_begins_no_more_sinks_than_its_share_also_after_a_restart(tmp_path: Path) -> None:
    """Publications without stages cost their sender eleven bytes each."""
    for start in range(2):
        async with clients(embedded(tmp_path), tmp_path) as (first, second):
            if not start:
                calls = [first.Publish(publication(f"{number}")) for number in range(6)]
                outcomes = [await call.code() for call in calls]
                assert sorted(outcome.name for outcome in outcomes) == ["OK"] * 2 + [EXHAUSTED.name] * 4
                taken = [f"{number}" for number in range(6) if outcomes[number] is grpc.StatusCode.OK]
            await fails(first.Publish(publication("more")), EXHAUSTED, "published with 2 sinks")
            # Those that are there go on, and other addresses have their share.
            for sink in taken:
                assert (await first.Publish(publication(sink, epoch=start + 1))).published
                assert not (await first.Publish(publication(sink, epoch=start + 1))).published
            assert (await second.Publish(publication(f"second{start}"))).published


# --- three nodes ----------------------------------------------------------------------------------


def staging_of(node: ClusterNode) -> Staging:
    faults: list[BaseException] = []
    creator = TopicCreator(node.backend, PROXY, faults.append)
    return Staging(node.backend, PROXY, Log(node.backend, PROXY, creator, SystemClock()), 50)


async def stage_at(node: ClusterNode, number: int, peer: str) -> int:
    batches = [PartitionBatches(TopicPartition("topic", 0), batch_of(VALUE))]
    return await staging_of(node).stage("sink", f"{number}", 0, batches, [], None, peer)


@pytest.mark.slow
def test_the_nodes_of_a_cluster_count_together_also_after_a_restart(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        for number in (1, 2, 3):
            await stage_at(cluster[number], number, f"10.0.0.1:{number}")

        def known() -> bool:
            tables = [node.node.state_groups.sinks.table for node in cluster.nodes.values()]
            return all(table.bytes_of["10.0.0.1"] == 3 * SIZE for table in tables)

        await until(known)
        for _ in range(2):
            for node in cluster.nodes.values():
                with pytest.raises(ResourceExhausted, match=THEIR_SHARE):
                    await stage_at(node, 4, "10.0.0.1:9")
            await stage_at(cluster[2], 2, "10.0.0.1:9")
            await cluster.stop()
            await cluster.start()
            await until(known)
        await stage_at(cluster[1], 5, "10.0.0.2:1")
        await staging_of(cluster[3]).discard("sink", ["1"])
        await stage_at(cluster[3], 6, "10.0.0.1:9")

    run_cluster(scenario, tmp_path, staging=STAGING)


@pytest.mark.slow
@pytest.mark.usefixtures("few_sinks")
def test_the_nodes_of_a_cluster_count_sinks_together(tmp_path: Path) -> None:
    async def publish_at(node: ClusterNode, sink: str, peer: str) -> Published:
        return await staging_of(node).publish(sink, 0, "q", [], reset=False, replaces="", peer=peer)

    async def scenario(cluster: NodeCluster) -> None:
        for number in (1, 2):
            await publish_at(cluster[number], f"{number}", f"10.0.0.1:{number}")

        def known() -> bool:
            states = [node.node.state_groups.sinks for node in cluster.nodes.values()]
            return all(state.sinks_of["10.0.0.1"] == 2 for state in states)

        await until(known)
        for node in cluster.nodes.values():
            with pytest.raises(ResourceExhausted, match="published with 2 sinks"):
                await publish_at(node, "more", "10.0.0.1:9")
        assert (await publish_at(cluster[3], "other", "10.0.0.2:1")).published

    run_cluster(scenario, tmp_path, staging=STAGING)
