"""An API of Kafka's protocol: its messages in every version, as one object."""

import struct
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from pixy.kafka_messages.generated import APIS
from pixy.kafka_messages.primitives import MalformedKafkaMessage, skip_tags

Chunks = list[Any]
"""Buffers whose bytes follow each other."""

_MALFORMED = (struct.error, IndexError, UnicodeDecodeError)
_REQUEST_HEAD = struct.Struct(">hhih")
_CORRELATION = struct.Struct(">i")
_API_VERSIONS = 18


class KafkaHead:
    """The head of a request: versions 1 and 2 of Kafka's header.

    Attributes:
        key, version: of the API.
        correlation_id: of the answer.
        client_id: the client's name for itself, "" if it has none.
        body: position of the message.
    """

    __slots__ = ("body", "client_id", "correlation_id", "key", "version")

    def __init__(self, key: int, version: int, correlation_id: int, client_id: str, body: int) -> None:
        self.key = key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.body = body


class MessageApi:
    """One API in all versions of `schemas.txt`. Its code is imported with the first message.

    Args:
        key: of the API.

    Attributes:
        name, key: as in Kafka's message definitions.
        lowest, highest: versions that can be parsed and written.
        flexible: first version with tagged fields, above `highest` if there is none.
    """

    __slots__ = ("_module_name", "_parse", "_write", "flexible", "highest", "key", "lowest", "name")

    def __init__(self, key: int) -> None:
        self.key = key
        self.name, self._module_name, self.lowest, self.highest, self.flexible = APIS[key]
        # By side and version.
        self._parse: dict[str, Mapping[int, Any]] = {}
        self._write: dict[str, Mapping[int, Any]] = {}

    def parse_request(self, version: int, frame: bytes, begin: int) -> Any:
        """The request in a frame from a byte to its end; its records are views of the frame.

        Raises:
            MalformedKafkaMessage: the bytes are none.
        """
        return self._parsed("request", version, frame, begin)

    def parse_response(self, version: int, frame: bytes, begin: int) -> Any:
        """As `parse_request`, of a response."""
        return self._parsed("response", version, frame, begin)

    def write_request(self, version: int, request: Any, client_id: str, correlation_id: int) -> Chunks:
        """A request with its head and its length in front, in chunks; records are not copied."""
        name = client_id.encode()
        out = bytearray(4)
        out += _REQUEST_HEAD.pack(self.key, version, correlation_id, len(name))
        out += name
        if version >= self.flexible:
            out.append(0)
        return self._written("request", version, request, out)

    def write_response(self, version: int, response: Any, correlation_id: int) -> Chunks:
        """A response with its head and its length in front, in chunks; records are not copied."""
        out = bytearray(4)
        out += _CORRELATION.pack(correlation_id)
        if version >= self.flexible and self.key != _API_VERSIONS:
            # KIP-511: a client that asks for unknown versions reads the old head.
            out.append(0)
        return self._written("response", version, response, out)

    def body_of_response(self, version: int) -> int:
        """Position of the message in a frame of a response without its length."""
        return 5 if version >= self.flexible and self.key != _API_VERSIONS else 4

    def _parsed(self, side: str, version: int, frame: bytes, begin: int) -> Any:
        if not self._parse:
            self._load()
        try:
            return self._parse[side][version](frame, begin)
        except _MALFORMED as error:
            raise MalformedKafkaMessage(f"{self.name} {version}: {error}") from None

    def _written(self, side: str, version: int, message: Any, out: bytearray) -> Chunks:
        if not self._write:
            self._load()
        chunks: Chunks = []
        last = self._write[side][version](message, out, chunks)
        chunks.append(last)
        out[:4] = _CORRELATION.pack(sum(map(len, chunks)) - 4)
        return chunks

    def _load(self) -> None:
        module = import_module(f"pixy.kafka_messages.generated.{self._module_name}")
        self._parse = {"request": module.PARSE_REQUEST, "response": module.PARSE_RESPONSE}
        self._write = {"request": module.WRITE_REQUEST, "response": module.WRITE_RESPONSE}


MESSAGE_APIS: Mapping[int, MessageApi] = {key: MessageApi(key) for key in APIS}
"""All APIs by key."""


def parse_head(frame: bytes) -> KafkaHead:
    """The head of a request in a frame without its length.

    A flexible head ends with tagged fields, where the API and its version are known; of others
    nothing behind the client's name is looked at.

    Raises:
        MalformedKafkaMessage: the bytes are none.
    """
    try:
        key, version, correlation_id, size = _REQUEST_HEAD.unpack_from(frame)
        at = _REQUEST_HEAD.size + max(size, 0)
        if at > len(frame):
            raise MalformedKafkaMessage(f"a client id of {size} bytes in a frame of {len(frame)}")
        client_id = frame[_REQUEST_HEAD.size : at].decode()
        api = MESSAGE_APIS.get(key)
        if api is not None and api.flexible <= version <= api.highest:
            at = skip_tags(frame, at)
    except _MALFORMED as error:
        raise MalformedKafkaMessage(f"head of a request: {error}") from None
    return KafkaHead(key, version, correlation_id, client_id, at)
