"""Header compression for HTTP/2 (RFC 7541).

`Decoder` is complete and owns the dynamic table of one connection. Every block is decoded to its
end, because the table must stay equal to the peer's. A block that cannot be decoded ends the
connection.

`encode` is stateless: fields that are not in the static table are sent as literals without
indexing, so the peer's dynamic table stays empty. RFC 7541 §6.2.2 allows that. An encoded block is
therefore a constant that is valid on every connection. The peer's SETTINGS_HEADER_TABLE_SIZE
matters only once: after the peer has lowered it, the next block begins with `EMPTY_TABLE` (RFC 9113
§4.3.1). A dynamic table would save a few dozen bytes per response and cost an encoding each time.

Representations, by the first bits of a field:

    bits      meaning                                             index
    1.......  indexed field                                       7 bits
    01......  literal with incremental indexing                   6 bits, 0 = the name follows
    001.....  dynamic table size update, only before all fields   5 bits
    0001....  literal never indexed                               4 bits, 0 = the name follows
    0000....  literal without indexing                            4 bits, 0 = the name follows

Indexes 1 to 61 are the static table; 62 is the newest entry of the dynamic table.
"""

import re
from collections.abc import Iterable

from pixy.http2 import huffman
from pixy.http2.errors import ErrorCode, Http2ConnectionError

Field = tuple[bytes, bytes]
"""Name and value."""

DEFAULT_FIELDS_MAX = 2048
DEFAULT_TABLE_BYTES = 4096
FIELD_OVERHEAD_BYTES = 32
"""Overhead of a field in the dynamic table (RFC 7541 §4.1) and in a header list (RFC 9113 §6.5.2).
"""

EMPTY_TABLE = b"\x20"
"""A dynamic table size update to 0."""

_REPEATING = re.compile(rb"((?:[\x81-\xfe]|\xff[\x00-\x7d])+)[\x40-\x7f]")
"""A predictable block: indexed fields in their shortest encoding, then a literal with incremental
indexing.
"""

_NEWEST_NAME = b"\x7e"
"""First byte of a literal with incremental indexing that has the newest entry's name; the value
follows.
"""

_LAST_OF_ONE_BYTE, _FIRST_OF_TWO_BYTES = b"\xfe", b"\xff\x7f"
"""Indexed fields: the last index that takes one byte, and its successor before `_OLDER` makes it FF
00.
"""

_OLDER = bytes((*range(1, 0x7F), 0x7E, 0x00, *range(0x80, 0xBE), *range(0xBF, 0xFF), 0xFE, 0xFF))
"""Translation of each byte of a predictable block after one more insertion.

Indexes of the dynamic table grow by 1, in their only or their second byte. Indexes of the static
table and `_NEWEST_NAME` are unchanged.
"""

_INTEGER_SHIFT_MAX = 21
"""Four continuation bytes: 2^28 is far above every limit, and a fifth byte would only cost time."""

_STATIC: tuple[Field, ...] = (
    (b"", b""),
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
)
_STATIC_LAST = len(_STATIC) - 1
_STATIC_INDEX = {field: index for index, field in enumerate(_STATIC) if index}
# The first entry of each name, as encoders choose.
_STATIC_NAME = {name: index for index, (name, _) in reversed(list(enumerate(_STATIC))) if index}
# RFC 7541 §7.1.3: secrets that intermediaries must not index either.
_NEVER_INDEXED = frozenset((b"authorization", b"cookie", b"proxy-authorization", b"set-cookie"))


class Decoder:
    """HPACK decoder of one connection.

    Args:
        max_table_bytes: limit of the dynamic table, as in our SETTINGS_HEADER_TABLE_SIZE.
        fields_max: most fields in a block. A field can take a single byte, and decoding that takes
            a hundred times as long as any other byte.
    """

    __slots__ = (
        "_capacity",
        "_dynamic",
        "_fields_max",
        "_table_bytes",
        "changes",
        "literal_at",
        "max_table_bytes",
    )

    def __init__(
        self, max_table_bytes: int = DEFAULT_TABLE_BYTES, fields_max: int = DEFAULT_FIELDS_MAX
    ) -> None:
        self._fields_max = fields_max
        self.max_table_bytes = max_table_bytes
        # Oldest first, so index 62 is the last one. Invariant: their sizes add up to _table_bytes
        # <= _capacity.
        self._dynamic: list[Field] = []
        self._table_bytes = 0
        # Table size chosen by the peer. Invariant: <= max_table_bytes.
        self._capacity = max_table_bytes
        # Incremented with every change of the dynamic table. While it stays the same, equal blocks
        # decode to equal fields.
        self.changes = 0
        # Position of the last literal among the fields of the last block; meaningless if that block
        # had none.
        self.literal_at = 0

    @property
    def table_bytes(self) -> int:
        """Size of the dynamic table (RFC 7541 §4.1)."""
        return self._table_bytes

    def decode(self, block: bytes) -> list[Field]:
        """Decode a block into its fields, in order.

        There are never more fields than bytes; equal fields may be one object.

        Raises:
            Http2ConnectionError: COMPRESSION_ERROR if the block is invalid; ENHANCE_YOUR_CALM if it
                has too many fields. The table no longer matches the peer's.
        """
        try:
            return self._decode(block)
        except IndexError:
            raise _invalid(
                "header block ends inside a field, or refers to an index beyond the table"
            ) from None

    def insert(self, field: Field) -> None:
        """Insert a field into the dynamic table, as a literal with incremental indexing does (RFC
        7541 §6.2.1).
        """
        # RFC 7541 §4.4: a field larger than the table empties it and is not inserted.
        self.changes += 1
        self._dynamic.append(field)
        self._evict(self._table_bytes + len(field[0]) + len(field[1]) + FIELD_OVERHEAD_BYTES)

    def check_invariants(self) -> None:
        """Assert the documented invariants."""
        sizes = [len(name) + len(value) + FIELD_OVERHEAD_BYTES for name, value in self._dynamic]
        assert self._table_bytes == sum(sizes) <= self._capacity <= self.max_table_bytes

    def _decode(self, block: bytes) -> list[Field]:
        dynamic = self._dynamic
        fields: list[Field] = []
        at = self._resize(block) if block and block[0] & 0xE0 == 0x20 else 0
        end = len(block)
        while at < end:
            # A field takes at least one byte, so only long blocks reach a second iteration.
            stop = min(end, at + self._fields_max - len(fields))
            if stop <= at:
                reason = f"header block of more than {self._fields_max} fields"
                raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, reason)
            while at < stop:
                byte = block[at]
                at += 1
                if byte > 0x80:
                    index = byte & 0x7F
                    if index == 0x7F:
                        index, at = _integer_rest(block, at, 0x7F)
                    fields.append(dynamic[_STATIC_LAST - index] if index > _STATIC_LAST else _STATIC[index])
                else:
                    field, at = self._literal(block, byte, at)
                    self.literal_at = len(fields)
                    fields.append(field)
        return fields

    def _literal(self, block: bytes, byte: int, at: int) -> tuple[Field, int]:
        """Decode a field that is not indexed.

        `byte` is its first byte, its second one is at `at`; also returns the position of the next
        field.
        """
        if byte == 0x80:
            raise _invalid("invalid index 0")
        if 0x20 <= byte < 0x40:
            raise _invalid("dynamic table size update after a field")
        mask = 0x3F if byte >= 0x40 else 0x0F
        index = byte & mask
        if index == mask:
            index, at = _integer_rest(block, at, mask)
        if index > _STATIC_LAST:
            name = self._dynamic[_STATIC_LAST - index][0]
        elif index:
            name = _STATIC[index][0]
        else:
            name, at = _string(block, at)
        value, at = _string(block, at)
        field = (name, value)
        if byte >= 0x40:
            self.insert(field)
        return field, at

    def _resize(self, block: bytes) -> int:
        """Apply the size updates that begin a block; returns the position of the first field."""
        at = 0
        while at < len(block) and block[at] & 0xE0 == 0x20:
            capacity = block[at] & 0x1F
            at += 1
            if capacity == 0x1F:
                capacity, at = _integer_rest(block, at, 0x1F)
            if capacity > self.max_table_bytes:
                raise _invalid(f"dynamic table of {capacity} bytes, limit is {self.max_table_bytes}")
            self._capacity = capacity
            self.changes += 1
            self._evict(self._table_bytes)
        return at

    def _evict(self, table_bytes: int) -> None:
        """Evict entries until a table of `table_bytes` fits its capacity."""
        dynamic, capacity = self._dynamic, self._capacity
        while table_bytes > capacity:
            name, value = dynamic.pop(0)
            table_bytes -= len(name) + len(value) + FIELD_OVERHEAD_BYTES
        self._table_bytes = table_bytes


class BlockPredictor:
    """Predicts blocks that differ only in the value of their last field, which each of them
    inserts.

    An insertion makes all older entries one position older. So the next block has the same static
    indexes, dynamic indexes one higher, and a last field with the newest entry's name. Only the
    value of the last field has to be decoded.

    Args:
        decoder: has just decoded a block for which `maybe_prefix` returned `start`.
        start: the indexed fields of that block.
        name: name of the literal behind them, which was inserted.
    """

    __slots__ = ("_changes", "_decoder", "_name", "_oldest", "_start")

    def __init__(self, decoder: Decoder, start: bytes, name: bytes) -> None:
        # No index ever needs a third byte, however many entries are inserted.
        assert decoder.max_table_bytes <= DEFAULT_TABLE_BYTES
        self._decoder = decoder
        self._name = name
        # The start of the last block as if its literal had used the newest entry's name; the
        # largest index in it, but at least the last static one, so that it never falls below the
        # newest entry's; and the decoder's change counter after that block.
        self._start = start + _NEWEST_NAME
        second_bytes = [byte for byte in start if byte < 0x80]
        self._oldest = 0x7F + max(second_bytes) if second_bytes else max(_STATIC_LAST, max(start) & 0x7F)
        self._changes = decoder.changes

    @staticmethod
    def maybe_prefix(block: bytes, indexed: int) -> bytes | None:
        """The start of a block if it is that many indexed fields, followed by a literal with
        incremental indexing; else None.
        """
        found = _REPEATING.match(block)
        if found is None:
            return None
        start = found[1]
        return start if len(start) - start.count(b"\xff") == indexed else None

    def maybe_decode(self, block: bytes) -> Field | None:
        """Decode a block if it is the predicted one; returns its last field.

        Raises:
            Http2ConnectionError: as for `Decoder.decode`.
        """
        decoder, oldest = self._decoder, self._oldest + 1
        # The table may be too small for all of the fields, or even for the last one (RFC 7541
        # §4.4).
        if decoder.changes != self._changes or oldest > _STATIC_LAST + len(decoder._dynamic):
            return None
        start = self._start.replace(_LAST_OF_ONE_BYTE, _FIRST_OF_TWO_BYTES).translate(_OLDER)
        at = len(start)
        size = len(block) - at - 1
        if not 0 <= size < 0x7F or block[at] & 0x7F != size or not block.startswith(start):
            return None
        value = block[at + 1 :]
        field = (self._name, huffman.decode(value) if block[at] >= 0x80 else value)
        decoder.insert(field)
        self._start, self._oldest, self._changes = start, oldest, decoder.changes
        return field


def _invalid(reason: str) -> Http2ConnectionError:
    return Http2ConnectionError(ErrorCode.COMPRESSION_ERROR, reason)


def _integer_rest(block: bytes, at: int, value: int) -> tuple[int, int]:
    """Decode an integer with a full prefix, `value`; returns it and the position of its end (RFC
    7541 §5.1).
    """
    shift = 0
    while True:
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > _INTEGER_SHIFT_MAX:
            raise _invalid("integer of more than five bytes")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    """Decode the string at `at`; returns it and the position of its end (RFC 7541 §5.2)."""
    byte = block[at]
    at += 1
    length = byte & 0x7F
    if length == 0x7F:
        length, at = _integer_rest(block, at, 0x7F)
    end = at + length
    if end > len(block):
        raise _invalid(f"string of {length} bytes with {len(block) - at} bytes left in its block")
    string = block[at:end]
    return (huffman.decode(string) if byte >= 0x80 else string), end


def encode(fields: Iterable[Field]) -> bytes:
    """Encode fields into a block that every peer decodes, regardless of earlier blocks."""
    return b"".join(map(_encode_field, fields))


def _encode_field(field: Field) -> bytes:
    name, value = field
    index = _STATIC_INDEX.get(field)
    if index:
        return _encode_integer(0x80, 0x7F, index)
    never_indexed = 0x10 if name in _NEVER_INDEXED else 0x00
    index = _STATIC_NAME.get(name, 0)
    start = _encode_integer(never_indexed, 0x0F, index)
    return start + (b"" if index else _encode_string(name)) + _encode_string(value)


def _encode_integer(bits: int, mask: int, value: int) -> bytes:
    """Encode an integer behind the bits of a representation (RFC 7541 §5.1)."""
    if value < mask:
        return bytes((bits | value,))
    encoded = bytearray((bits | mask,))
    value -= mask
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _encode_string(string: bytes) -> bytes:
    """Encode a string, Huffman-coded if that is shorter."""
    length = huffman.encoded_length(string)
    if length < len(string):
        return _encode_integer(0x80, 0x7F, length) + huffman.encode(string)
    return _encode_integer(0, 0x7F, len(string)) + string
