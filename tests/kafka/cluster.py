"""Real Apache Kafka in processes of its own: KRaft clusters of one or three brokers, for tests from
outside.

Every broker is also a controller. It listens on 127.0.0.1, on ports that were free when the cluster
was created, and keeps them and its data over restarts. A broker is stopped only by its process id;
if `setpriv` exists, the kernel ends it when the test process dies.

Timeouts are a tenth of Kafka's, so that a killed broker is detected after two seconds. Nobody takes
over from a lone broker: it keeps its session while the machine is too busy for heartbeats. Records
of any age are kept, because many tests have timestamps of 1970. Topics are created by whoever asks
for them (Kafka's default): a test notices a read that creates one.

The first broker of all dumps its classes to an archive, which later ones map, so that they start
with half of the processor time.
"""

import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import randbytes, randrange
from typing import IO

from tests.integration.kafka_tools import QUICK_START, class_archive, kafka_java

_HOST = "127.0.0.1"
_PORTS = (20_000, 32_000)
"""Below those of outgoing connections, on all usual systems."""
_CLUSTER_ID = "cGl4eS1rYWZrYS10ZXN0cw"
_START_SECONDS_MAX = 180.0
_STOP_SECONDS_MAX = 330.0
"""Longer than a broker gives the controller to take its leaderships, which is five minutes."""
_ASK_EVERY_S = 0.05
_METADATA, _METADATA_VERSION = 3, 1
_SESSION_MS, _LONE_SESSION_MS = 2000, 9000

_SERVER_PROPERTIES = """\
process.roles=broker,controller
node.id={node_id}
controller.quorum.voters={voters}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs={data}
broker.session.timeout.ms={session_ms}
broker.heartbeat.interval.ms=200
controller.quorum.election.timeout.ms=500
controller.quorum.fetch.timeout.ms=1000
message.max.bytes=8388608
default.replication.factor={replicas}
min.insync.replicas={in_sync}
offsets.topic.replication.factor={replicas}
offsets.topic.num.partitions=4
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={in_sync}
transaction.state.log.num.partitions=4
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=500
log.initial.task.delay.ms=500
log.retention.check.interval.ms=500
log.cleaner.backoff.ms=200
log.retention.ms=-1
log.roll.ms=9000000000000000000
log.segment.delete.delay.ms=100
log.cleaner.dedupe.buffer.size=4194304
num.network.threads=2
num.io.threads=4
num.recovery.threads.per.data.dir=1
"""


class Broker:
    """One broker in its own process.

    Args:
        folder: directory of its files.
        node_id: its node id in the cluster.
        ports: its ports: for clients, for controllers.
        java: options of the JVM.
    """

    def __init__(self, folder: Path, node_id: int, ports: tuple[int, int], java: Sequence[str]) -> None:
        self._java = java
        self.folder = folder
        self.node_id = node_id
        self.port, self.controller_port = ports
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{_HOST}:{self.port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._running().pid

    def log(self) -> str:
        """Its complete log."""
        return (self.folder / "log").read_text()

    def start_nowait(self, *, archive: Path | None = None) -> None:
        """Start the process without waiting for it.

        Args:
            archive: file to which it dumps its classes when it is stopped.
        """
        assert not self.running, f"broker {self.node_id} runs already"
        self._log = (self.folder / "log").open("ab")
        guard = shutil.which("setpriv")
        self._process = subprocess.Popen(
            [
                *([guard, "--pdeathsig", "KILL", "--"] if guard else []),
                *kafka_java(self._java, archive),
                "kafka.Kafka",
                str(self.folder / "server.properties"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            cwd=self.folder,
        )

    def kill(self) -> None:
        """Kill it with SIGKILL, if it is running."""
        if self._process is not None:
            self._process.kill()
            self._wait()

    def stop(self) -> None:
        """Stop it with SIGTERM: it hands over its leaderships first."""
        self._running().terminate()
        self._wait()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Freeze its process: its connections stay open, and nothing is answered."""
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        # On a busy machine its other threads continue until one of them has been scheduled to take
        # the signal.
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def known_brokers(self) -> int:
        """Number of brokers that it knows to be alive; 0 if it does not answer."""
        try:
            with socket.create_connection((_HOST, self.port), timeout=2.0) as connection:
                return _ask_brokers(connection)
        except OSError:
            return 0

    def _wait(self) -> None:
        self._running().wait(_STOP_SECONDS_MAX)
        assert self._log is not None
        self._log.close()
        self._process = None

    def _running(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, f"broker {self.node_id} does not run"
        return self._process


class KafkaCluster:
    """A cluster of brokers with the node ids 1, 2, ...

    Args:
        folder: directory of their files.
        brokers: number of brokers: one, or three with three replicas of everything, of which two
            must be in sync.
        properties: further lines of server.properties.
        java: options of the JVM; the default starts quickly, and is slow in the long run.
    """

    def __init__(
        self, folder: Path, brokers: int = 1, properties: str = "", java: Sequence[str] = QUICK_START
    ) -> None:
        ports = iter(free_ports(2 * brokers))
        self.brokers = [
            Broker(folder / f"broker-{node_id}", node_id, (next(ports), next(ports)), java)
            for node_id in range(1, brokers + 1)
        ]
        self.properties = properties

    @property
    def addresses(self) -> list[str]:
        """`host:port` of every broker, running or not."""
        return [each.address for each in self.brokers]

    def broker(self, node_id: int) -> Broker:
        return self.brokers[node_id - 1]

    def start(self) -> None:
        """Format and start all brokers, and wait until they know each other."""
        first, *others = self.brokers
        self._format(first)
        for broker in others:
            self._write_properties(broker)
            _copy_formatted(first, broker)
        archive = class_archive()
        new = None if archive.exists() else archive.with_suffix(f".{os.getpid()}")
        first.start_nowait(archive=new)
        for broker in others:
            broker.start_nowait()
        self.wait_ready()
        if new is not None:
            first.stop()
            with suppress(FileNotFoundError):  # this Java makes none
                new.rename(archive)
            self.start_again()

    def _format(self, broker: Broker) -> None:
        tool = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c"]
        done = subprocess.run(
            [*kafka_java(QUICK_START), *tool, str(self._write_properties(broker))],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_START_SECONDS_MAX,
        )
        assert done.returncode == 0, f"the storage of Kafka could not be formatted: {done.stdout!r}"

    def start_again(self, *node_ids: int) -> None:
        """Restart stopped brokers with their old data (no ids: all stopped ones)."""
        self.start_again_nowait(*node_ids)
        self.wait_ready()

    def start_again_nowait(self, *node_ids: int) -> None:
        """The same without waiting. Call it from the main thread: a broker ends with the thread
        that started it.
        """
        for broker in [self.broker(each) for each in node_ids] or self.brokers:
            if not broker.running:
                broker.start_nowait()

    def wait_ready(self) -> None:
        """Wait until every running broker knows all running ones. The test fails with a log after a
        timeout.
        """
        give_up_at = time.monotonic() + _START_SECONDS_MAX
        running = [each for each in self.brokers if each.running]
        for broker in running:
            while (known := broker.known_brokers()) != len(running):
                assert broker.running, f"broker {broker.node_id} has ended; its log:\n{broker.log()}"
                assert time.monotonic() < give_up_at, (
                    f"broker {broker.node_id} knows {known} of {len(running)} brokers; its log:\n{broker.log()}"
                )
                time.sleep(_ASK_EVERY_S)  # there is no external notification that a broker is ready

    @contextmanager
    def paused(self, node_id: int) -> Iterator[None]:
        """Freeze a broker; afterwards wait until the others know it again."""
        with self.broker(node_id).paused():
            yield
        self.wait_ready()

    def kill(self) -> None:
        """Kill all brokers with SIGKILL."""
        for broker in self.brokers:
            broker.kill()

    def _write_properties(self, broker: Broker) -> Path:
        broker.folder.mkdir(parents=True)
        count = len(self.brokers)
        voters = ",".join(f"{each.node_id}@{_HOST}:{each.controller_port}" for each in self.brokers)
        properties = _SERVER_PROPERTIES.format(
            node_id=broker.node_id,
            voters=voters,
            host=_HOST,
            port=broker.port,
            controller_port=broker.controller_port,
            data=broker.folder / "data",
            session_ms=_SESSION_MS if count > 1 else _LONE_SESSION_MS,
            replicas=count,
            in_sync=min(count, 2),
        )
        path = broker.folder / "server.properties"
        path.write_text(properties + self.properties)
        return path


def _copy_formatted(source: Broker, target: Broker) -> None:
    """Format a broker as another one, which takes no JVM: it differs by its ids."""
    shutil.copytree(source.folder / "data", target.folder / "data")
    properties = target.folder / "data" / "meta.properties"
    text = re.sub(r"^node.id=.*$", f"node.id={target.node_id}", properties.read_text(), flags=re.M)
    directory_id = urlsafe_b64encode(randbytes(16)).decode().rstrip("=")
    properties.write_text(re.sub(r"^directory.id=.*$", f"directory.id={directory_id}", text, flags=re.M))


def free_ports(count: int) -> Sequence[int]:
    """Free ports; all are held until the last is found, so that they differ. No outgoing connection
    gets one of them before it is used.
    """
    with ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < count:
            port = randrange(*_PORTS)
            with suppress(OSError):
                stack.enter_context(socket.socket()).bind((_HOST, port))
                ports.append(port)
        return ports


def _ask_brokers(connection: socket.socket) -> int:
    """The number of brokers in a Metadata response: 4 bytes size, 4 bytes correlation id, then
    their count.
    """
    client_id = b"tests"
    no_topics = struct.pack(">i", 0)
    header = struct.pack(">hhih", _METADATA, _METADATA_VERSION, 1, len(client_id)) + client_id
    request = header + no_topics
    connection.sendall(struct.pack(">i", len(request)) + request)
    answer = b""
    while len(answer) < 12:
        received = connection.recv(4096)
        if not received:
            return 0
        answer += received
    count: int = struct.unpack_from(">i", answer, 8)[0]
    return count
