"""Maximum numbers of fields in a request, enforced before it is parsed.

Protobuf makes an object for each element of a repeated field, and a handler works on each of them;
the number of bytes says little about either, because an empty element has two. So the tags of a
request are scanned first. The scan reads no contents, ends at the first element beyond a maximum,
and takes a few milliseconds for the largest request that is allowed.

    counted                                     maximum
    elements of a repeated field or map         that of the field
    all fields of the request, unknown ones     the sum of these, and `OTHER_FIELDS_MAX`
    included

A request of less than `FieldLimits.bytes_min` cannot exceed a maximum, and is not scanned. What is
malformed is left to protobuf, which refuses it at the same place.

Only fields of the request itself are counted. So a method whose request repeats a field in a nested
message, or packed numbers, is refused when the server is made.
"""

from collections.abc import Iterator, Mapping

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto

from pixy.rpc.status import GrpcError, Status

__all__ = ["OTHER_FIELDS_MAX", "REPEATED_MIN", "FieldLimits", "repeated_fields"]

REPEATED_MIN = 1000
"""The smallest maximum of a repeated field: fewer elements are not worth a scan."""
OTHER_FIELDS_MAX = 1000
"""Fields of a request beside its repeated ones; no client repeats them."""

_VARINT, _I64, _LENGTH_DELIMITED, _GROUP, _END_GROUP, _I32 = 0, 1, 2, 3, 4, 5
"""Wire types (protobuf.dev, Encoding)."""
_VARINT_BYTES_MAX = 10
_LENGTH_DELIMITED_TYPES = (
    FieldDescriptor.TYPE_STRING,
    FieldDescriptor.TYPE_BYTES,
    FieldDescriptor.TYPE_MESSAGE,
)


def repeated_fields(message: Descriptor) -> list[str]:
    """Names of the repeated fields of a message, maps among them, and paths of those nested in
    it.
    """
    return list(_repeated(message, "", ()))


def _repeated(message: Descriptor, prefix: str, above: tuple[str, ...]) -> Iterator[str]:
    labels = DescriptorProto()
    message.CopyToProto(labels)
    for field, label in zip(message.fields, labels.field, strict=True):
        if label.label == FieldDescriptorProto.LABEL_REPEATED:
            yield prefix + field.name
        nested = field.message_type
        if nested is not None and nested.full_name not in above:
            yield from _repeated(nested, f"{prefix}{field.name}.", (*above, message.full_name))


class FieldLimits:
    """Limits of the requests of one method.

    Args:
        message: the class of the request.
        maxima: by name, of all repeated fields.

    Attributes:
        bytes_min: a smaller request exceeds nothing: a field has two bytes at least.
    """

    __slots__ = ("_fields_max", "_maxima", "_names", "bytes_min")

    def __init__(self, message: Descriptor, maxima: Mapping[str, int]) -> None:
        repeated = repeated_fields(message)
        assert sorted(repeated) == sorted(maxima), f"{message.full_name} repeats {repeated}, not {[*maxima]}"
        # Maximum and name by tag.
        self._maxima: dict[int, int] = {}
        self._names: dict[int, str] = {}
        for name, maximum in maxima.items():
            field = message.fields_by_name[name]
            assert maximum >= REPEATED_MIN, f"{message.full_name}.{name}: {maximum} is too small for a scan"
            assert field.type in _LENGTH_DELIMITED_TYPES, f"{message.full_name}.{name} may be packed"
            tag = field.number << 3 | _LENGTH_DELIMITED
            self._maxima[tag], self._names[tag] = maximum, name
        self._fields_max = sum(maxima.values()) + OTHER_FIELDS_MAX
        self.bytes_min = 2 * min([*maxima.values(), self._fields_max])

    def check(self, body: bytes | bytearray) -> None:
        """Check the number of fields in a request.

        Raises:
            GrpcError: INVALID_ARGUMENT, a maximum is exceeded.
        """
        left = dict(self._maxima)
        fields_left = self._fields_max
        at, end = 0, len(body)
        try:
            while at < end:
                tag = body[at]
                at += 1
                if tag >= 0x80:
                    tag, at = _read_varint(body, at - 1)
                if tag & 7 == _LENGTH_DELIMITED:
                    length = body[at]
                    at += 1
                    if length >= 0x80:
                        if body[at] < 0x80:
                            length += (body[at] - 1) << 7
                            at += 1
                        else:
                            length, at = _read_varint(body, at - 1)
                    at += length
                    if tag in left:
                        left[tag] -= 1
                        if left[tag] < 0:
                            raise _too_many(f"elements of {self._names[tag]}", self._maxima[tag])
                        continue
                else:
                    at = _skip(body, at, tag & 7)
                fields_left -= 1
                if fields_left < 0:
                    raise _too_many("fields", self._fields_max)
        except IndexError:
            return


def _too_many(what: str, maximum: int) -> GrpcError:
    reason = f"the request has {maximum + 1} {what} or more, at most {maximum} are allowed"
    return GrpcError(Status.INVALID_ARGUMENT, reason, limit=f"{what} in a request")


def _read_varint(body: bytes | bytearray, at: int) -> tuple[int, int]:
    """A number, and the position after it.

    Raises:
        IndexError: it does not end.
    """
    number = 0
    for shift in range(_VARINT_BYTES_MAX):
        byte = body[at + shift]
        number |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return number, at + shift + 1
    raise IndexError


def _skip(body: bytes | bytearray, at: int, wire_type: int) -> int:
    """The position after a value. Fields of a group are counted as those of the request.

    Raises:
        IndexError: the value is malformed.
    """
    if wire_type == _VARINT:
        return at + 1 if body[at] < 0x80 else _read_varint(body, at)[1]
    if wire_type == _I64:
        return at + 8
    if wire_type == _I32:
        return at + 4
    if wire_type in (_GROUP, _END_GROUP):
        return at
    raise IndexError
