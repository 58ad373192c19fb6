"""An honest client on a connection of its own, beside an attack: how long its calls take, and how much memory the daemon has meanwhile.

It calls at fixed times, whether or not the calls before were answered, and a call's time counts from when it was due: so a server that
stands still for a second is late for all calls of that second, not for one.

Other work on the machine makes calls late as well. So the daemon and who watches go first, where that is allowed. The time is cut into
windows, and of these the half counts in which the daemon had to wait least for a processor; the kernel counts that
(`/proc/<pid>/schedstat`). The median of their 99th percentiles is what is seen.
"""

import os
import select
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from pixy.http2.frames import ACK, END_STREAM, FRAME_HEAD_BYTES, FrameType, frame, unpack_head, window_update
from tests.integration.daemon import Daemon
from tests.judges.attacks import GREETING, call_frames

__all__ = ["WINDOW_S", "Observation", "Witness"]

WINDOW_S = 0.3
"""Long enough for a 99th percentile that is not the worst call."""
_PERIOD_S = 0.002
_CALLS_PER_LOOK_AT_MEMORY = 10
_ANSWER_SECONDS_MAX = 30.0
_check_health = call_frames("/grpc.health.v1.Health/Check", b"")


class _Window(NamedTuple):
    """The share of its working time that the daemon waited for a processor, and the 99th percentile of the calls' times."""

    waited: float
    p99_s: float


class Observation(NamedTuple):
    """What was seen in some time: the 99th percentile of the calls' times in a usual window, and the most memory."""

    p99_s: float
    rss_bytes_max: int


@contextmanager
def _ahead(pid: int) -> Iterator[None]:
    """Let a process go in front of everything else on the machine, but for each other; only its first thread, which has the event loop."""
    policy, parameters = os.sched_getscheduler(pid), os.sched_getparam(pid)
    with suppress(PermissionError):
        os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(pid, policy, parameters)


class Witness:
    """A client with one connection.

    Args:
        daemon: whom it calls.
    """

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        host, port = daemon.address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(GREETING + window_update(0, 2**30))
        self._received = b""
        self._next_stream_id = 1
        # When the calls were due that are not answered, by stream.
        self._due_of: dict[int, float] = {}
        self._times_s: list[float] = []
        self._rss_bytes_max = 0

    def __enter__(self) -> "Witness":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def watch(self, windows: int) -> Observation:
        """Call for the time of so many windows of `WINDOW_S`, and wait for the last answers.

        A daemon that stands still makes a window longer. Then there are fewer, so that none is behind the end of an attack.
        """
        self._rss_bytes_max = 0
        seen: list[_Window] = []
        until = time.monotonic() + (windows - 0.5) * WINDOW_S
        with _ahead(self._daemon.process.pid), _ahead(os.getpid()):
            while not seen or time.monotonic() < until:
                seen.append(self._watch_window())
        seen.sort()
        calmest = seen[: (len(seen) + 1) // 2]
        return Observation(statistics.median(window.p99_s for window in calmest), self._rss_bytes_max)

    def _watch_window(self) -> _Window:
        self._times_s = []
        worked_ns, waited_ns = self._schedule()
        calls = 0
        begun = due = time.monotonic()
        while due < begun + WINDOW_S:
            while (left_s := due - time.monotonic()) > 0:
                self._receive(left_s)
            self._call(due)
            due += _PERIOD_S
            calls += 1
            if calls % _CALLS_PER_LOOK_AT_MEMORY == 1:
                self._rss_bytes_max = max(self._rss_bytes_max, self._daemon.rss_bytes())
        while self._due_of:
            assert self._receive(_ANSWER_SECONDS_MAX), "a call has no answer"
        self._times_s.sort()
        assert len(self._times_s) == calls
        worked_ns, waited_ns = (
            now - then for now, then in zip(self._schedule(), (worked_ns, waited_ns), strict=True)
        )
        return _Window(waited_ns / (worked_ns + waited_ns + 1), self._times_s[calls * 99 // 100])

    def _schedule(self) -> tuple[int, int]:
        """For how many nanoseconds the daemon's event loop has worked so far, and waited for a processor."""
        worked_ns, waited_ns, _ = Path(f"/proc/{self._daemon.process.pid}/schedstat").read_text().split()
        return int(worked_ns), int(waited_ns)

    def _call(self, due: float) -> None:
        self._due_of[self._next_stream_id] = due
        self._socket.sendall(_check_health(self._next_stream_id))
        self._next_stream_id += 2

    def _receive(self, seconds: float) -> bool:
        """Take what comes first within this time; returns whether something came."""
        readable, _, _ = select.select([self._socket], [], [], seconds)
        if readable:
            chunk = self._socket.recv(65_536)
            assert chunk, "the daemon has closed the connection of a client that does no harm"
            self._received += chunk
            self._take_frames()
        return bool(readable)

    def _take_frames(self) -> None:
        """Look at the frames that are whole."""
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
                self._times_s.append(time.monotonic() - self._due_of.pop(stream_id))
            self._received = self._received[end:]
