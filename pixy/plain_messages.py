"""Protobuf messages as plain values, for what is shown to people and written as JSON."""

from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message

_MASKED = "********"


def plain(message: Message) -> dict[str, Any]:
    """A message as a mapping, with fields at their defaults, without absent messages.

    Bytes are ids and become hexadecimal. Secrets are masked: nodes prove with them who they are.
    """
    fields: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if not isinstance(value, Message) or message.HasField(field.name):
            fields[field.name] = _MASKED if value and field.name == "secret" else _plain_value(value)
    return fields


def _plain_value(value: Any) -> Any:
    if isinstance(value, Message):
        return plain(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, Mapping):
        return dict(value)
    return [_plain_value(each) for each in value]
