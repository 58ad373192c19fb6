"""Maxima of elements of repeated fields in what other nodes send, before it is parsed. Pure.

Protobuf makes an object for each element; the number of bytes says little about that, and about the
work on them. So the tags are scanned, as those of requests of clients are
(`pixy.rpc.field_limits`), and the scan ends at the first field beyond its maximum. Elements count
together, in whatever message they are nested.

What is malformed is left to protobuf.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto

_TAGS_MAX = 100_000
"""Fields that are scanned: those of messages with a repeated field in them."""
_SMALL_BYTES = 2000
"""Fewer bytes exceed nothing: an element has two at least."""
_PACKED_BYTES = 10
"""Most bytes of a packed number."""
_VARINT, _I64, _LENGTH_DELIMITED, _I32 = 0, 1, 2, 5
_FIXED_BYTES = {_I64: 8, _I32: 4}

_Table = tuple[dict[int, tuple[str, int, bool]], dict[int, Descriptor]]


class ElementMaxima:
    """Maxima of some messages, and of those in them.

    Args:
        messages: those that are scanned.
        maxima: by message and field, `RangesRequest.raft_groups`; of all repeated fields.
        what: that which is scanned, for reasons.
    """

    def __init__(self, messages: Iterable[Descriptor], maxima: Mapping[str, int], what: str) -> None:
        self.what = what
        self._maxima = maxima
        # Of each message: its repeated fields, and those with repeated fields in them.
        self.tables: dict[Descriptor, _Table] = {}
        for message in messages:
            self._enter(message)

    def why_exceeded(self, message: Descriptor, payload: bytes | bytearray) -> str:
        """Reason why a payload has more elements than allowed, empty if it has not."""
        if len(payload) < _SMALL_BYTES:
            return ""
        try:
            return _Scan(self, payload).message(message, 0, len(payload))
        except IndexError:
            return ""  # cut short, which protobuf refuses

    def _enter(self, descriptor: Descriptor) -> bool:
        """Make the table of a message and of those in it; True if there is a repeated field in
        it.
        """
        if descriptor not in self.tables:
            labels = DescriptorProto()
            descriptor.CopyToProto(labels)
            repeated: dict[int, tuple[str, int, bool]] = {}
            nested: dict[int, Descriptor] = {}
            self.tables[descriptor] = repeated, nested
            for field, label in zip(descriptor.fields, labels.field, strict=True):
                if label.label == FieldDescriptorProto.LABEL_REPEATED:
                    name = f"{descriptor.name}.{field.name}"
                    is_text = field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
                    is_number = not is_text and field.message_type is None
                    repeated[field.number] = name, self._maxima[name], is_number
                if field.message_type is not None and self._enter(field.message_type):
                    nested[field.number] = field.message_type
        return any(self.tables[descriptor])


class _Scan:
    """Numbers of elements in a payload, as far as it was scanned."""

    def __init__(self, maxima: ElementMaxima, payload: bytes | bytearray) -> None:
        self._tables, self._what = maxima.tables, maxima.what
        self._payload = payload
        self._counts: Counter[str] = Counter()
        self._tags = 0

    def message(self, descriptor: Descriptor, at: int, end: int) -> str:
        """Scan a message between two places; returns the reason if there is too much in it."""
        repeated, nested = self._tables[descriptor]
        payload = self._payload
        while at < end:
            self._tags += 1
            if self._tags > _TAGS_MAX:
                return f"a {self._what} of more than {_TAGS_MAX} fields"
            tag, at = _varint(payload, at)
            number, wire_type = tag >> 3, tag & 7
            size = _FIXED_BYTES.get(wire_type, 0)
            if wire_type == _VARINT:
                _, at = _varint(payload, at)
            elif wire_type == _LENGTH_DELIMITED:
                size, at = _varint(payload, at)
            elif not size:
                return ""  # a group, which protobuf skips, or damage
            field = repeated.get(number)
            if field is not None:
                name, maximum, is_number = field
                is_packed = is_number and wire_type == _LENGTH_DELIMITED
                self._counts[name] += size // _PACKED_BYTES if is_packed else 1
                if self._counts[name] > maximum:
                    return f"more than {maximum} elements of {name} in a {self._what}"
            inner = nested.get(number)
            if inner is not None and wire_type == _LENGTH_DELIMITED:
                reason = self.message(inner, at, min(at + size, end))
                if reason:
                    return reason
            at += size
        return ""


def _varint(payload: bytes | bytearray, at: int) -> tuple[int, int]:
    """A varint, of which ten bytes are looked at, and the place behind it."""
    value = shift = 0
    while True:
        byte = payload[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80 or shift >= 70:
            return value, at
