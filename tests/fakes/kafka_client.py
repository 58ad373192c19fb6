"""A client of Kafka's protocol that sends what it is told to, one request or many."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pixy.kafka_messages import MESSAGE_APIS

_LENGTH = struct.Struct(">i")


class RawKafkaClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._correlation_id = 0

    async def call(self, key: int, version: int, request: Any) -> Any:
        """The response to a request."""
        self.send(key, version, request)
        return await self.response(key, version)

    def send(self, key: int, version: int, request: Any) -> None:
        """Send a request."""
        self._correlation_id += 1
        chunks = MESSAGE_APIS[key].write_request(version, request, "raw", self._correlation_id)
        self.writer.writelines(chunks)

    async def response(self, key: int, version: int) -> Any:
        """The next response, which is one of this API and version."""
        frame = await self.frame()
        api = MESSAGE_APIS[key]
        return api.parse_response(version, frame, api.body_of_response(version))

    async def frame(self) -> bytes:
        """The next response without its length."""
        async with asyncio.timeout(10):
            (size,) = _LENGTH.unpack(await self.reader.readexactly(_LENGTH.size))
            return await self.reader.readexactly(size)

    async def ended(self) -> bool:
        """True when the server has closed, False if it says something instead."""
        async with asyncio.timeout(10):
            return not await self.reader.read(1)


@asynccontextmanager
async def kafka_client(address: str) -> AsyncIterator[RawKafkaClient]:
    """A client of a server."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield RawKafkaClient(reader, writer)
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
