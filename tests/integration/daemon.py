"""A real daemon in a process of its own, for tests from outside.

Each has a directory with its configuration, data and log. It listens on a free port of 127.0.0.1; a
daemon restarted after `stop` or `kill` has the same port and data.
"""

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

import grpc
import yaml

from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from tests.integration.forked import ForkedCommand

if TYPE_CHECKING:
    from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyAsyncStub

PROGRAM = ("-m", "pixy")
START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 120.0

CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),  # tests handle failed calls themselves
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)


def proxy_config(**sections: Any) -> dict[str, Any]:
    """A configuration with one cluster with these options."""
    return {"proxies": {"default": sections}}


Process = subprocess.Popen[str] | ForkedCommand


class Daemon:
    """`pixy serve` as a process.

    Args:
        folder: directory of its files.
        config: options that differ from the defaults. `grpc_addr`, `tcp_addr`, `kafka_addr` and
            `data_dir` are set here unless given, and there is no management listener.
        program: Python arguments of the program.
        prefix: command and arguments that execute the program.

    Attributes:
        forks: in tests the command is forked and not executed, see `forked`.
    """

    forks = "pytest" in sys.modules

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any] | None = None,
        program: Sequence[str] = PROGRAM,
        prefix: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self._program = program
        self._prefix = prefix
        self.config: dict[str, Any] = {
            "grpc_addr": "127.0.0.1:0",
            "management_addr": "",
            "tcp_addr": "",
            "kafka_addr": "",
            "data_dir": str(folder / "data"),
            **(config or {}),
        }
        self.addresses: dict[str, str] = {}
        self._process: Process | None = None
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader: threading.Thread | None = None
        self._channels: list[grpc.Channel] = []
        self._log: IO[bytes] | None = None

    def __enter__(self) -> "Daemon":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    # --- lifecycle --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start, and wait until it is ready. The test fails with its log otherwise."""
        self.start_nowait()
        self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until it is ready. The test fails with its log otherwise."""
        line = self.next_line(START_SECONDS_MAX)
        if line is None or not line.startswith("pixy ready "):
            self.kill()
            raise AssertionError(f"the daemon did not get ready but printed {line!r}; its log:\n{self.log()}")
        self.addresses = dict(door.split("=", 1) for door in line.split()[2:])
        if "grpc" in self.addresses:
            self.config["grpc_addr"] = self.addresses["grpc"]

    def start_nowait(self) -> None:
        """Start the process without waiting for it."""
        assert self._process is None, "it runs already"
        self.folder.mkdir(parents=True, exist_ok=True)
        config_file = self.folder / "pixy.yaml"
        config_file.write_text(yaml.safe_dump(self.config, sort_keys=False))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PIXY_")}
        self._log = (self.folder / "log").open("ab")
        arguments = ["serve", "--config", str(config_file)]
        process: Process
        if self.forks and not self._prefix and self._program == PROGRAM:
            process = ForkedCommand(arguments, self.folder / "log", environment, self.folder)
        else:
            process = subprocess.Popen(
                [*self._prefix, sys.executable, *self._program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                env=environment,
                cwd=self.folder,
            )
        self._process = process
        self._lines = queue.SimpleQueue()
        self._reader = threading.Thread(target=_read_lines, args=(process, self._lines))
        self._reader.start()

    def next_line(self, timeout: float) -> str | None:
        """The next line of its standard output; None at the end.

        Raises:
            queue.Empty: no line in time.
        """
        return self._lines.get(timeout=timeout)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def wait(self, timeout: float = STOP_SECONDS_MAX) -> int:
        """Wait for its exit; returns the exit code."""
        process = self.process
        code = process.wait(timeout)
        self._release()
        return code

    def stop(self) -> None:
        """Stop it with SIGTERM. The test fails if the exit is not clean."""
        self.close_channels()
        self.signal(signal.SIGTERM)
        code = self.wait()
        assert code == 0, f"the daemon ended with {code}; its log:\n{self.log()}"

    def kill(self) -> None:
        """Kill it with SIGKILL, if it is running."""
        self.close_channels()
        if self._process is not None:
            self._process.kill()
            self.wait()

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    def _release(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        assert self._reader is not None
        assert self._log is not None
        self._reader.join()
        self._process.stdout.close()
        self._log.close()
        self._process = None

    # --- inspection -------------------------------------------------------------------------------

    @property
    def process(self) -> Process:
        """The running process."""
        assert self._process is not None, "it does not run"
        return self._process

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def address(self) -> str:
        """`host:port` of its gRPC server."""
        return self.addresses["grpc"]

    @property
    def data(self) -> Path:
        """Directory of the cluster `default`."""
        return Path(self.config["data_dir"]) / "default"

    def log(self) -> str:
        """Its complete log."""
        return re.sub(r"\x1b\[[0-9;]*m", "", (self.folder / "log").read_text())

    def rss_bytes(self) -> int:
        """Its resident memory."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    # --- clients ----------------------------------------------------------------------------------

    def channel(self, target: str | None = None) -> grpc.Channel:
        """A new connection, closed when the daemon stops."""
        channel = grpc.insecure_channel(target or self.address, options=CHANNEL_OPTIONS)
        self._channels.append(channel)
        return channel

    def stub(self) -> KafkaPixyStub:
        """A client with a connection of its own."""
        return KafkaPixyStub(self.channel())

    def aio_channel(self) -> grpc.aio.Channel:
        """A new connection for the running event loop; the caller closes it."""
        return grpc.aio.insecure_channel(self.address, options=CHANNEL_OPTIONS)

    @staticmethod
    def aio_stub(channel: grpc.aio.Channel) -> "KafkaPixyAsyncStub":
        """A client on that connection."""
        return KafkaPixyStub(channel)

    def close_channels(self) -> None:
        for channel in self._channels:
            channel.close()
        self._channels.clear()


def _read_lines(process: Process, lines: "queue.SimpleQueue[str | None]") -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line.rstrip("\n"))
    lines.put(None)


def wait_until_refused(daemon: Daemon) -> tuple[int, str]:
    """Start a daemon that must fail; returns its exit code and log."""
    daemon.start_nowait()
    try:
        line = daemon.next_line(START_SECONDS_MAX)
        assert line is None, f"it must not start, but printed {line!r}"
        return daemon.wait(START_SECONDS_MAX), daemon.log()
    finally:
        daemon.kill()
