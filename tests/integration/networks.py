"""The network between the nodes of a cluster of real daemons, on this machine.

A network gives each node a peer address, where the node listens and which it advertises. Nodes are
numbered from 1. One-way faults are named by source and target: the bytes that the target does not
get.

    Loopback    no faults
    Links       a TCP relay per node, for delay, loss and half-open connections: `links`
    Namespaces  a network namespace per node, for cut links: `namespaces`

Every network has its own loopback addresses, chosen at random from 127.0.0.0/8, so ports need not
be: they are the default ones.
"""

import socket
from collections.abc import Sequence
from contextlib import closing
from random import SystemRandom
from typing import Protocol

GRPC_PORT = 19091
PEER_PORT = 19094


class Network(Protocol):
    """A network between nodes."""

    def listening(self, node: int) -> str:
        """Address at which a node listens for its peers."""

    def advertised(self, node: int) -> str:
        """Address at which its peers reach a node."""

    def grpc(self, node: int) -> str:
        """Address of a node's gRPC server: `host:port`, or the path of a unix socket."""

    def prefix(self, node: int) -> Sequence[str]:
        """Start of the command line of a node's process."""

    def joined(self, node: int, pid: int) -> None:
        """A node was started as this process."""

    def cut(self, source: int, target: int) -> None:
        """Lose everything that `source` sends to `target`, until `heal`."""

    def heal(self) -> None:
        """End all faults."""

    def close(self) -> None:
        """Release everything; the nodes have ended."""


class Loopback:
    """Nodes that reach each other directly, without faults.

    Args:
        nodes: number of nodes.
    """

    def __init__(self, nodes: int) -> None:
        self._hosts = free_hosts(nodes)

    def listening(self, node: int) -> str:
        return f"{self._hosts[node - 1]}:{PEER_PORT}"

    advertised = listening

    def grpc(self, node: int) -> str:
        return f"{self._hosts[node - 1]}:{GRPC_PORT}"

    def prefix(self, node: int) -> Sequence[str]:
        return ()

    def joined(self, node: int, pid: int) -> None:
        pass

    def cut(self, source: int, target: int) -> None:
        raise NotImplementedError("use Links or Namespaces")

    def heal(self) -> None:
        pass

    def close(self) -> None:
        pass


def free_hosts(count: int) -> list[str]:
    """Loopback addresses at which nobody listens."""
    random = SystemRandom()
    while True:
        base = f"127.{random.randint(1, 254)}.{random.randint(0, 255)}"
        hosts = [f"{base}.{number}" for number in range(1, count + 1)]
        if all(_is_free(host, port) for host in hosts for port in (GRPC_PORT, PEER_PORT)):
            return hosts


def _is_free(host: str, port: int) -> bool:
    with closing(socket.socket()) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError:
            return False
    return True
