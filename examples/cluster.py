"""A cluster of three nodes on this machine, to try what happens when one of them is killed.

    python examples/cluster.py

Each line of a node's log begins with its number. Ctrl-C stops the nodes in good order, a second one
at once. Their data stays, and the next start continues with it. They share a secret,
so that no other process of this machine can join them.
"""

import argparse
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import IO

HOST = "127.0.0.1"
PIXY = [sys.executable, "-m", "pixy"]
STEP = 100
"""Distance between the ports of two nodes."""
HTTP_PORT, MANAGEMENT_PORT, PEER_PORT, KAFKA_PORT = 1, 2, 3, 4
"""Distances from a node's gRPC port to its other ports."""
_PR_SET_PDEATHSIG = 1
_END_WITH_PARENT = f"""
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, signal.SIGTERM)
os.execv(sys.argv[1], sys.argv[1:])
"""
_WITH_PARENT = [sys.executable, "-c", _END_WITH_PARENT] if sys.platform == "linux" else []
"""Has the kernel send SIGTERM to a node when this script ends, in whatever way."""


class Cluster:
    """The processes of the nodes.

    Args:
        count: number of nodes.
        port: gRPC port of the first node.
        folder: holds a data directory for each node.
    """

    def __init__(self, count: int, port: int, folder: Path) -> None:
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._nodes: list[subprocess.Popen[str]] = []
        # Nodes whose logs have not ended.
        self._running = 0
        self._environment = {"PIXY_CLUSTER__SECRET_FILE": str(_secret_file(folder))}
        ports = self._ports = [port + STEP * number for number in range(count)]
        join = ",".join(f"{HOST}:{each + PEER_PORT}" for each in ports)
        self.commands = [
            [
                "env",
                *(f"{name}={value}" for name, value in self._environment.items()),
                *(
                    "pixy",
                    "serve",
                    "--grpc-addr",
                    f"{HOST}:{each}",
                    "--tcp-addr",
                    f"{HOST}:{each + HTTP_PORT}",
                    "--kafka-addr",
                    f"{HOST}:{each + KAFKA_PORT}",
                    "--management-addr",
                    f"{HOST}:{each + MANAGEMENT_PORT}",
                    "--peer-addr",
                    f"{HOST}:{each + PEER_PORT}",
                ),
                *("--join", join, "--data-dir", str(folder / f"cluster-{number}")),
            ]
            for number, each in enumerate(ports, 1)
        ]

    def why_not(self) -> str:
        """The reason why the nodes cannot start, empty if they can."""
        for number, port in enumerate(self._ports, 1):
            for each in range(port, port + KAFKA_PORT + 1):
                with socket.socket() as tried:
                    tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    try:
                        tried.bind((HOST, each))
                    except OSError as error:
                        return f"node {number} cannot listen on {HOST}:{each}: {error.strerror}"
        return ""

    def start(self) -> None:
        """Start all nodes."""
        for number, command in enumerate(self.commands, 1):
            # In a session of its own, so that Ctrl-C does not reach it before this script stops it.
            node = subprocess.Popen(
                [*_WITH_PARENT, *PIXY, *command[command.index("pixy") + 1 :]],
                env={**os.environ, **self._environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            self._nodes.append(node)
            self._lines.put(f"{number}| is process {node.pid}")
            assert node.stdout is not None
            threading.Thread(target=self._read, args=(number, node, node.stdout), daemon=True).start()
            self._running += 1

    def show_logs(self) -> None:
        """Print the logs until all nodes have ended."""
        while self._running:
            line = self._lines.get()
            if line is None:
                self._running -= 1
            else:
                print(line, flush=True)

    def stop(self) -> None:
        """Stop all nodes in good order, at the same time."""
        self._signal(signal.SIGTERM)
        self.show_logs()

    def kill(self) -> None:
        """End all nodes as a crash does."""
        self._signal(signal.SIGKILL)
        for node in self._nodes:
            node.wait()

    @property
    def exit_codes(self) -> list[int]:
        """Exit codes of the nodes that have ended."""
        return [node.returncode for node in self._nodes if node.poll() is not None]

    def _signal(self, number: int) -> None:
        for node in self._nodes:
            if node.poll() is None:
                node.send_signal(number)

    def _read(self, number: int, node: "subprocess.Popen[str]", output: IO[str]) -> None:
        for line in output:
            self._lines.put(f"{number}| {line.rstrip()}")
        code = node.wait()
        self._lines.put(
            f"{number}| ended with exit code {code}; start it again: {shlex.join(self.commands[number - 1])}"
        )
        self._lines.put(None)


def _secret_file(folder: Path) -> Path:
    """The file with the secret of the nodes, made at the first start."""
    path = (folder / "peers.secret").resolve()
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w") as file:
            file.write(secrets.token_hex(32) + "\n")
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the nodes until Ctrl-C; returns the exit code."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=3, help="number of nodes (3)")
    parser.add_argument("--port", type=int, default=19091, help="gRPC port of the first node (19091)")
    parser.add_argument(
        "--folder", type=Path, default=Path("pixy-data"), help="where their data goes (./pixy-data)"
    )
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    cluster = Cluster(options.nodes, options.port, options.folder)
    if reason := cluster.why_not():
        print(
            f"{reason}. End what listens there, such as make run, or choose others: --port", file=sys.stderr
        )
        return 1
    print(f"{options.nodes} nodes, each in a process of its own; any of them takes any request:\n")
    for command in cluster.commands:
        print(f"  {shlex.join(command)}")
    print(
        f"\nIn another terminal: pixy cluster status --address {HOST}:{options.port}. Ctrl-C ends all nodes.\n",
        flush=True,
    )
    try:
        cluster.start()
        cluster.show_logs()
        return max(map(abs, cluster.exit_codes), default=0)
    except KeyboardInterrupt:
        print("stopping all nodes; once more Ctrl-C ends them at once", flush=True)
        cluster.stop()
        return 0 if not any(cluster.exit_codes) else 1
    finally:
        cluster.kill()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
