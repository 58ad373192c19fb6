"""The checksum is CRC-32C, not the CRC-32 of zlib."""

import zlib

import pytest

from pixy.records import crc32c


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0x00000000),
        (b"123456789", 0xE3069283),  # the check value of the CRC catalogue
        (bytes(32), 0x8A9136AA),  # RFC 3720 B.4: 32 bytes of zeros
        (b"\xff" * 32, 0x62A8AB43),  # RFC 3720 B.4: 32 bytes of ones
        (bytes(range(32)), 0x46DD794E),  # RFC 3720 B.4: 32 bytes incrementing
        (bytes(range(31, -1, -1)), 0x113FDB5C),  # RFC 3720 B.4: 32 bytes decrementing
    ],
)
def test_crc32c_gives_the_published_values(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected


def test_crc32c_is_not_the_crc32_of_zlib() -> None:
    assert crc32c(b"123456789") != zlib.crc32(b"123456789")


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_crc32c_reads_every_kind_of_buffer(kind: type[bytes] | type[bytearray] | type[memoryview]) -> None:
    assert crc32c(kind(b"123456789")) == 0xE3069283


def test_crc32c_continues_from_an_earlier_value() -> None:
    assert crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")
