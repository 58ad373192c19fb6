"""An API of Kafka's wire protocol in one version: the schemas of its request and its response.

Either side is served: a client encodes requests and decodes responses, a server decodes requests
and encodes responses. The `Request` of a client has the methods that aiokafka's connections call.
"""

from collections import namedtuple
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any, NamedTuple

from pixy.errors import Unavailable
from pixy.kafka_protocol.fields import INT16, INT32, STRING, TAGGED_FIELDS, Struct

_HEADER = Struct(("api_key", INT16), ("api_version", INT16), ("correlation_id", INT32), ("client_id", STRING))
_TAGS = Struct(("tags", TAGGED_FIELDS))
_ANSWER_HEADER = Struct(("correlation_id", INT32))


class VersionMismatch(Unavailable):
    """The broker does not support the version of a request."""


class Api:
    """One API in one version.

    Args:
        name, key, version: as in Kafka's message definitions.
        request, response: the schemas.
        flexible: headers and messages have tagged fields (KIP-482).
    """

    def __init__(
        self, name: str, key: int, version: int, request: Struct, response: Struct, *, flexible: bool = True
    ) -> None:
        self.name = name
        self.key = key
        self.version = version
        self.request = request
        self.response = response
        self.flexible = flexible
        self._request_type: Any = namedtuple(f"{name}Request", request.names)  # type: ignore[misc]
        self._response_type: Any = namedtuple(f"{name}Response", response.names)  # type: ignore[misc]

    def __call__(self, *fields: Any) -> "Request":
        """A request with these fields, in the order of the schema."""
        return Request(self, self._request_type(*fields))

    def decode_request(self, reader: BytesIO) -> Any:
        """The fields of a request behind its header, by name.

        Raises:
            ValueError: the bytes are malformed.
        """
        return self._request_type(*self.request.decode(reader))

    def encode_response(self, fields: Sequence[Any]) -> bytes:
        """A response without its header."""
        return self.response.encode(fields)

    def decode(self, reader: BytesIO) -> Any:
        """The fields of a response behind its header, by name.

        Raises:
            ValueError: the bytes are malformed.
        """
        return self._response_type(*self.response.decode(reader))


class RequestHeader(NamedTuple):
    """The header of a request, version 1, or version 2 with tagged fields."""

    api: Api
    correlation_id: int
    client_id: str

    def encode(self) -> bytes:
        api = self.api
        header = _HEADER.encode((api.key, api.version, self.correlation_id, self.client_id))
        return header + _TAGS.encode(({},)) if api.flexible else header

    @classmethod
    def decode(cls, reader: BytesIO, apis: Mapping[tuple[int, int], Api]) -> "RequestHeader":
        """The header of a request to a server.

        Args:
            apis: what the server supports, by API key and version.

        Raises:
            ValueError: the bytes are malformed, or the server does not support the request.
        """
        key, version, correlation_id, client_id = _HEADER.decode(reader)
        api = apis.get((key, version))
        if api is None:
            known = ", ".join(f"{each.name} {each.version}" for each in apis.values())
            raise ValueError(f"API {key} in version {version} is not supported, only {known}")
        if api.flexible:
            _TAGS.decode(reader)
        return cls(api, correlation_id, client_id or "")


class ResponseHeader(NamedTuple):
    """The header of a response, version 0, or version 1 with tagged fields, which are passed over
    by a reader.
    """

    correlation_id: int

    def encode(self, api: Api) -> bytes:
        header = _ANSWER_HEADER.encode((self.correlation_id,))
        return header + _TAGS.encode(({},)) if api.flexible else header


class Request(NamedTuple):
    """A request to be sent by aiokafka's `AIOKafkaConnection.send`, whose names for the methods
    these are.
    """

    api: Api
    fields: Any

    def prepare(self, versions: dict[int, tuple[int, int]]) -> "Request":
        """Check that the broker supports the version.

        Args:
            versions: lowest and highest version that the broker supports, by API key.

        Raises:
            VersionMismatch: it does not.
        """
        key, version = self.api.key, self.api.version
        lowest, highest = versions.get(key, (0, -1))
        if not lowest <= version <= highest:
            raise VersionMismatch(
                f"the broker knows versions {lowest} to {highest} of {self.api.name}, version {version} is needed "
                "(Kafka 3.1 or newer)"
            )
        return self

    def build_request_header(self, correlation_id: int, client_id: str) -> RequestHeader:
        return RequestHeader(self.api, correlation_id, client_id)

    def encode(self) -> bytes:
        return self.api.request.encode(self.fields)

    def parse_response_header(self, reader: BytesIO) -> ResponseHeader:
        (correlation_id,) = _ANSWER_HEADER.decode(reader)
        if self.api.flexible:
            _TAGS.decode(reader)
        return ResponseHeader(correlation_id)

    @property
    def RESPONSE_TYPE(self) -> Api:  # aiokafka's name
        """Decodes the response."""
        return self.api
