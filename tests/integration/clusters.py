"""A cluster of real daemons on this machine, each of which can be killed, paused and restarted.

Nodes are known by their number in the cluster, from 1: that of their directory and addresses. The
cluster itself gives them node ids in the order in which they register, which `Cluster.ids` tells.
"""

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pixy.proto import pixy_cluster_pb2 as cluster_pb
from pixy.proto import pixy_topics_pb2 as topics_pb
from pixy.proto.pixy_cluster_pb2_grpc import ClusterStub
from pixy.proto.pixy_topics_pb2_grpc import TopicsStub
from tests.fakes.waiting import until_blocking
from tests.integration.daemon import Daemon
from tests.integration.networks import Loopback, Network

SECONDS_MAX = 120.0
SECRET = "a secret of this test alone"
"""Of the nodes of a cluster."""


class ClusterNode(Daemon):
    """A node of a cluster.

    Args:
        number: its number, from 1.
        network: the network, which gives it its addresses.
        folder: directory of its files.
        config: options that differ from the defaults.
        program: Python arguments of the program.
    """

    def __init__(
        self,
        number: int,
        network: Network,
        folder: Path,
        config: Mapping[str, Any],
        program: Sequence[str] = ("-m", "pixy"),
    ) -> None:
        grpc_address = network.grpc(number)
        is_unix = "/" in grpc_address
        own = {
            "grpc_addr": "" if is_unix else grpc_address,
            "unix_addr": grpc_address if is_unix else "",
            "peer_addr": network.listening(number),
            "advertised": {"peer": network.advertised(number)},
        }
        super().__init__(folder, {**own, **config}, program, network.prefix(number))
        self.number = number
        self._network = network
        self._target = f"unix:{grpc_address}" if is_unix else grpc_address

    @property
    def address(self) -> str:
        """Its gRPC server, as a target of grpcio; known before it runs."""
        return self._target

    def start_nowait(self) -> None:
        super().start_nowait()
        self._network.joined(self.number, self.process.pid)

    def pause(self) -> None:
        """Stop the process as a debugger does: its connections stay open, and nothing moves."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue after `pause`."""
        self.signal(signal.SIGCONT)

    def wait_serving(self) -> None:
        """Wait until its health is SERVING, also if it is still starting."""

        def is_serving() -> bool:
            answer = health.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS_MAX, wait_for_ready=True)
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

        with grpc.insecure_channel(self.address) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)  # its published types lack the methods
            until_blocking(is_serving, self.log)

    def status(self) -> cluster_pb.StatusResponse:
        """The cluster as this node sees it."""
        with grpc.insecure_channel(self.address) as channel:
            request = cluster_pb.StatusRequest()
            return ClusterStub(channel).Status(request, timeout=SECONDS_MAX, wait_for_ready=True)


@contextmanager
def killed_in_the_end(node: ClusterNode) -> Iterator[None]:
    """A node that may not get ready, and is ended whatever happens."""
    try:
        yield
    finally:
        node.kill()


class Cluster:
    """A cluster whose nodes name each other in their join lists. None is started.

    Args:
        folder: directory of the nodes' directories.
        nodes: number of nodes.
        network: network between them; without faults by default.
        config: options that differ from the defaults, the same on all nodes.
        program: Python arguments of the program.
        own: options of single nodes, by number, instead of `config`.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int = 3,
        network: Network | None = None,
        config: Mapping[str, Any] | None = None,
        program: Sequence[str] = ("-m", "pixy"),
        own: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> None:
        self.network = network or Loopback(nodes)
        numbers = range(1, nodes + 1)
        self.join = [self.network.advertised(number) for number in numbers]
        folder.mkdir(parents=True, exist_ok=True)
        secret = folder / "secret"
        folder.mkdir(exist_ok=True)
        secret.touch(mode=0o600)
        secret.write_text(SECRET)
        options: dict[str, Any] = {"join": self.join, "secret_file": str(secret)}
        configs = {number: (own or {}).get(number, config or {}) for number in numbers}
        self.nodes = [
            ClusterNode(
                number,
                self.network,
                folder / f"node-{number}",
                {"cluster": options, **configs[number]},
                program,
            )
            for number in numbers
        ]

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes:
            node.kill()
        self.network.close()

    def __getitem__(self, number: int) -> ClusterNode:
        """A node by its number."""
        return self.nodes[number - 1]

    @property
    def running(self) -> list[ClusterNode]:
        return [node for node in self.nodes if node.running]

    def others(self, node: ClusterNode) -> list[ClusterNode]:
        """The running nodes without this one."""
        return [other for other in self.running if other is not node]

    # --- lifecycle --------------------------------------------------------------------------------

    def start(self, *numbers: int) -> None:
        """Start these nodes, or all, at the same time; return when they are ready."""
        nodes = [self[number] for number in numbers] or self.nodes
        for node in nodes:
            node.start_nowait()
        for node in nodes:
            node.wait_ready()

    def kill(self) -> None:
        """Kill all nodes at the same time."""
        for node in self.running:
            node.signal(signal.SIGKILL)
        for node in self.nodes:
            node.kill()

    # --- what it says of itself -------------------------------------------------------------------

    def ids(self) -> dict[int, ClusterNode]:
        """The nodes by their ids in the cluster."""
        by_address = {self.network.advertised(node.number): node for node in self.nodes}
        status = self.running[0].status()
        return {each.node_id: by_address[each.address] for each in status.nodes if each.address in by_address}

    def id_of(self, node: ClusterNode) -> int:
        """The id of a node in the cluster."""
        return next(node_id for node_id, other in self.ids().items() if other is node)

    def leader(self, name: str, asked: ClusterNode | None = None) -> ClusterNode:
        """The leader of a raft group, for instance of `metadata` or `topic-0`. Waits until there is
        one that runs.

        Args:
            asked: node that is asked; any by default.
        """
        found: list[ClusterNode] = []

        def is_known() -> bool:
            status = (asked or self.running[0]).status()
            ids = self.ids()
            found[:] = [
                ids[group.leader] for group in status.groups if group.name == name and group.leader in ids
            ]
            return bool(found) and found[0].running

        until_blocking(is_known, lambda: f"{name} has no leader; logs:\n{self.logs()}")
        return found[0]

    def wait_in_sync(self) -> None:
        """Wait until every running node is up and has every entry of every raft group."""

        def are_in_sync() -> bool:
            status = self.running[0].status()
            up = sum(node.up for node in status.nodes)
            groups = all(
                group.members and not any(each.behind for each in group.members) for group in status.groups
            )
            return up == len(self.running) and groups

        until_blocking(are_in_sync, lambda: f"{self.running[0].status()}; logs:\n{self.logs()}")

    def logs(self) -> str:
        """The logs of all nodes that have run."""
        ran = [node for node in self.nodes if (node.folder / "log").exists()]
        return "\n".join(f"--- node {node.number}\n{node.log()}" for node in ran)

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic at a running node."""
        with grpc.insecure_channel(self.running[0].address) as channel:
            request = topics_pb.CreateTopicRequest(topic=name, partitions=partitions)
            TopicsStub(channel).CreateTopic(request, timeout=SECONDS_MAX)
