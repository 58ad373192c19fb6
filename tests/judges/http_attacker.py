"""Carries out an attack over HTTP from its own process: `python -m tests.judges.http_attacker NAME
HOST PORT SECONDS`. See `attacker`.
"""

import asyncio
import contextlib
import json
import os
import re
import sys
from collections import Counter
from itertools import islice

from tests.judges.http_attacks import HTTP_ATTACKS, HttpAttack

_NICE = 5
_READ_BYTES = 1 << 20
_PREPARED_CHUNKS = 64
_ANSWER_SECONDS_MAX = 60.0
_STATUS = re.compile(rb"HTTP/1\.1 ([0-9]{3}) ")
_STATUS_BYTES = 13


class HttpAttacker:
    """The connections of one attack.

    Args:
        attack: the attack.
        host, port: address of the server.
    """

    def __init__(self, attack: HttpAttack, host: str, port: int) -> None:
        self._attack = attack
        self._host, self._port = host, port
        # Built in advance, so that the time is spent on the attack.
        self._prepared = list(islice(attack.chunks(), _PREPARED_CHUNKS))
        # Statistics for the report.
        self.opened = self.sent_bytes = self.ended = 0
        self.statuses: Counter[str] = Counter()
        # Set once the server has answered, or ended a connection if it must.
        self._answered = asyncio.Event()

    async def run(self, seconds: float) -> None:
        """Attack for that many seconds, and until the server has answered if it must."""
        async with asyncio.TaskGroup() as group:
            attacks = [
                group.create_task(self._attack_again_and_again()) for _ in range(self._attack.connections)
            ]
            await asyncio.sleep(seconds)
            if self._attack.statuses:
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
        reading = asyncio.create_task(self._read(reader))
        sending = asyncio.create_task(self._send(writer))
        try:
            await asyncio.wait({reading})
            self.ended += 1
            self._answered.set()
        finally:
            reading.cancel()
            sending.cancel()
            await asyncio.gather(reading, sending, return_exceptions=True)
            writer.transport.abort()

    async def _send(self, writer: asyncio.StreamWriter) -> None:
        for number, chunk in enumerate(self._attack.chunks()):
            writer.write(self._prepared[number] if number < len(self._prepared) else chunk)
            self.sent_bytes += len(chunk)
            await writer.drain()
            await asyncio.sleep(self._attack.pause_s)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Read until the connection ends, and count the statuses."""
        if not self._attack.reads:
            await asyncio.Event().wait()
        rest = b""
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(_READ_BYTES):
                received = rest + chunk
                for found in _STATUS.finditer(received):
                    self.statuses[found[1].decode()] += 1
                    if not self._attack.ends:
                        self._answered.set()
                # Of a status line that is cut, never of one that was counted.
                rest = received[-_STATUS_BYTES + 1 :]
                if _STATUS.search(rest):
                    rest = b""


async def _main() -> None:
    name, host, port, seconds = sys.argv[1:]
    os.nice(_NICE)
    attacker = HttpAttacker(HTTP_ATTACKS[name], host, int(port))
    print("attacking", flush=True)
    await attacker.run(float(seconds))
    report = {
        "opened": attacker.opened,
        "ended": attacker.ended,
        "sent_bytes": attacker.sent_bytes,
        "statuses": attacker.statuses,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    asyncio.run(_main())
