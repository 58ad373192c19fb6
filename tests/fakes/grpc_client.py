"""A gRPC client on h2 under full control: it opens no window, responds to nothing by itself and can
stop at any byte.
"""

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.settings import SettingCodes, Settings

SECONDS = 10.0
_HEAD_BYTES = 9
_GOAWAY = 7


class Goaway(NamedTuple):
    """Contents of a GOAWAY from the server."""

    last_stream_id: int
    code: int
    debug: bytes


def prefixed(*messages: bytes, flag: int = 0) -> bytes:
    """Length-prefixed messages."""
    return b"".join(struct.pack(">BI", flag, len(message)) + message for message in messages)


def messages_in(body: bytes | bytearray) -> list[tuple[int, bytes]]:
    """Flags and payloads of the messages in a body, which must be whole."""
    found, at = [], 0
    while at < len(body):
        flag, length = struct.unpack_from(">BI", body, at)
        assert at + 5 + length <= len(body)
        found.append((flag, bytes(body[at + 5 : at + 5 + length])))
        at += 5 + length
    return found


@dataclass
class Answer:
    """Everything received on one stream."""

    headers: dict[str, str] = field(default_factory=dict)
    trailers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    ended: bool = False
    reset: int | None = None

    @property
    def status(self) -> int:
        """grpc-status, in headers or trailers."""
        return int({**self.headers, **self.trailers}["grpc-status"])

    @property
    def message(self) -> str:
        """grpc-message, undecoded."""
        return {**self.headers, **self.trailers}.get("grpc-message", "")


class RawClient:
    """One connection to a server.

    Args:
        reader, writer: streams of the connection.
        window: initial window size of each stream.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, window: int, authority: str
    ) -> None:
        self._reader = reader
        self.writer = writer
        self._authority = authority
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        initial = {SettingCodes.INITIAL_WINDOW_SIZE: window, SettingCodes.ENABLE_PUSH: 0}
        self.h2.local_settings = Settings(client=True, initial_values=initial)
        self.h2.initiate_connection()
        self.answers: dict[int, Answer] = {}
        # h2 would reject everything after a GOAWAY, so GOAWAY frames are not passed to it.
        self.goaways: list[Goaway] = []
        self._unread = b""
        self.closed = False

    def send(self) -> None:
        """Send h2's pending output."""
        self.writer.write(self.h2.data_to_send())

    def begin(
        self, path: str, fields: Sequence[tuple[str, str]] = (), *, method: str = "POST", end: bool = False
    ) -> int:
        """Send the header section of a request; returns its stream id."""
        stream_id = self.h2.get_next_available_stream_id()
        usual = (
            []
            if any(name == "content-type" for name, _ in fields)
            else [("content-type", "application/grpc")]
        )
        head = [(":method", method), (":scheme", "http"), (":path", path), (":authority", self._authority)]
        self.h2.send_headers(stream_id, [*head, *usual, ("te", "trailers"), *fields], end_stream=end)
        self.answers[stream_id] = Answer()
        self.send()
        return stream_id

    def request(self, path: str, message: bytes, fields: Sequence[tuple[str, str]] = ()) -> int:
        """Send a whole request with one message; returns its stream id."""
        stream_id = self.begin(path, fields)
        self.data(stream_id, prefixed(message), end=True)
        return stream_id

    def data(self, stream_id: int, data: bytes, *, end: bool = False) -> None:
        """Send part of a request body."""
        self.h2.send_data(stream_id, data, end_stream=end)
        self.send()

    def reset(self, stream_id: int) -> None:
        """Cancel a request."""
        self.h2.reset_stream(stream_id, 8)
        self.send()

    def open_window(self, stream_id: int, size: int) -> None:
        """Open the window of a stream, or of the connection for stream 0."""
        self.h2.increment_flow_control_window(size, stream_id or None)
        self.send()

    async def upload(self, stream_id: int, body: bytes, *, end: bool = True) -> None:
        """Send a request body of any size as the windows allow, until it is sent or answered."""
        at = 0
        async with asyncio.timeout(SECONDS):
            while at < len(body) and not self.answers[stream_id].ended:
                size = min(self.h2.local_flow_control_window(stream_id), 16_384, len(body) - at)
                if size:
                    self.data(stream_id, body[at : at + size], end=end and at + size == len(body))
                    at += size
                else:
                    await self.read_once()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Read until a condition holds; fails if the server closes the connection before."""
        async with asyncio.timeout(SECONDS):
            while not condition():
                assert not self.closed, "the server has closed the connection"
                await self.read_once()

    async def until_closed(self) -> None:
        """Read until the server closes the connection."""
        async with asyncio.timeout(SECONDS):
            while not self.closed:
                await self.read_once()

    async def answer(self, stream_id: int) -> Answer:
        """Read until a stream has ended."""
        answer = self.answers[stream_id]
        await self.until(lambda: answer.ended or answer.reset is not None)
        return answer

    async def call(self, path: str, message: bytes, fields: Sequence[tuple[str, str]] = ()) -> Answer:
        """Make a unary call."""
        return await self.answer(self.request(path, message, fields))

    async def read_once(self) -> None:
        """Read available bytes, at least one."""
        try:
            chunk = await self._reader.read(65536)
        except ConnectionError:
            chunk = b""
        self.closed = not chunk
        self._unread += chunk
        while len(self._unread) >= _HEAD_BYTES:
            end = _HEAD_BYTES + int.from_bytes(self._unread[:3])
            if len(self._unread) < end:
                break
            frame, self._unread = self._unread[:end], self._unread[end:]
            if frame[3] == _GOAWAY:
                last_stream_id, code = struct.unpack_from(">II", frame, _HEAD_BYTES)
                self.goaways.append(Goaway(last_stream_id, code, frame[17:]))
                continue
            for event in self.h2.receive_data(frame):
                self._take(event)
        with suppress(ConnectionError):
            self.send()

    def _take(self, event: Event) -> None:
        stream_id = getattr(event, "stream_id", None)
        answer = self.answers.get(stream_id or 0)
        if answer is None:
            return
        if isinstance(event, ResponseReceived):
            answer.headers = _strings(event.headers)
        elif isinstance(event, TrailersReceived):
            answer.trailers = _strings(event.headers)
        elif isinstance(event, DataReceived):
            answer.body += event.data or b""
        elif isinstance(event, StreamEnded):
            answer.ended = True
        elif isinstance(event, StreamReset):
            answer.reset = int(event.error_code or 0)


def _strings(headers: object) -> dict[str, str]:
    assert isinstance(headers, list)
    return {str(name): str(value) for name, value in headers}


@asynccontextmanager
async def open_client(
    address: str, *, window: int = 65_535, tls: ssl.SSLContext | None = None
) -> AsyncIterator[RawClient]:
    """Connect to `host:port` or `unix:path`."""
    if address.startswith("unix:"):
        reader, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
    else:
        host, port = address.rsplit(":", 1)
        name = "localhost" if tls is not None else None
        reader, writer = await asyncio.open_connection(host, int(port), ssl=tls, server_hostname=name)
    client = RawClient(reader, writer, window, "localhost")
    client.send()
    try:
        yield client
    finally:
        writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()
