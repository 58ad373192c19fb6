"""Status of a call: the codes of gRPC, the error that carries one, and its fields on the wire.

`grpc-message` is UTF-8, percent-encoded where it is not printable ASCII (PROTOCOL-HTTP2.md,
Status-Message). It is cut to a size that any client takes as a header.
"""

from enum import IntEnum
from string import printable
from urllib.parse import quote

from pixy.http2 import Field
from pixy.rpc.metadata import Metadata, encode_binary, encode_metadata

_MESSAGE_CHARACTERS_MAX = 1024
_SAFE = "".join(character for character in printable if character.isprintable() and character != "%")

OK_TRAILERS: list[Field] = [(b"grpc-status", b"0")]
"""Trailer section of a call that succeeded, before the metadata of its handler."""


class Status(IntEnum):
    """Status codes of gRPC (statuscodes.md)."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class GrpcError(Exception):
    """Ends a call with another status than OK.

    Args:
        status: the code; any number is sent as it is.
        message: for the client.
        details: a serialized google.rpc.Status, b"" for none.
        metadata: sent in the trailer section.
        limit: the limit that was reached, for the log; empty for an error of another kind.

    Raises:
        ValueError: the metadata cannot be sent.
    """

    def __init__(
        self,
        status: int,
        message: str,
        details: bytes = b"",
        metadata: Metadata = (),
        limit: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.details = details
        self.fields = encode_metadata(metadata)
        self.limit = limit


def status_fields(error: GrpcError) -> list[Field]:
    """Trailer section of a call that failed."""
    fields: list[Field] = [(b"grpc-status", b"%d" % error.status)]
    if error.message:
        fields.append((b"grpc-message", _encode_message(error.message)))
    if error.details:
        fields.append((b"grpc-status-details-bin", encode_binary(error.details)))
    return fields + error.fields


def _encode_message(message: str) -> bytes:
    encoded = quote(message[:_MESSAGE_CHARACTERS_MAX], safe=_SAFE, errors="replace")
    # A field value must not begin or end with a space.
    inner = encoded.strip(" ")
    left = len(encoded) - len(encoded.lstrip(" "))
    return f"{'%20' * left}{inner}{'%20' * (len(encoded) - left - len(inner))}".encode()
