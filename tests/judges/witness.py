"""An honest client during an attack: it checks that its calls are answered, and observes the
daemon's memory.

It calls at fixed times, whether or not earlier calls were answered.
"""

import json
import select
import signal
import socket
import time
from pathlib import Path
from typing import NamedTuple

from pixy.http2.frames import ACK, END_STREAM, FRAME_HEAD_BYTES, FrameType, frame, unpack_head, window_update
from tests.fakes.waiting import until_blocking
from tests.integration.daemon import Daemon
from tests.judges.attacks import GREETING, call_frames

_PERIOD_S = 0.002
_CALLS_PER_LOOK_AT_MEMORY = 10
_ANSWER_SECONDS_MAX = 30.0
_check_health = call_frames("/grpc.health.v1.Health/Check", b"")


class Observation(NamedTuple):
    """Observations over a period.

    Attributes:
        rss_bytes_max: peak resident memory of the daemon.
        worked_s: processor time of its event loop.
        long_s: processor time of each long iteration of the loop.
    """

    rss_bytes_max: int
    worked_s: float
    long_s: list[float]


class Witness:
    """A client with one connection.

    Args:
        daemon: the daemon to call; its program is `watched`.
        turns: file with the daemon's measurements.
    """

    def __init__(self, daemon: Daemon, turns: Path) -> None:
        self._daemon = daemon
        self._turns = turns
        host, port = daemon.address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(GREETING + window_update(0, 2**30))
        self._received = b""
        self._next_stream_id = 1
        self._unanswered: set[int] = set()

    def __enter__(self) -> "Witness":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def watch(self, seconds: float) -> Observation:
        """Call for that many seconds, and wait for the last responses."""
        self._daemon.signal(signal.SIGUSR2)
        rss_bytes_max = calls = 0
        begun = due = time.monotonic()
        while due < begun + seconds:
            while (left_s := due - time.monotonic()) > 0:
                self._receive(left_s)
            self._call()
            due += _PERIOD_S
            calls += 1
            if calls % _CALLS_PER_LOOK_AT_MEMORY == 1:
                rss_bytes_max = max(rss_bytes_max, self._daemon.rss_bytes())
        while self._unanswered:
            assert self._receive(_ANSWER_SECONDS_MAX), "a call has no answer"
        self._daemon.signal(signal.SIGUSR2)
        return Observation(rss_bytes_max, *self._take_turns())

    def _take_turns(self) -> tuple[float, list[float]]:
        until_blocking(self._turns.exists, self._daemon.log)
        worked_s, long_s = json.loads(self._turns.read_text())
        self._turns.unlink()
        return worked_s, long_s

    def _call(self) -> None:
        self._unanswered.add(self._next_stream_id)
        self._socket.sendall(_check_health(self._next_stream_id))
        self._next_stream_id += 2

    def _receive(self, seconds: float) -> bool:
        """Process the next input within this time; returns whether there was any."""
        readable, _, _ = select.select([self._socket], [], [], seconds)
        if readable:
            chunk = self._socket.recv(65_536)
            assert chunk, "the daemon has closed the connection of a client that does no harm"
            self._received += chunk
            self._take_frames()
        return bool(readable)

    def _take_frames(self) -> None:
        """Process whole frames."""
        while len(self._received) >= FRAME_HEAD_BYTES:
            head, flags, stream_id = unpack_head(self._received, 0)
            end = FRAME_HEAD_BYTES + (head >> 8)
            if len(self._received) < end:
                break
            kind = head & 0xFF
            assert kind not in (FrameType.GOAWAY, FrameType.RST_STREAM), (
                f"the daemon sent {FrameType(kind).name}"
            )
            if kind == FrameType.PING and not flags & ACK:
                self._socket.sendall(frame(FrameType.PING, ACK, 0, self._received[FRAME_HEAD_BYTES:end]))
            if kind == FrameType.HEADERS and flags & END_STREAM:
                self._unanswered.remove(stream_id)
            self._received = self._received[end:]
