"""200 000 rows or more are copied in a cluster of three nodes while its nodes and the JVM are
killed: each row arrives, and none twice.

Killed three times each, at different moments of a batch: the node that leads `sinks`, and so the
publication; another node; all nodes; and the JVM, with every task. Tasks begin at any node.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.integration.clusters import Cluster, ClusterNode
from tests.integration.daemon import proxy_config
from tests.spark.log import Log
from tests.spark.test_exactly_once import (
    JVM_DIES,
    PARTITIONS,
    Kill,
    append_rows,
    copy_to_the_end,
    run_until_it_dies,
)

pytestmark = [pytest.mark.process, pytest.mark.long]

ROWS, MORE_ROWS, ROWS_MAX = 200_000, 50_000, 500_000
MOMENTS_S = (0.0, 0.2, 0.5)
"""Seconds from the begin of a batch to a kill: reading, staging, publishing."""
STORAGE = {"retention": "0s", "reserve_bytes": 0, "checkpoint_entries": 100}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", config=proxy_config(storage=STORAGE)) as cluster:
        cluster.start()
        yield cluster


def kill_and_start(cluster: Cluster, nodes: list[ClusterNode]) -> None:
    for node in nodes:
        node.kill()
    cluster.start(*(node.number for node in nodes))


def planned_kills(cluster: Cluster, checkpoint: Path) -> deque[Kill]:
    """Nine kills, each in another batch. There are twice as many batches, which go on meanwhile."""

    def leader() -> None:
        kill_and_start(cluster, [cluster.leader("sinks")])

    def follower() -> None:
        kill_and_start(cluster, cluster.others(cluster.leader("sinks"))[:1])

    def everybody() -> None:
        cluster.kill()
        cluster.start()

    def has_begun(batch: int) -> bool:
        return (checkpoint / "offsets" / str(batch)).exists()

    def kill_after(seconds: float, kill: Callable[[], None]) -> None:
        time.sleep(seconds)
        kill()

    kills = [
        partial(kill_after, after, kill) for after in MOMENTS_S for kill in (leader, follower, everybody)
    ]
    return deque(Kill(partial(has_begun, batch), kill) for batch, kill in enumerate(kills))


def test_every_row_arrives_exactly_once_whichever_nodes_die(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    log = Log(cluster[1])
    source, target = log.create(PARTITIONS), log.create(PARTITIONS)
    append_rows(log, source, range(ROWS))
    written = ROWS
    kills = planned_kills(cluster, tmp_path / "checkpoint")
    arguments = [",".join(node.address for node in cluster.nodes), source, target, str(tmp_path)]
    for point in JVM_DIES:
        run_until_it_dies(arguments, tmp_path, point, kills)
    copy_to_the_end(spark, arguments, kills)
    while kills and written < ROWS_MAX:  # nodes start slowly on a busy machine, and batches go on
        log.reconnect()
        append_rows(log, source, range(written, written + MORE_ROWS))
        written += MORE_ROWS
        copy_to_the_end(spark, arguments, kills)
    assert not kills, f"{len(kills)} deaths were not due"
    for node in cluster.nodes:
        found = Counter(Log(node).values(target))
        assert sum(found.values()) == written, (
            f"{sum(found.values())} rows, {len(found)} distinct, at {node.number}"
        )
        assert set(found) == {b"%d" % number for number in range(written)}
