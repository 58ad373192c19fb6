"""Consumer groups of three nodes, beside those of a lone node in the same run.

Each load has a consumer group of its own, which has all messages ahead of it.
"""

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path

import grpc

from bench.cluster.at_rest import used_percent
from bench.kit.figures import Figure
from bench.kit.load import LEVELS, Level, Load, at_once, put_load, write_body
from bench.kit.processes import Server
from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto import pixy_log_pb2 as log_pb
from pixy.proto import pixy_topics_pb2 as topics_pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from pixy.proto.pixy_log_pb2_grpc import LogStub
from pixy.proto.pixy_topics_pb2_grpc import TopicsStub
from pixy.records import NewRecord, build_batch
from tests.integration.clusters import Cluster, ClusterNode
from tests.integration.daemon import Daemon, proxy_config
from tests.integration.group_clients import GroupClient, GroupConsumers, code_of
from tests.integration.ledger import Position

_TOPIC = "filled"
_PARTITIONS = 6
_RECORDS = 1000
"""Records of a batch."""
_FILLED = 240_000
"""Messages of a topic at first. It grows until no load takes all of a partition."""
_THIRDS = {32: Level(1, 11), 128: Level(3, 14), 512: Level(9, 19)}
_SPREAD_WANTED = 0.6
_ONE_NODE_WANTED = 0.5
_ACKS = 400
_ACK_MS_WANTED = 0.5
_PAUSE_S_WANTED = 0.5
_PACE_S = 0.01
_GROUPS = 1000
_GROUPS_AT_ONCE = 64
_REST_PERCENT_WANTED = 5.0
_SECONDS_MAX = 60.0
_groups = count()


def _new_group() -> str:
    return f"bench-{next(_groups)}"


# --- consume --------------------------------------------------------------------------------------


def consume_figures(cluster: Cluster, folder: Path, rounds: int, seconds: float) -> list[Figure]:
    """ConsumeNAck with auto-ack: spread over all nodes, at one node that owns everything, and at
    one node while the others own their shares; by the rate of a lone node.
    """
    with Daemon(folder / "lone", {}) as lone:
        for each in (lone.address, cluster[1].address):
            _create(each)
            _fill(each, _FILLED)
        nodes = [node.address for node in cluster.nodes]
        figures: list[Figure] = []
        for level in LEVELS[1:]:
            loads: dict[str, list[Load]] = {}
            for _ in range(rounds):
                for name, members, asked in (
                    ("lone", [lone.address], [lone.address]),
                    ("spread over three nodes", nodes, nodes),
                    ("at one node", nodes[:1], nodes[:1]),
                    ("at one node, others own two thirds", nodes, nodes[:1]),
                ):
                    found = _consume(folder, level, seconds, members, asked)
                    loads.setdefault(name, []).append(found)
            figures += _consume_figures(level, loads.pop("lone"), loads)
        return figures


def _consume_figures(level: Level, lone: list[Load], loads: dict[str, list[Load]]) -> list[Figure]:
    wanted = {"spread over three nodes": _SPREAD_WANTED, "at one node": _ONE_NODE_WANTED}
    figures = []
    for name, found in loads.items():
        ratio = statistics.median(
            one.per_second / other.per_second for one, other in zip(found, lone, strict=True)
        )
        limit = wanted.get(name)
        figures.append(
            Figure(
                name=f"ConsumeNAck with auto-ack {name}, {level.in_flight} in flight",
                value=statistics.median(one.per_second for one in found),
                unit="/s",
                reference=statistics.median(one.per_second for one in lone),
                ratio=ratio,
                target="" if limit is None else f"ratio >= {limit}",
                met=None if limit is None else ratio >= limit,
            )
        )
    return figures


def _consume(
    folder: Path, level: Level, seconds: float, members: Sequence[str], asked: Sequence[str]
) -> Load:
    """A load on nodes of a new consumer group, with another one and twice the messages if the load
    has taken all of a partition.
    """
    group = _new_group()
    request = pb.ConsNAckRq(topic=_TOPIC, group=group, auto_ack=True)
    body = write_body(folder / group, request.SerializeToString())
    _join(group, members)
    each = level if len(asked) == 1 else _THIRDS[level.in_flight]
    loads: list[Callable[[], Load]] = [
        partial(put_load, address, "ConsumeNAck", body, each, seconds) for address in asked
    ]
    found = at_once(loads)
    end = _end_if_dry(members[0], group, found.done)
    if end is None:
        return found
    _fill(members[0], end)
    return _consume(folder, level, seconds, members, asked)


def _join(group: str, addresses: Sequence[str]) -> None:
    """Have nodes consume a message each, until each owns its share."""
    with ExitStack() as stack:
        clients = [stack.enter_context(GroupClient(address, _TOPIC, group)) for address in addresses]
        with ThreadPoolExecutor(len(clients)) as threads:
            for message, client in zip(threads.map(GroupClient.consume, clients), clients, strict=True):
                if message is not None:
                    client.ack(message.position)
        until = time.monotonic() + _SECONDS_MAX
        while not _is_shared(clients[0].consumers(), len(clients)):
            if time.monotonic() > until:
                raise RuntimeError(f"{group} is not shared: {clients[0].consumers()}")
            time.sleep(0.05)


def _is_shared(owned: dict[str, list[int]], members: int) -> bool:
    return [len(numbers) for numbers in owned.values()] == [_PARTITIONS // members] * members


def _end_if_dry(address: str, group: str, consumed: int) -> int | None:
    """The number of messages of the topic if none is left in one of its partitions.

    h2load sees no gRPC status: the messages that it counts as answered must be committed soon.
    """
    until = time.monotonic() + _SECONDS_MAX
    with GroupClient(address, _TOPIC, group) as client:
        while True:
            offsets = client.offsets()
            if any(each.offset == each.end for each in offsets):
                return sum(each.end for each in offsets)
            if sum(max(0, each.offset) for each in offsets) >= consumed:
                return None
            if time.monotonic() > until:
                raise RuntimeError(f"{consumed} polls were answered, but not so many messages are acked")
            time.sleep(0.05)


def _create(address: str) -> None:
    """Create the topic at a node."""
    with grpc.insecure_channel(address) as channel:
        request = topics_pb.CreateTopicRequest(topic=_TOPIC, partitions=_PARTITIONS)
        TopicsStub(channel).CreateTopic(request, timeout=_SECONDS_MAX)


def _fill(address: str, messages: int) -> None:
    """Append messages of 100 bytes to the topic."""
    with grpc.insecure_channel(address) as channel:
        now_ms = int(1000 * time.time())  # retention goes by it
        batch = bytes(build_batch([NewRecord(None, bytes(100), (), now_ms) for _ in range(_RECORDS)]))
        for _ in range(messages // _RECORDS // _PARTITIONS):
            partitions = [
                log_pb.PartitionBatches(topic=_TOPIC, partition=number, batches=batch)
                for number in range(_PARTITIONS)
            ]
            answer = LogStub(channel).Append(
                log_pb.AppendRequest(partitions=partitions), timeout=_SECONDS_MAX
            )
            if any(result.code for result in answer.results):
                raise RuntimeError(f"the topic cannot be filled: {answer}")


# --- acks -----------------------------------------------------------------------------------------


def ack_figures(cluster: Cluster, rounds: int) -> list[Figure]:
    """Time of acks at the owner of their partition, and at another node, in turns."""
    group = _new_group()
    cluster.create_topic("acked", 1)
    with (
        GroupClient(cluster[1].address, "acked", group) as own,
        GroupClient(cluster[2].address, "acked", group) as other,
    ):
        position = own.produce(b"x")
        if own.consume() is None:
            raise RuntimeError("no message came")
        added, here = [], []
        for _ in range(rounds):
            times = [(_timed(own, position), _timed(other, position)) for _ in range(_ACKS)]
            here.append(statistics.median(one for one, _ in times))
            added.append(statistics.median(one for _, one in times) - here[-1])
    value = 1000 * statistics.median(added)
    return [
        Figure("ack at the owner of its partition", 1000 * statistics.median(here), "ms"),
        Figure(
            "ack at another node: added",
            value,
            "ms",
            target=f"<= {_ACK_MS_WANTED} ms",
            met=value <= _ACK_MS_WANTED,
        ),
    ]


def _timed(client: GroupClient, position: Position) -> float:
    began = time.perf_counter()
    client.ack(position)  # again and again: that changes nothing
    return time.perf_counter() - began


# --- nodes that join and leave --------------------------------------------------------------------


def pause_figures(cluster: Cluster, rounds: int) -> list[Figure]:
    """The longest wait of a message while a node joins a group, leaves it and stops."""
    stay: list[float] = []
    move: list[float] = []
    for number in range(rounds):
        stays, waits = _join_and_leave(cluster, f"moving-{number}")
        stay.append(max(wait for at, wait in waits.items() if at in stays))
        move.append(max(wait for at, wait in waits.items() if at not in stays))
    worst = max(stay)
    return [
        Figure("longest wait of a message, partitions that move", statistics.median(move), "s"),
        Figure("longest wait of a message, partitions that stay", statistics.median(stay), "s"),
        Figure(
            "the same, worst round",
            worst,
            "s",
            target=f"<= {_PAUSE_S_WANTED} s",
            met=worst <= _PAUSE_S_WANTED,
        ),
    ]


def _join_and_leave(cluster: Cluster, topic: str) -> tuple[set[int], dict[int, float]]:
    """The partitions that stay, and the longest wait in each."""
    cluster.create_topic(topic, _PARTITIONS)
    staying, comer = cluster.nodes[:2], cluster[3]
    with ExitStack() as stack:
        client = stack.enter_context(GroupClient(staying[0].address, topic, topic))
        addresses = [node.address for node in staying] * 2
        consumers = stack.enter_context(GroupConsumers(addresses, topic, topic))
        answered = stack.enter_context(_steady(topic, staying))
        owners = [_wait_shared(client, cluster, staying)]
        with GroupConsumers([comer.address], topic, topic) as more:
            owners.append(_wait_shared(client, cluster, cluster.nodes))
            time.sleep(1)
            more.stop()
            comer.stop()
        owners.append(_wait_shared(client, cluster, staying))
        time.sleep(1)
    comer.start()
    cluster.wait_in_sync()
    waits: dict[int, float] = {}
    for message in [*consumers.got, *more.got]:
        if message.position in answered:
            number = message.position.partition
            waits[number] = max(waits.get(number, 0.0), message.at - answered[message.position])
    return {number for number in range(_PARTITIONS) if len({each[number] for each in owners}) == 1}, waits


def _wait_shared(
    client: GroupClient, cluster: Cluster, nodes: Sequence[ClusterNode]
) -> dict[int, ClusterNode]:
    until = time.monotonic() + _SECONDS_MAX
    while True:
        owned = client.consumers()
        if _is_shared(owned, len(nodes)):
            return client.owners(cluster)
        if time.monotonic() > until:
            raise RuntimeError(f"the partitions are not shared: {owned}")
        time.sleep(0.02)


@contextmanager
def _steady(topic: str, nodes: Sequence[ClusterNode]) -> Iterator[dict[Position, float]]:
    """A hundred messages a second; the time at which each was answered."""
    answered: dict[Position, float] = {}
    stop = threading.Event()

    def produce() -> None:
        with GroupClient(nodes[0].address, topic, topic) as client:
            number = 0
            while not stop.wait(_PACE_S):
                number += 1
                answered[client.produce(b"%d" % number)] = time.monotonic()

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield answered
    finally:
        stop.set()
        thread.join()


# --- groups at rest -------------------------------------------------------------------------------


def rest_figure() -> Figure:
    """Processor time of nodes with consumer groups that nobody asks for messages, which keep their
    subscriptions.
    """
    config = proxy_config(consumer={"subscription_timeout": "10m", "long_polling_timeout": "100ms"})
    with (
        tempfile.TemporaryDirectory(prefix="pixy-bench-") as folder,
        Cluster(Path(folder), config={**config, "shutdown_timeout": "1s"}) as cluster,
    ):
        cluster.start()
        cluster.create_topic(_TOPIC, 1)
        with ThreadPoolExecutor(_GROUPS_AT_ONCE) as threads, ExitStack() as stack:
            stubs = [
                KafkaPixyStub(stack.enter_context(grpc.insecure_channel(node.address)))
                for node in cluster.nodes
            ]
            list(threads.map(partial(_subscribe, stubs), range(_GROUPS)))
        used = used_percent([Server(node.address, node.process.pid, 0.0) for node in cluster.nodes])
    return Figure(
        f"processor of a node with {_GROUPS} consumer groups at rest, the busiest",
        used,
        "% of a core",
        target=f"<= {_REST_PERCENT_WANTED:g} %",
        met=used <= _REST_PERCENT_WANTED,
    )


def _subscribe(stubs: Sequence[KafkaPixyStub], number: int) -> None:
    """Have a node consume in a group; no message is there."""
    request = pb.ConsNAckRq(topic=_TOPIC, group=f"resting-{number}", no_ack=True)
    try:
        stubs[number % len(stubs)].ConsumeNAck(request, timeout=_SECONDS_MAX)
    except grpc.RpcError as error:
        if code_of(error) is not grpc.StatusCode.NOT_FOUND:
            raise
    else:
        raise RuntimeError("a message came")
