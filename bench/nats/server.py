"""NATS JetStream beside pixy, if `nats-server` is installed: one server that syncs each message, on
a free port, stopped by its process id.

go install github.com/nats-io/nats-server/v2@latest
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.kit.load import Level, Load
from bench.kit.processes import load_core, pinned, started

_CONFIG = 'listen: "127.0.0.1:-1"\njetstream {{ store_dir: "{folder}", sync_interval: {sync_interval} }}\n'
_LISTENS = "Listening for client connections on "
_SECONDS_MAX = 120.0


def find_nats() -> str | None:
    """Path of the server's binary; None if not installed."""
    places = [os.environ.get("PATH", ""), os.environ.get("GOBIN", ""), str(Path.home() / "go" / "bin")]
    return shutil.which("nats-server", path=os.pathsep.join(places))


class Nats:
    """A running server."""

    def __init__(self, address: str) -> None:
        self._address = address

    def fill(self, count: int) -> None:
        """Create the streams, and fill the one to pull from."""
        self._client("fill", str(count))

    def replicate(self, replicas: int) -> str:
        """Create the stream to publish to, with so many replicas; returns its leader."""
        return self._client("replicate", str(replicas)).strip()

    def publish(self, level: Level, seconds: float) -> Load:
        """Load with messages that are answered once they are on disk."""
        return self._load("publish", level, seconds)

    def pull(self, level: Level, seconds: float) -> Load:
        """Load with requests for one message each, which is acked on receipt."""
        self._client("rewind")
        return self._load("pull", level, seconds)

    def _load(self, kind: str, level: Level, seconds: float) -> Load:
        numbers = (str(level.connections), str(level.streams), str(seconds))
        return Load(**json.loads(self._client(kind, *numbers)))

    def _client(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "bench.nats.client", self._address, *arguments]
        return subprocess.run(
            pinned(load_core(), command),
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=_SECONDS_MAX,
        ).stdout


@contextmanager
def nats(binary: str, folder: Path, core: int, filled: int) -> Iterator[Nats]:
    """A server that syncs each message, with `filled` messages to pull and its data in the existing
    directory `folder`.
    """
    # Syncing each of these as well would take minutes.
    with _server(binary, folder, core, "1m") as filling:
        filling.fill(filled)
    with _server(binary, folder, core, "always") as server:
        yield server


@contextmanager
def _server(binary: str, folder: Path, core: int, sync_interval: str) -> Iterator[Nats]:
    config = folder / "nats.conf"
    config.write_text(_CONFIG.format(folder=folder / "nats", sync_interval=sync_interval))
    command = pinned(core, [binary, "-c", str(config)])
    with started(command, _LISTENS, stream="stderr") as (_, line, _):
        yield Nats(line.split(_LISTENS)[1].split()[0])
