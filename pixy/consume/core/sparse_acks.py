"""Encoding of acked ranges above a committed offset in the commit's metadata, as kafka-pixy writes
it. Pure.

A commit carries one offset; records acked above it would be delivered again after a restart. So the
metadata string of the commit carries the acked ranges.

Format, range by range in ascending order:

    enc(begin - previous) enc(end - begin)

where previous is the committed offset for the first range, then the end of the range before.

`enc` is a little-endian sequence of 5-bit groups, 0x20 set on all but the last, each one character
of the alphabet `A-Z a-z 0-9 + /`; 13 characters at most. The shortest form is written; any form is
read.

    input                                                      result
    empty                                                      no ranges
    a character outside the alphabet                           InvalidOffset: bad char
    a number that does not end, or has more than 13 characters InvalidOffset: bad sequence
    a begin without an end                                     InvalidOffset: bad sequence
    a range that is empty, begins at 0 or below,               InvalidOffset: bad range
    or reaches beyond 2**63 - 1
    a range adjacent to the one before it                      the range, as in kafka-pixy; never
                                                               written

A commit has at most `METADATA_BYTES_MAX` of it: the first ranges that fit. The offset tracker
refuses acks that would make more, so only what was not acked is left out: gaps in the log, which
are found again. Earlier releases stored megabytes, so ranges are decoded one by one, and
`fitting` is what such metadata has in a commit.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pixy.errors import InvalidOffset

METADATA_BYTES_MAX = 4096
"""Largest metadata of a commit: Kafka's default of `offset.metadata.max.bytes`."""

_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_VALUES = {char: value for value, char in enumerate(_ALPHABET)}
_GROUP_BITS = 5
_MORE = 0x20
_SHORT = {char: value for char, value in _VALUES.items() if value < _MORE}
"""Numbers of one character."""
_CHARS_MAX = 13
_OFFSET_MAX = 2**63 - 1

RANGE_CHARS_MAX = 2 * _CHARS_MAX
"""Longest encoding of a range."""


class AckRange(NamedTuple):
    """Acked offsets: from `begin` to `end`, exclusive."""

    begin: int
    end: int


def encode(base: int, ranges: Iterable[AckRange]) -> str:
    """The metadata string of sorted disjoint `ranges` above the committed offset `base`: of the
    first ones that fit into a commit.
    """
    chars: list[str] = []
    previous = base
    for begin, end in ranges:
        before = len(chars)
        _encode_number(chars, begin - previous)
        _encode_number(chars, end - begin)
        if len(chars) > METADATA_BYTES_MAX:
            del chars[before:]
            break
        previous = end
    return "".join(chars)


def encoded_chars(number: int) -> int:
    """Length of the encoding of a number above 0."""
    return (number.bit_length() + _GROUP_BITS - 1) // _GROUP_BITS


def decode(base: int, metadata: str) -> list[AckRange]:
    """The ranges in `metadata` above the committed offset `base`.

    Raises:
        InvalidOffset: the metadata is malformed.
    """
    return list(iterate(base, metadata))


def iterate(base: int, metadata: str) -> Iterator[AckRange]:
    """As `decode`, one by one."""
    previous = base
    at = 0
    chars_end = len(metadata)
    while at < chars_end:
        # Fast path: most numbers have one character.
        gap = _SHORT.get(metadata[at], -1)
        if gap >= 0:
            at += 1
        else:
            gap, at = _decode_number(metadata, at)
        count = _SHORT.get(metadata[at], -1) if at < chars_end else -1
        if count >= 0:
            at += 1
        else:
            count, at = _decode_number(metadata, at)
        begin = previous + gap
        end = begin + count
        if begin <= 0 or count <= 0 or end > _OFFSET_MAX:
            raise InvalidOffset(f"bad range: {{{begin} {end}}}: expected 0 < begin < end")
        yield AckRange(begin, end)
        previous = end


def fitting(metadata: str) -> str:
    """The first ranges of metadata, as many as a commit has; other metadata is cut."""
    if len(metadata) <= METADATA_BYTES_MAX:
        return metadata
    numbers = end = 0
    for at, char in enumerate(metadata[:METADATA_BYTES_MAX]):
        value = _VALUES.get(char)
        if value is None:
            return metadata[:METADATA_BYTES_MAX]
        if value < _MORE:
            numbers += 1
            end = end if numbers % 2 else at + 1
    return metadata[:end]


def describe(base: int, ranges: Iterable[AckRange]) -> str:
    """Ranges in readable form, relative to the committed offset `base`: `1-2,9-11`; the first ones,
    and `...`, if that has more characters than metadata may have bytes.
    """
    texts: list[str] = []
    left = METADATA_BYTES_MAX
    for begin, end in ranges:
        texts.append(f"{begin - base}-{end - base}")
        left -= len(texts[-1]) + 1
        if left < 0:
            texts[-1] = "..."
            break
    return ",".join(texts)


def _encode_number(chars: list[str], number: int) -> None:
    assert number > 0, number
    while number >= _MORE:
        chars.append(_ALPHABET[number & (_MORE - 1) | _MORE])
        number >>= _GROUP_BITS
    chars.append(_ALPHABET[number])


def _decode_number(metadata: str, at: int) -> tuple[int, int]:
    """The number that begins at character `at`, and the index behind it."""
    number = 0
    for count, char in enumerate(metadata[at : at + _CHARS_MAX]):
        value = _VALUES.get(char)
        if value is None:
            raise InvalidOffset(f"bad char: {char}")
        number |= (value & (_MORE - 1)) << (_GROUP_BITS * count)
        if value < _MORE:
            return number, at + count + 1
    raise InvalidOffset(
        f"bad sequence: {metadata[at : at + _CHARS_MAX]!r} at {at}: a number ends within {_CHARS_MAX} characters"
    )
