"""Custom metadata in header and trailer sections (PROTOCOL-HTTP2.md, Custom-Metadata).

A name that ends in `-bin` has a value of any bytes, in base64 on the wire, with or without padding;
several values may be joined by commas. Any other value is printable ASCII without spaces at its
ends. Names that begin with `grpc-`, and the fields of HTTP itself, are not metadata.
"""

import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Sequence

from pixy.http2 import Field

Metadata = Sequence[tuple[str, str | bytes]]
"""Names in lower case with their values: bytes where the name ends in `-bin`, text where not."""

_BINARY = b"-bin"
_RESERVED_PREFIX = b"grpc-"
_NAME = re.compile("[a-z0-9_.-]+")
_TEXT = re.compile("(?:[!-~](?:[ -~]*[!-~])?)?")
"""ASCII-Value of PROTOCOL-HTTP2.md.

White space at the ends would not be a value of HTTP/2 (RFC 9113 §8.2.1).
"""
_RESERVED = frozenset((b"content-type", b"te", b"host", b"content-length"))


def encode_metadata(metadata: Metadata) -> list[Field]:
    """Metadata as fields to send.

    Raises:
        ValueError: a name is reserved or malformed; a value has another type than its name demands,
            or is text that cannot be sent.
    """
    fields: list[Field] = []
    for key, value in metadata:
        if not _NAME.fullmatch(key):
            raise ValueError(f"the name {key!r} must be one or more of a-z, 0-9, _, - and .")
        name = key.encode("ascii")
        if name.startswith(_RESERVED_PREFIX) or name in _RESERVED:
            raise ValueError(f"the name {key} is reserved")
        if name.endswith(_BINARY) is not isinstance(value, bytes):
            raise ValueError(
                f"the value of {key} has the wrong type: names that end in -bin have bytes, others text"
            )
        if isinstance(value, str) and not _TEXT.fullmatch(value):
            raise ValueError(
                f"the value of {key} must be printable ASCII without a space at either end, is {value!r}"
            )
        fields.append((name, encode_binary(value) if isinstance(value, bytes) else value.encode("ascii")))
    return fields


def encode_binary(value: bytes) -> bytes:
    """A value of any bytes in its wire format."""
    return b64encode(value).rstrip(b"=")


def decode_metadata(fields: Sequence[Field]) -> list[tuple[str, str | bytes]]:
    """The metadata in the fields of a request.

    Raises:
        ValueError: the value of a `-bin` field is not base64.
    """
    metadata: list[tuple[str, str | bytes]] = []
    for name, value in fields:
        if name in _RESERVED or name.startswith(_RESERVED_PREFIX):
            continue
        key = name.decode("ascii")
        if name.endswith(_BINARY):
            metadata += [(key, _decode_binary(key, part)) for part in value.split(b",")]
        else:
            metadata.append((key, value.decode("utf-8", "replace")))
    return metadata


def _decode_binary(key: str, value: bytes) -> bytes:
    unpadded = value.strip().rstrip(b"=")
    try:
        return b64decode(unpadded + b"=" * (-len(unpadded) % 4), validate=True)
    except binascii.Error as error:
        raise ValueError(f"the value of {key} is not base64") from error
