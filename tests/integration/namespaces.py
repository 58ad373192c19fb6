"""A network namespace per node, joined by a bridge, for links that are cut as a broken cable or a
firewall cuts them: packets vanish, in one direction or both, and nobody is told.

A node's entry in another node's neighbour table gets a hardware address that nobody has: so its
packets leave and arrive nowhere, those that open connections too, and nothing fails at once. It
needs root and iproute2, and no packet filter.

A namespace lives as long as a process in it, which ends with the test, however that ends. Clients
use unix sockets, which are outside of namespaces.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import require
from tests.integration.networks import PEER_PORT

_NOBODY = "02:00:00:00:00:ff"
_SECONDS_MAX = 60.0


class Namespaces:
    """Nodes in namespaces of their own; a `Network`.

    Args:
        nodes: number of nodes.
    """

    def __init__(self, nodes: int) -> None:
        for program, package in (("ip", "iproute2"), ("unshare", "util-linux"), ("nsenter", "util-linux")):
            require(program, f"apt-get install {package}")
        if os.geteuid() != 0:
            pytest.skip("network namespaces need root")
        self._numbers = range(1, nodes + 1)
        # Short: the path of a unix socket has at most 107 bytes.
        self._sockets = Path(tempfile.mkdtemp(prefix="pixy-"))
        self._keepers: dict[int, subprocess.Popen[str]] = {}
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        switch = 0
        for number in (switch, *self._numbers):
            self._keepers[number] = _namespace()
        self._ip(switch, "link", "add", "bridge", "type", "bridge")
        self._ip(switch, "link", "set", "bridge", "up")
        for node in self._numbers:
            there = [
                "peer",
                "name",
                "peers",
                "address",
                _hardware(node),
                "netns",
                str(self._keepers[node].pid),
            ]
            self._ip(switch, "link", "add", f"node-{node}", "type", "veth", *there)
            self._ip(switch, "link", "set", f"node-{node}", "master", "bridge", "up")
            self._ip(node, "address", "add", f"{_host(node)}/24", "dev", "peers")
            self._ip(node, "link", "set", "peers", "up")
        self.heal()

    def listening(self, node: int) -> str:
        return f"{_host(node)}:{PEER_PORT}"

    advertised = listening

    def grpc(self, node: int) -> str:
        return str(self._sockets / f"node-{node}")

    def prefix(self, node: int) -> Sequence[str]:
        return ("nsenter", f"--net=/proc/{self._keepers[node].pid}/ns/net", "--")

    def joined(self, node: int, pid: int) -> None:
        pass

    def cut(self, source: int, target: int) -> None:
        """Lose every packet from `source` to `target`, until `heal`."""
        self._neighbour(source, target, _NOBODY)

    def heal(self) -> None:
        for source in self._numbers:
            for target in self._numbers:
                if source != target:
                    self._neighbour(source, target, _hardware(target))

    def close(self) -> None:
        for keeper in self._keepers.values():
            assert keeper.stdin is not None
            assert keeper.stdout is not None
            keeper.stdin.close()
            keeper.wait(_SECONDS_MAX)
            keeper.stdout.close()
        shutil.rmtree(self._sockets)

    def _neighbour(self, source: int, target: int, address: str) -> None:
        entry = [_host(target), "lladdr", address, "nud", "permanent", "dev", "peers"]
        self._ip(source, "neighbour", "replace", *entry)

    def _ip(self, number: int, *arguments: str) -> None:
        command = [*self.prefix(number), "ip", *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_SECONDS_MAX)
        assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"


def _namespace() -> "subprocess.Popen[str]":
    """A process in a new network namespace, which ends with its input."""
    keep = "ip link set lo up && echo ready && exec cat"
    keeper = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", keep], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert keeper.stdout is not None
    assert keeper.stdout.readline() == "ready\n", "no network namespace"
    return keeper


def _host(node: int) -> str:
    return f"10.77.0.{node}"


def _hardware(node: int) -> str:
    return f"02:00:00:00:00:{node:02x}"
