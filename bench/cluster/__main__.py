"""`python -m bench.cluster`: three nodes beside three NATS servers with a stream of three replicas,
in one run; the servers and the load share the cores of this machine.

--only NAME     one of produce, spread, keys, consume, acks, groups, rest, topics, polls, gaps,
                leaders; repeatable
--times N       kills and stops for the gaps (default 5)
--seconds S     duration of each load (default 2)
--rounds N      loads of each kind, whose medians count (default 3)
--topics N      idle topics (default 2000)
--polls N       idle groups in long polls (default 10000)

    produce   Produce without keys at one node; NATS: at the server that leads the stream
    spread    the same at the three nodes at once; at 1 in flight, one after the other
    keys      Produce at one node with three keys, one for a partition of each node
    consume   ConsumeNAck with auto-ack at three nodes at once, and at one, by a lone node's
    acks      an ack at the owner of its partition, and at another node
    groups    how long messages wait while a node joins a group and stops; 1000 groups at rest
    gaps      the longest time without an answer after the leader was killed or stopped; see
              `gaps`
    leaders   time until all of 1000 partitions have leaders after a node was killed
    rest      processor time of nodes at rest with 100 partitions
    topics    the same with 2000 idle topics of four partitions, per 1000 of them
    polls     memory and processor time of nodes with 10 000 groups that wait in long polls, and
              Python's memory of a group of one partition and of four

Messages have 100 bytes, and every answered one is on the disks of two servers. `python -m
bench.calls.beside` compares a lone node with that of another checkout.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc

from bench.cluster.at_rest import group_memory_figures, groups_figures, partitions_figure, topics_figure
from bench.cluster.gaps import gap_figures, leaders_figure
from bench.cluster.groups import ack_figures, consume_figures, pause_figures, rest_figure
from bench.kit.figures import Figure, as_markdown, as_table, machine
from bench.kit.load import LEVELS, Level, Load, at_once, client_name, put_load, write_body
from bench.nats.cluster import NatsCluster, nats_cluster
from bench.nats.server import find_nats
from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto import pixy_log_pb2 as log_pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from pixy.proto.pixy_log_pb2_grpc import LogStub
from tests.integration.clusters import Cluster

_NODES = 3
_TOPIC = "bench"
_PARTITIONS = 6
_MESSAGE = bytes(100)
_THIRDS = {32: Level(1, 11), 128: Level(3, 14), 512: Level(9, 19)}
_RATIOS_WANTED = {1: 1.0, 32: 1.2, 128: 1.2, 512: 1.2}
_RATIO_WITH_KEYS_WANTED = 0.8
_MEAN_MS_WANTED = 0.9
_SECONDS_MAX = 60.0


Publish = Callable[[Level], Load]


@dataclass(frozen=True, slots=True)
class ClusterScale:
    """Amount of work."""

    rounds: int
    seconds: float
    times: int
    topics: int
    polls: int


@dataclass(frozen=True, slots=True)
class Sides:
    """The two clusters, and a directory for request bodies."""

    cluster: Cluster
    nats: NatsCluster | None
    folder: Path

    def body(self, name: str, key: bytes | None = None) -> Path:
        """A file with a request."""
        request = pb.ProdRq(topic=_TOPIC, key_undefined=key is None, key_value=key or b"", message=_MESSAGE)
        return write_body(self.folder / name, request.SerializeToString())


# --- loads ----------------------------------------------------------------------------------------


def produce(sides: Sides, scale: ClusterScale) -> list[Figure]:
    """Produce without keys at one node."""
    body = sides.body("produce")
    node = sides.cluster[1]

    def load(level: Level) -> Load:
        return put_load(node.address, "Produce", body, level, scale.seconds)

    def publish(level: Level) -> Load:
        assert sides.nats is not None
        return sides.nats.publish(level, scale.seconds)

    return _beside(sides, scale, "Produce at one node", load, publish, _RATIOS_WANTED)


def spread(sides: Sides, scale: ClusterScale) -> list[Figure]:
    """Produce without keys at all nodes."""
    body = sides.body("spread")

    def loads(level: Level) -> list[Callable[[], Load]]:
        seconds = scale.seconds if level.in_flight > 1 else scale.seconds / _NODES
        return [
            partial(put_load, node.address, "Produce", body, level, seconds) for node in sides.cluster.nodes
        ]

    def publishes(level: Level) -> list[Callable[[], Load]]:
        assert sides.nats is not None
        seconds = scale.seconds if level.in_flight > 1 else scale.seconds / _NODES
        return [partial(server.publish, level, seconds) for server in sides.nats.servers]

    def load(level: Level) -> Load:
        return _thirds(level, loads)

    def publish(level: Level) -> Load:
        return _thirds(level, publishes)

    return _beside(sides, scale, "Produce spread over three nodes", load, publish, _RATIOS_WANTED)


def keys(sides: Sides, scale: ClusterScale) -> list[Figure]:
    """Produce with keys at one node, which forwards two thirds."""
    node = sides.cluster[1]
    bodies = [sides.body(f"key-{at}", key) for at, key in enumerate(_keys_of_nodes(sides.cluster))]

    def loads(level: Level) -> list[Callable[[], Load]]:
        seconds = scale.seconds if level.in_flight > 1 else scale.seconds / _NODES
        return [partial(put_load, node.address, "Produce", body, level, seconds) for body in bodies]

    def load(level: Level) -> Load:
        return _thirds(level, loads)

    def publish(level: Level) -> Load:
        assert sides.nats is not None
        return sides.nats.publish(level, scale.seconds)

    wanted = dict.fromkeys(_RATIOS_WANTED, _RATIO_WITH_KEYS_WANTED)
    return _beside(sides, scale, "Produce with keys at one node", load, publish, wanted)


def _thirds(level: Level, loads: Callable[[Level], list[Callable[[], Load]]]) -> Load:
    """Three loads that make up a level: at the same time, or in turn for one call in flight."""
    if level.in_flight > 1:
        return at_once(loads(_THIRDS[level.in_flight]))
    found = [load() for load in loads(level)]
    return Load(
        sum(one.done for one in found),
        statistics.mean(one.per_second for one in found),
        statistics.mean(one.mean_ms for one in found),
    )


def _keys_of_nodes(cluster: Cluster) -> list[bytes]:
    """A key for a partition of each node."""
    leaders: dict[str, bytes] = {}
    with grpc.insecure_channel(cluster[1].address) as channel:
        stub = KafkaPixyStub(channel)
        for number in range(100 * _PARTITIONS):
            key = b"%d" % number
            answer = stub.Produce(
                pb.ProdRq(topic=_TOPIC, key_value=key, message=_MESSAGE), timeout=_SECONDS_MAX
            )
            leaders.setdefault(cluster.leader(f"{_TOPIC}-{answer.partition}").address, key)
            if len(leaders) == _NODES:
                return list(leaders.values())
    raise RuntimeError("one node leads no partition")


def _beside(
    sides: Sides, scale: ClusterScale, name: str, load: Publish, publish: Publish, wanted: dict[int, float]
) -> list[Figure]:
    """Loads of all levels, in turns with NATS."""
    figures = []
    for level in LEVELS:
        pixy, nats = [], []
        for _ in range(scale.rounds):
            pixy.append(_checked(sides.cluster, load, level))
            if sides.nats is not None:
                nats.append(publish(level))
        figures += _figures(name, level, pixy, nats, wanted[level.in_flight])
    return figures


def _checked(cluster: Cluster, load: Publish, level: Level) -> Load:
    """A load whose answered messages are in the log: h2load sees no gRPC status."""
    before = _written(cluster)
    found = load(level)
    written = _written(cluster) - before
    if written < found.done:
        raise RuntimeError(f"{found.done} produces were answered, but only {written} messages are there")
    return found


def _written(cluster: Cluster) -> int:
    """Number of messages in the topic."""
    queries = [
        log_pb.OffsetQuery(topic=_TOPIC, partition=partition, latest=True) for partition in range(_PARTITIONS)
    ]
    with grpc.insecure_channel(cluster[1].address) as channel:
        request = log_pb.ListOffsetsRequest(queries=queries)
        return sum(
            answer.offset for answer in LogStub(channel).ListOffsets(request, timeout=_SECONDS_MAX).answers
        )


def _figures(name: str, level: Level, pixy: list[Load], nats: list[Load], wanted: float) -> list[Figure]:
    ratio = None
    if nats:
        ratio = statistics.median(
            one.per_second / other.per_second for one, other in zip(pixy, nats, strict=True)
        )
    figures = [
        Figure(
            name=f"{name}, {level.in_flight} in flight",
            value=statistics.median(one.per_second for one in pixy),
            unit="/s",
            ratio=ratio,
            target=f"ratio >= {wanted}",
            met=None if ratio is None else ratio >= wanted,
            nats=statistics.median(other.per_second for other in nats) if nats else None,
            row=name,
            in_flight=level.in_flight,
        )
    ]
    if level.in_flight == 1:
        mean_ms = statistics.median(one.mean_ms for one in pixy)
        figures.append(
            Figure(
                name=f"{name}, mean at 1 in flight",
                value=mean_ms,
                unit="ms",
                target=f"<= {_MEAN_MS_WANTED} ms",
                met=mean_ms <= _MEAN_MS_WANTED,
                nats=statistics.median(other.mean_ms for other in nats) if nats else None,
            )
        )
    return figures


# --- consumer groups ------------------------------------------------------------------------------


def consume(sides: Sides, scale: ClusterScale) -> list[Figure]:
    """Consumers at all nodes and at one."""
    return consume_figures(sides.cluster, sides.folder, scale.rounds, scale.seconds)


def acks(sides: Sides, scale: ClusterScale) -> list[Figure]:
    """Acks at any node."""
    return ack_figures(sides.cluster, scale.rounds)


def groups(sides: Sides, scale: ClusterScale) -> list[Figure]:
    """Members that come and go, and groups at rest."""
    return [*pause_figures(sides.cluster, scale.rounds), rest_figure()]


# --- failures and rest ----------------------------------------------------------------------------


def gaps(sides: Sides, scale: ClusterScale) -> list[Figure]:
    """Time without an answer after kills and stops of the leader."""
    return gap_figures(sides.cluster, scale.times)


def leaders(sides: Sides, scale: ClusterScale) -> list[Figure]:
    """Time until all partitions have leaders."""
    return [leaders_figure(sides.cluster)]


def rest(_: Sides, scale: ClusterScale) -> list[Figure]:
    """Few partitions."""
    return [partitions_figure()]


def topics(_: Sides, scale: ClusterScale) -> list[Figure]:
    """Many idle topics."""
    return [topics_figure(scale.topics)]


def polls(_: Sides, scale: ClusterScale) -> list[Figure]:
    """Many idle groups."""
    return [*group_memory_figures(), *groups_figures(scale.polls)]


MEASURES = {
    "produce": produce,
    "spread": spread,
    "keys": keys,
    "consume": consume,
    "acks": acks,
    "groups": groups,
    "rest": rest,
    "topics": topics,
    "polls": polls,
    "gaps": gaps,
    "leaders": leaders,
}


@contextmanager
def _sides() -> Iterator[Sides]:
    """Two clusters."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pixy-bench-")))
        cluster = stack.enter_context(Cluster(folder, _NODES))
        cluster.start()
        cluster.create_topic(_TOPIC, _PARTITIONS)
        binary = find_nats()
        nats = None if binary is None else stack.enter_context(nats_cluster(binary, folder, _NODES))
        yield Sides(cluster, nats, folder)


def main() -> int:
    """Run the selected measurements."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m bench.cluster", description="Three nodes, beside three NATS servers."
    )
    parser.add_argument("--only", action="append", choices=MEASURES, help="measure only this; repeatable")
    parser.add_argument("--times", type=int, default=5, help="kills and stops of the leader")
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of each load")
    parser.add_argument("--rounds", type=int, default=3, help="loads of each kind")
    parser.add_argument("--topics", type=int, default=2000, help="idle topics")
    parser.add_argument("--polls", type=int, default=10_000, help="idle groups in long polls")
    arguments = parser.parse_args()
    scale = ClusterScale(
        arguments.rounds, arguments.seconds, arguments.times, arguments.topics, arguments.polls
    )
    figures: list[Figure] = []
    with _sides() as sides:
        for name in arguments.only or MEASURES:
            print(f"measuring {name} ...", file=sys.stderr, flush=True)
            figures += MEASURES[name](sides, scale)
    here = machine()
    print(
        f"\n{here['cores']} cores, Python {here['python']}, kernel {here['kernel']}; load by {client_name()}; "
        f"medians of {scale.rounds} rounds\n"
    )
    print(as_table(figures, reference="lone node"))
    if as_markdown(figures, reference=""):
        print(f"\n{as_markdown(figures, reference='')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
