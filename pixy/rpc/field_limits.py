"""Maximum numbers and sizes of fields in a request, enforced before it is parsed.

Protobuf makes an object for each element of a repeated field, and a handler works on each of them;
the number of bytes says little about either, because an empty element has two. A text is copied and
validated several times on its way. So the tags of a request are scanned first. The scan reads no
contents, ends at the first field beyond a maximum, and takes a few milliseconds for the largest
request that is allowed.

    of                                          maximum
    elements of a repeated field or map         that of the field
    all other fields, unknown ones included     `OTHER_FIELDS_MAX`
    fields of elements above 32 bytes           as many as the largest number of elements has,
                                                where a long tag or number counts as several:
                                                both take longer to skip
    bytes of a field, unless it is large        `FIELD_BYTES_MAX`
    bytes of a request in which no field is     `FIELD_BYTES_MAX`
    large or repeated

A request of less than `FieldLimits.bytes_min` cannot exceed a maximum, and is not scanned. What is
malformed is left to protobuf, which refuses it at the same place.

The scan also says what a request takes once it is parsed: calls that wait for others keep it so
long. Those of less than `FieldLimits.weighed_bytes_min` take no more than `SMALL_REQUEST_BYTES`.

A method whose request repeats a field in a nested message, or packed numbers, is refused when the
server is made.
"""

from collections.abc import Collection, Iterator, Mapping

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto

from pixy.rpc.status import GrpcError, Status

REPEATED_MIN = 1000
"""The smallest maximum of a repeated field: fewer elements are not worth a scan."""
OTHER_FIELDS_MAX = 1000
"""Fields of a request beside its elements and what is in them; no client repeats them."""
FIELD_BYTES_MAX = 16 << 10
"""Bytes of a name, of the metadata of an offset, or of an element that has them: handlers check
them, and say what each may have.
"""
SMALL_REQUEST_BYTES = 4 << 10
"""Memory of a parsed request that is not more than that of the call itself."""

_ELEMENT_BYTES = 256
"""Memory of an element beside its bytes: in the parsed request, and as the handler takes it."""
_ELEMENT_MIN = 2
"""Bytes of an empty element."""
_VARINT, _I64, _LENGTH_DELIMITED, _GROUP, _END_GROUP, _I32 = 0, 1, 2, 3, 4, 5
"""Wire types (protobuf.dev, Encoding)."""
_VARINT_BYTES_MAX = 10
_SMALL_BYTES = 32
"""Elements with no more are not scanned: they have few fields, and are those of most requests."""
_NONE: dict[int, int] = {}
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
        large: fields that may have as many bytes as a request, by path: `headers.value`.

    Attributes:
        bytes_min: a smaller request exceeds nothing: a field has two bytes at least.
        weighed_bytes_min: a smaller request takes at most `SMALL_REQUEST_BYTES`.
    """

    __slots__ = (
        "_inner_max",
        "_is_small",
        "_large",
        "_maxima",
        "_names",
        "_nested",
        "bytes_min",
        "weighed_bytes_min",
    )

    def __init__(
        self,
        message: Descriptor,
        maxima: Mapping[str, int],
        large: Collection[str] = frozenset(),
        prefix: str = "",
    ) -> None:
        repeated = repeated_fields(message)
        assert sorted(repeated) == sorted(maxima), f"{message.full_name} repeats {repeated}, not {[*maxima]}"
        # Fields of all elements.
        self._inner_max = OTHER_FIELDS_MAX
        # Maximum by tag.
        self._maxima: dict[int, int] = {}
        for name, maximum in maxima.items():
            field = message.fields_by_name[name]
            assert maximum >= REPEATED_MIN, f"{message.full_name}.{name}: {maximum} is too small for a scan"
            assert field.type in _LENGTH_DELIMITED_TYPES, f"{message.full_name}.{name} may be packed"
            self._maxima[_tag(field)] = maximum
            if field.message_type is not None:
                self._inner_max += maximum * sum(map(_cost, field.message_type.fields))
        self._names = {_tag(field): f"{prefix}{field.name}" for field in message.fields}
        first_names = {path.partition(".")[0] for path in large}
        self._large = {_tag(message.fields_by_name[name]) for name in first_names}
        # Limits of messages in the request, by tag.
        self._nested = {
            _tag(field): _nested_limits(field, large, prefix)
            for field in message.fields
            if field.message_type is not None
        }
        self._is_small = not maxima and not large
        self.bytes_min, self.weighed_bytes_min = FIELD_BYTES_MAX + 1, SMALL_REQUEST_BYTES + 1
        if not self._is_small:
            self.bytes_min = min(self.bytes_min, _ELEMENT_MIN * min([*maxima.values(), self._inner_max]))
        if maxima:
            self.weighed_bytes_min = SMALL_REQUEST_BYTES // (_ELEMENT_BYTES + _ELEMENT_MIN) * _ELEMENT_MIN

    def check(self, body: bytes | bytearray) -> int:
        """Check the number and the sizes of the fields in a request.

        Returns:
            Memory of the request once it is parsed, about, without its large fields.

        Raises:
            GrpcError: INVALID_ARGUMENT, a maximum is exceeded.
        """
        if self._is_small:
            if len(body) > FIELD_BYTES_MAX:
                raise _too_large("", len(body))
            return len(body)
        memory = [len(body)]
        self._scan(body, 0, len(body), OTHER_FIELDS_MAX, self._inner_max, memory)
        return memory[0]

    def _scan(  # noqa: PLR0912 - one loop without calls, as it runs for each field
        self,
        body: bytes | bytearray,
        at: int,
        end: int,
        fields_left: int,
        inner_left: int | None,
        memory: list[int],
    ) -> int:
        """Scan a message.

        Args:
            fields_left: the number of fields that it may have, besides its elements.
            inner_left: the number of fields that these may have; None in one of them.
            memory: of the request, one number: that of elements is added, that of large fields
                subtracted.

        Returns:
            How many more fields elements may have.
        """
        left = dict(self._maxima) if self._maxima else _NONE
        large, nested = self._large, self._nested
        try:
            while at < end:
                tag = body[at]
                at += 1
                if tag >= 0x80:
                    begin = at
                    tag, at = _read_varint(body, at - 1)
                    fields_left -= at - begin
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
                    if length > _SMALL_BYTES and at <= end:
                        if length > FIELD_BYTES_MAX:
                            if tag not in large:
                                raise _too_large(f" in {self._names.get(tag, tag >> 3)}", length)
                            if tag not in nested:
                                memory[0] -= length
                        if tag in nested:
                            limits, begin = nested[tag], at - length
                            if inner_left is None:
                                fields_left = limits._scan(body, begin, at, fields_left, None, memory)
                            else:
                                inner_left = limits._scan(body, begin, at, inner_left, None, memory)
                    if tag in left:
                        left[tag] -= 1
                        if left[tag] < 0:
                            raise _too_many(f"elements of {self._names[tag]}", self._maxima[tag])
                        continue
                elif tag & 7 == _VARINT and body[at] < 0x80:
                    at += 1
                else:
                    begin = at
                    at = _skip(body, at, tag & 7)
                    if at > begin:
                        fields_left -= 1
                fields_left -= 1
                if fields_left < 0:
                    raise _too_many_fields(is_element=inner_left is None)
        except IndexError:
            pass
        if left:
            memory[0] += _ELEMENT_BYTES * (sum(self._maxima.values()) - sum(left.values()))
        return fields_left if inner_left is None else inner_left


def _tag(field: FieldDescriptor) -> int:
    """The tag of a field as it is scanned for, with a length."""
    return field.number << 3 | _LENGTH_DELIMITED


def _cost(field: FieldDescriptor) -> int:
    """Number of fields that a field counts as, at most."""
    tag_bytes = ((field.number << 3).bit_length() + 6) // 7
    return tag_bytes + (field.type not in _LENGTH_DELIMITED_TYPES)


def _nested_limits(field: FieldDescriptor, large: Collection[str], prefix: str) -> FieldLimits:
    assert field.message_type is not None
    inside = {path.removeprefix(f"{field.name}.") for path in large if path.startswith(f"{field.name}.")}
    assert inside or field.name not in large, f"{field.full_name} is a message: its large fields are missing"
    return FieldLimits(field.message_type, {}, inside, f"{prefix}{field.name}.")


def _too_many(what: str, maximum: int) -> GrpcError:
    reason = f"the request has {maximum + 1} {what} or more, at most {maximum} are allowed"
    return GrpcError(Status.INVALID_ARGUMENT, reason, limit=f"{what} in a request")


def _too_many_fields(*, is_element: bool) -> GrpcError:
    if not is_element:
        return _too_many("fields", OTHER_FIELDS_MAX)
    reason = "the elements of the request have more fields than are allowed"
    return GrpcError(Status.INVALID_ARGUMENT, reason, limit="fields of the elements in a request")


def _too_large(where: str, size: int) -> GrpcError:
    reason = f"the request has {size} bytes{where}, at most {FIELD_BYTES_MAX} are allowed"
    return GrpcError(Status.INVALID_ARGUMENT, reason, limit="bytes of a field in a request")


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
        for end in range(at, at + _VARINT_BYTES_MAX):
            if body[end] < 0x80:
                return end + 1
        raise IndexError
    if wire_type == _I64:
        return at + 8
    if wire_type == _I32:
        return at + 4
    if wire_type in (_GROUP, _END_GROUP):
        return at
    raise IndexError
