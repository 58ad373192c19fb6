"""Fuzz the parsers of gRPC on HTTP/2: `python -m tests.rpc.fuzz_grpc --time 60`.

An input is a line of text and a body. The parts of the line between tabs are a timeout, metadata
and a status message. The body gives the same messages, or the same error, however it is cut; no
message exceeds the limit; large fields that bypass protobuf are as protobuf parses them; nothing
else is raised.
"""

import math
import random

from google.protobuf.message import DecodeError

from pixy.http2.headers import encode_headers
from pixy.large_fields import parse_with
from pixy.proto.pixy_log_pb2 import AppendRequest
from pixy.rpc import GrpcError
from pixy.rpc.headers import read_timeout
from pixy.rpc.messages import PREFIX_BYTES, Encoding, MessageReader
from pixy.rpc.metadata import decode_metadata, encode_metadata
from pixy.rpc.status import status_fields
from pixy.rpc.unpacking import Unpacker
from tests.http2.fuzzing import run

_MESSAGE_BYTES_MAX = 1000
_PARSE = parse_with(AppendRequest, "partitions", "batches", 0)
_YEARS = 400_000_000_000.0


def check(changed: bytes, chooser: random.Random) -> None:
    """Parse an input; it is understood or refused."""
    line, _, body = changed.partition(b"\n")
    for part in line.split(b"\t"):
        _check_timeout(part)
        _check_metadata(part)
        _check_status(part)
    for encoding in Encoding:
        whole = _messages(encoding, [body])
        assert _messages(encoding, _chunks(body, chooser)) == whole
        only = _only(encoding, [body])
        assert _only(encoding, _chunks(body, chooser)) == only
        # A request of one message is what a stream of one message is.
        assert isinstance(only, int) or whole == [only]
    _check_large_fields(body[PREFIX_BYTES:])


def _check_timeout(value: bytes) -> None:
    seconds = read_timeout(value)
    assert seconds is None or (math.isfinite(seconds) and 0 <= seconds <= _YEARS)


def _check_metadata(value: bytes) -> None:
    try:
        metadata = decode_metadata([(b"x-bin", value), (b"x", value)])
    except ValueError:
        return
    binary = [pair for pair in metadata if isinstance(pair[1], bytes)]
    assert decode_metadata(encode_metadata(binary)) == binary


def _check_status(message: bytes) -> None:
    fields = status_fields(GrpcError(13, message.decode("utf-8", "replace"), message))
    encode_headers([(b":status", b"200"), *fields])


def _check_large_fields(message: bytes) -> None:
    try:
        expected = AppendRequest.FromString(message)
    except DecodeError:
        expected = None
    try:
        found, batches = _PARSE(message)
    except DecodeError:
        assert expected is None
        return
    assert expected is not None
    assert [each.batches for each in expected.partitions] == [bytes(each) for each in batches]
    for each in (*expected.partitions, *found.partitions):
        each.ClearField("batches")
    # Fields that are not known stay, too; in which order they are found is nobody's concern.
    assert found == expected


def _chunks(body: bytes, chooser: random.Random) -> list[bytes]:
    chunks, at = [], 0
    while at < len(body):
        size = chooser.choice((1, 2, 4, 5, 6, 30, 300))
        chunks.append(body[at : at + size])
        at += size
    return chunks


def _messages(encoding: Encoding, chunks: list[bytes]) -> list[bytes | int]:
    """The messages of a stream, and the status of the error that ended it."""
    reader, found = MessageReader(encoding, _MESSAGE_BYTES_MAX), list[bytes | int]()
    try:
        for chunk in chunks:
            reader.feed(chunk, 0, len(chunk))
            while (taken := reader.take()) is not None:
                message = _unpacked(taken)
                assert len(message) <= _MESSAGE_BYTES_MAX
                found.append(bytes(message))
    except GrpcError as error:
        found.append(error.status)
    return found


def _only(encoding: Encoding, chunks: list[bytes]) -> bytes | int:
    """The message of a request that must have one, or the status of its error."""
    reader = MessageReader(encoding, _MESSAGE_BYTES_MAX)
    try:
        for chunk in chunks:
            reader.feed(chunk, 0, len(chunk))
            reader.check_only()
        return bytes(_unpacked(reader.take_only()))
    except GrpcError as error:
        return int(error.status)


def _unpacked(taken: bytearray | Unpacker) -> bytes | bytearray:
    if not isinstance(taken, Unpacker):
        return taken
    while not taken.step():
        pass
    return taken.message


if __name__ == "__main__":
    run("grpc", check)
