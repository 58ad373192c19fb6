"""Carries out an attack from its own process: `python -m tests.judges.attacker NAME HOST PORT
SECONDS`.

Opens the attack's connections and replaces those that end. Prints a line when it begins, and at the
end, as JSON, what it sent and how the server responded. It runs at a lower priority than the daemon
and the witness, because on a real network an attacker has a machine of its own. So on a busy
machine its time may be up before it has seen the required response; then it continues until it has.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from itertools import islice

from pixy.http2 import ErrorCode
from pixy.http2.frames import FRAME_HEAD_BYTES, FrameType, unpack_head
from tests.judges.attacks import ATTACKS, Attack

_NICE = 5
_READ_BYTES = 1 << 20
_GOAWAY_CODE_AT = 4
_PREPARED_CHUNKS = 64
_ANSWER_SECONDS_MAX = 60.0
_FIRST_WINDOW_BYTES = 65_535


class Attacker:
    """The connections of one attack.

    Args:
        attack: the attack.
        host, port: address of the server.
    """

    def __init__(self, attack: Attack, host: str, port: int) -> None:
        self._attack = attack
        self._host, self._port = host, port
        # Built in advance, so that the time is spent on the attack.
        self._prepared = list(islice(attack.chunks(), _PREPARED_CHUNKS))
        # Statistics for the report.
        self.opened = self.sent_bytes = self.ended = 0
        # Set once the server has ended a connection or reset a stream.
        self._answered = asyncio.Event()
        self.goaways: Counter[str] = Counter()
        self.resets: Counter[str] = Counter()

    async def run(self, seconds: float) -> None:
        """Attack for that many seconds, and until the server has responded if it must."""
        async with asyncio.TaskGroup() as group:
            attacks = [
                group.create_task(self._attack_again_and_again()) for _ in range(self._attack.connections)
            ]
            await asyncio.sleep(seconds)
            if self._attack.refused_by is not None or self._attack.ended_by:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._answered.wait(), _ANSWER_SECONDS_MAX)
            for attack in attacks:
                attack.cancel()

    async def _attack_again_and_again(self) -> None:
        while True:
            with contextlib.suppress(ConnectionError):
                await self._attack_once()

    async def _attack_once(self) -> None:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        self.opened += 1
        window = _Window(_FIRST_WINDOW_BYTES if self._attack.windowed else None)
        reading = asyncio.create_task(self._read(reader, window))
        sending = asyncio.create_task(self._send(writer, window))
        try:
            await asyncio.wait({reading})
            self.ended += 1
            self._answered.set()
        finally:
            reading.cancel()
            sending.cancel()
            await asyncio.gather(reading, sending, return_exceptions=True)
            writer.transport.abort()

    async def _send(self, writer: asyncio.StreamWriter, window: "_Window") -> None:
        async for chunk in self._chunks():
            await window.take(len(chunk))
            writer.write(chunk)
            self.sent_bytes += len(chunk)
            await writer.drain()
            await asyncio.sleep(self._attack.pause_s)

    async def _chunks(self) -> AsyncIterator[bytes]:
        for chunk in self._prepared:
            yield chunk
        # A full round over the connections takes long, and the server's frames have to be read
        # meanwhile.
        for number, chunk in enumerate(self._attack.chunks()):
            if number < len(self._prepared):
                await asyncio.sleep(0)
            else:
                yield chunk

    async def _read(self, reader: asyncio.StreamReader, window: "_Window") -> None:
        """Read until the connection ends, and record the reason."""
        if not self._attack.reads:
            await asyncio.Event().wait()
        rest = b""
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(_READ_BYTES):
                rest = self._note(rest + chunk, window)

    def _note(self, received: bytes, window: "_Window") -> bytes:
        """Process whole frames; returns the remaining bytes."""
        at = 0
        while len(received) - at >= FRAME_HEAD_BYTES:
            head, _, stream_id = unpack_head(received, at)
            payload_at = at + FRAME_HEAD_BYTES
            if payload_at + (head >> 8) > len(received):
                break
            if head & 0xFF == FrameType.GOAWAY:
                self.goaways[_code(received, payload_at + _GOAWAY_CODE_AT)] += 1
            elif head & 0xFF == FrameType.RST_STREAM:
                self.resets[_code(received, payload_at)] += 1
                if self._attack.refused_by is not None:
                    self._answered.set()
            elif head & 0xFF == FrameType.WINDOW_UPDATE and not stream_id:
                window.open(int.from_bytes(received[payload_at : payload_at + 4], "big"))
            at = payload_at + (head >> 8)
        return received[at:]


class _Window:
    """The connection's send window.

    Args:
        size: initial size in bytes, None for an attacker that ignores flow control.
    """

    def __init__(self, size: int | None) -> None:
        self._left = size
        self._opened = asyncio.Event()

    def open(self, size: int) -> None:
        """Process a WINDOW_UPDATE."""
        if self._left is not None:
            self._left += size
            self._opened.set()

    async def take(self, size: int) -> None:
        """Wait until that many bytes may be sent. Frame headers count as data."""
        if self._left is not None:
            while self._left < size:
                self._opened.clear()
                await self._opened.wait()
            self._left -= size


def _code(received: bytes, at: int) -> str:
    return ErrorCode(int.from_bytes(received[at : at + 4], "big")).name


def main(arguments: Sequence[str]) -> None:
    """Carry out the attack named on the command line."""
    name, host, port, seconds = arguments
    os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    attacker = Attacker(ATTACKS[name], host, int(port))
    print("attacking", flush=True)
    asyncio.run(attacker.run(float(seconds)))
    report = {
        "opened": attacker.opened,
        "ended": attacker.ended,
        "sent_bytes": attacker.sent_bytes,
        "goaways": attacker.goaways,
        "resets": attacker.resets,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1:])
