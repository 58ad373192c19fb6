"""Failures of a leader, as a producer at another node sees them: the longest time without an
answer.

The producer makes 100 calls a second, each with a deadline of 5 s, for a topic with one partition,
whose leader is killed (SIGKILL) or stopped (SIGTERM). A call that was under way is answered by the
next leader. A gap is the time between two answers, so it contains the 10 ms between two calls.
"""

import asyncio
import signal
import statistics
import sys
import time
from dataclasses import dataclass, field

import grpc

from bench.kit.figures import Figure
from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from tests.integration.clusters import Cluster, ClusterNode

_TOPIC = "gaps"
_MANY_TOPIC = "many"
_MANY = 1000
_PACE_SECONDS = 0.01
_DEADLINE_SECONDS = 5.0
_BEFORE_SECONDS = 1.0
_AFTER_SECONDS = 6.0
_WANTED = {signal.SIGKILL: (1.5, 2.5), signal.SIGTERM: (0.15, 0.5)}
"""Median and worst gap in seconds."""
_WORDS = {signal.SIGKILL: "killed", signal.SIGTERM: "stopped"}
_LEADERS_SECONDS_WANTED = 5.0
_LEADERS_SECONDS_MAX = 120.0


@dataclass
class _Answers:
    """Answers to one producer: times and failures."""

    times: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def longest_gap(self) -> float:
        return max(later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False))


def gap_figures(cluster: Cluster, times: int) -> list[Figure]:
    """The gaps of so many kills, and of so many stops."""
    cluster.create_topic(_TOPIC, 1)
    figures = []
    for number in (signal.SIGKILL, signal.SIGTERM):
        found = [_fail(cluster, number) for _ in range(times)]
        gaps = [answers.longest_gap() for answers in found]
        failed = [text for answers in found for text in answers.failed]
        for text in failed:
            print(text, file=sys.stderr)
        print(
            f"gaps when the leader was {_WORDS[number]}: {[round(gap, 3) for gap in gaps]}", file=sys.stderr
        )
        figures += _figures(number, gaps, len(failed))
    return figures


def _figures(number: signal.Signals, gaps: list[float], failed: int) -> list[Figure]:
    name = f"leader {_WORDS[number]} {len(gaps)} times: "
    rows = zip(
        ("median gap", "worst gap"), (statistics.median(gaps), max(gaps)), _WANTED[number], strict=True
    )
    return [
        *(
            Figure(name + what, value, "s", target=f"<= {wanted:g} s", met=value <= wanted)
            for what, value, wanted in rows
        ),
        Figure(name + "failed calls", failed, "", target="0", met=not failed),
    ]


def _fail(cluster: Cluster, number: signal.Signals) -> _Answers:
    """End the leader under load and start it again."""
    leader = cluster.leader(f"{_TOPIC}-0")
    other = cluster.others(leader)[0]
    answers = asyncio.run(_produce(other, leader, number))
    leader.wait()
    leader.start()
    cluster.wait_in_sync()
    return answers


async def _produce(node: ClusterNode, leader: ClusterNode, number: signal.Signals) -> _Answers:
    answers = _Answers()
    running: set[asyncio.Task[None]] = set()
    request = pb.ProdRq(topic=_TOPIC, key_value=b"key", message=bytes(100))

    async def call(stub: "KafkaPixyStub") -> None:
        try:
            await stub.Produce(request, timeout=_DEADLINE_SECONDS)  # type: ignore[misc]  # an asynchronous channel
        except grpc.aio.AioRpcError as error:
            answers.failed.append(f"{error.code().name}: {error.details()}")
        else:
            answers.times.append(time.perf_counter())

    async with grpc.aio.insecure_channel(node.address) as channel:
        stub = KafkaPixyStub(channel)
        loop = asyncio.get_running_loop()
        began = loop.time()
        fails_at, ends_at = began + _BEFORE_SECONDS, began + _BEFORE_SECONDS + _AFTER_SECONDS
        at = began
        ended = False
        while at < ends_at:
            task = asyncio.create_task(call(stub))
            running.add(task)
            task.add_done_callback(running.discard)
            if at >= fails_at and not ended:
                leader.signal(number)
                ended = True
            at += _PACE_SECONDS
            await asyncio.sleep(at - loop.time())
        await asyncio.gather(*running)
    return answers


def leaders_figure(cluster: Cluster) -> Figure:
    """Time until all partitions have leaders after a node was killed."""
    cluster.create_topic(_MANY_TOPIC, _MANY)
    node, lost = cluster.nodes[0], cluster.nodes[1]
    ids = {each.number: node_id for node_id, each in cluster.ids().items()}
    _await_leaders(node, without=0)
    lost.kill()
    began = time.perf_counter()
    _await_leaders(node, without=ids[lost.number])
    seconds = time.perf_counter() - began
    lost.start()
    cluster.wait_in_sync()
    return Figure(
        f"{_MANY} partitions: leaders of all after a kill",
        seconds,
        "s",
        target=f"<= {_LEADERS_SECONDS_WANTED:g} s",
        met=seconds <= _LEADERS_SECONDS_WANTED,
    )


def _await_leaders(node: ClusterNode, without: int) -> None:
    """Wait until every partition has a leader other than the node `without`."""
    until = time.monotonic() + _LEADERS_SECONDS_MAX
    while time.monotonic() < until:
        groups = [group for group in node.status().groups if group.name.startswith(f"{_MANY_TOPIC}-")]
        if len(groups) == _MANY and all(group.leader not in (0, without) for group in groups):
            return
    raise RuntimeError(f"some partitions have no leader after {_LEADERS_SECONDS_MAX:g} s")
