"""Fuzz the header decoder against the package `hpack`: `python -m tests.http2.fuzz_hpack --time
60`.

An input is a list of blocks, each prefixed by a length byte.
"""

import random
from collections.abc import Sequence

import hpack

from pixy.http2.errors import Http2Error
from pixy.http2.headers import HeaderReader, encode_headers, read_request
from pixy.http2.hpack import Decoder, Field
from tests.http2.fuzzing import run


def check(changed: bytes, chooser: random.Random) -> None:
    """Both decode to the same fields, or both reject; the caching header reader agrees with the
    decoder.
    """
    oracle, decoder, reader = hpack.Decoder(max_header_list_size=2**30), Decoder(), HeaderReader(16_384)
    for number, block in enumerate(_blocks(changed), 1):
        try:
            fields = decoder.decode(block)
        except Http2Error:
            return
        assert fields == [tuple(field) for field in oracle.decode(block, raw=True)]
        decoder.check_invariants()
        read: object = None
        for _ in range(chooser.randint(1, 2)):
            # A second time only if the block changes nothing, or the tables would differ.
            try:
                request, varying_field = reader.request(number, block)
                read_fields = [*request.fields, *([] if varying_field is None else [varying_field])]
                read = (request.method, request.path, _by_name(read_fields))
            except Http2Error as error:
                read = error.code
            reader.check_invariants()
            if block not in reader.cache:
                break
        try:
            expected = read_request(number, fields, 2**30)
            assert read in ((expected.method, expected.path, _by_name(expected.fields)), 0xB)
            encode_headers(expected.fields)
        except Http2Error:
            assert read in (1, 0xB)


def _by_name(fields: Sequence[Field]) -> list[Field]:
    """Fields sorted by name, keeping the order among fields of one name, which is significant."""
    return sorted(fields, key=lambda field: field[0])


def _blocks(changed: bytes) -> list[bytes]:
    blocks, at = [], 0
    while at < len(changed):
        blocks.append(changed[at + 1 : at + 1 + changed[at]])
        at += 1 + changed[at]
    return blocks


if __name__ == "__main__":
    run("hpack", check)
