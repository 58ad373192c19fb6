"""Attacks on an HTTP/2 and gRPC server: the bytes sent on each connection, and the required
response of the server.

An attack is pure: `chunks` yields the bytes of one connection, in order. `attacker` sends them
repeatedly on the given number of connections. CVE names are those under which an attack became
known.
"""

import gzip
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, count, repeat
from typing import Any

from pixy.http2 import ErrorCode
from pixy.http2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    PREFACE,
    FrameType,
    frame,
    window_update,
)
from pixy.http2.hpack import encode
from pixy.proto import kafkapixy_pb2 as pb

BIG_TOPIC = "big"
"""A topic with large messages, which must exist before an attack begins."""

_CHUNK_BYTES = 64 * 1024
_LAST_STREAM = 2**31 - 1
_CANCEL = int(ErrorCode.CANCEL).to_bytes(4, "big")
_NOTHING_OF_STREAM = (0).to_bytes(4, "big")

GREETING = PREFACE + frame(FrameType.SETTINGS, 0, 0) + frame(FrameType.SETTINGS, ACK, 0)
"""A client's first bytes. The acknowledgement is for the server's SETTINGS, which are in flight."""


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack.

    Attributes:
        chunks: bytes of one connection; at their end the connection stays open.
        ended_by: error code that the server's GOAWAY must have, within the time of a test; empty if
            the connection survives.
        refused_by: error code that the server's RST_STREAM must have; None if no stream need be
            reset.
        connections: number of concurrent connections.
        reads: True if the attacker reads the responses.
        windowed: the attacker respects the connection's window, so that it can go on forever.
        pause_s: pause between two chunks.
        alone: the daemon may take much memory for it, for instance for messages that are offered
            but not acked.
        big_answers: the attack consumes `BIG_TOPIC`.
        config: limits of the daemon that differ from the defaults, so that the required end is
            reached within the time of a test.
    """

    chunks: Callable[[], Iterator[bytes]]
    ended_by: frozenset[ErrorCode] = frozenset()
    refused_by: ErrorCode | None = None
    connections: int = 4
    reads: bool = True
    windowed: bool = False
    pause_s: float = 0
    alone: bool = False
    big_answers: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)


def _fields(path: str) -> list[tuple[bytes, bytes]]:
    return [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    ]


def _message(serialized: bytes, flag: int = 0) -> bytes:
    return bytes([flag]) + len(serialized).to_bytes(4, "big") + serialized


def call_frames(path: str, serialized: bytes) -> Callable[[int], bytes]:
    """Frames of a unary call on a stream."""
    block, body = encode(_fields(path)), _message(serialized)
    return lambda stream_id: (
        frame(FrameType.HEADERS, END_HEADERS, stream_id, block)
        + frame(FrameType.DATA, END_STREAM, stream_id, body)
    )


_CONSUME_RQ = pb.ConsNAckRq(topic="attacked", group="attackers", no_ack=True).SerializeToString()
_BLOCK = encode(_fields("/KafkaPixy/ConsumeNAck"))
_consume = call_frames("/KafkaPixy/ConsumeNAck", _CONSUME_RQ)
_CONSUME_BIG_RQ = pb.ConsNAckRq(topic=BIG_TOPIC, group="attackers", no_ack=True).SerializeToString()
_consume_big = call_frames("/KafkaPixy/ConsumeNAck", _CONSUME_BIG_RQ)


def _begin(stream_id: int, block: bytes = _BLOCK, flags: int = END_HEADERS) -> bytes:
    return frame(FrameType.HEADERS, flags, stream_id, block)


def _in_chunks(parts: Iterator[bytes], *, greeting: bytes = GREETING) -> Iterator[bytes]:
    """The parts after a greeting, joined into chunks of a given size."""
    yield greeting
    gathered, size = [], 0
    for part in parts:
        gathered.append(part)
        size += len(part)
        if size >= _CHUNK_BYTES:
            yield b"".join(gathered)
            gathered, size = [], 0
    yield b"".join(gathered)


def _for_each_stream(make: Callable[[int], bytes]) -> Callable[[], Iterator[bytes]]:
    return lambda: _in_chunks(make(stream_id) for stream_id in range(1, _LAST_STREAM, 2))


def _for_ever(part: bytes, *, first: bytes = b"") -> Callable[[], Iterator[bytes]]:
    return lambda: _in_chunks(chain([first], repeat(part)))


def _once(*parts: bytes) -> Callable[[], Iterator[bytes]]:
    return lambda: iter(parts)


def _rapid_reset(stream_id: int) -> bytes:
    return _consume(stream_id) + frame(FrameType.RST_STREAM, 0, stream_id, _CANCEL)


def _made_to_reset(stream_id: int) -> bytes:
    return _begin(stream_id) + frame(FrameType.WINDOW_UPDATE, 0, stream_id, _NOTHING_OF_STREAM)


_REFLECTION = encode(_fields("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"))
_OPEN_WINDOWS = (
    PREFACE
    + frame(FrameType.SETTINGS, 0, 0, b"\x00\x04" + _LAST_STREAM.to_bytes(4, "big"))
    + frame(FrameType.SETTINGS, ACK, 0)
    + window_update(0, 2**30)
)
"""A greeting that opens the windows completely."""


def _small_messages() -> Iterator[bytes]:
    """Streams of 13 000 empty messages, each of which makes the handler respond."""
    messages = _message(b"") * 3200
    for stream_id in range(1, _LAST_STREAM, 2):
        yield _begin(stream_id, _REFLECTION)
        for flags in (0, 0, 0, END_STREAM):
            yield frame(FrameType.DATA, flags, stream_id, messages)


def _streams_that_are_dropped() -> Iterator[bytes]:
    """Many streams whose handlers are cancelled together, because an error ends the connection.

    Each takes 10 KB of the daemon's memory.
    """
    yield from (_begin(stream_id, _REFLECTION) for stream_id in range(1, 1000, 2))
    yield frame(FrameType.PUSH_PROMISE, END_HEADERS, 1, bytes(4))


def _resets_at_deadlines() -> Iterator[bytes]:
    """Calls with a deadline of a millisecond, each reset once it has expired: no such reset counts,
    so the attack never ends.
    """
    block = encode([*_fields("/KafkaPixy/ConsumeNAck"), (b"grpc-timeout", b"1m")])
    body = _message(_CONSUME_RQ)
    yield GREETING
    for first in range(1, _LAST_STREAM - 400, 400):
        streams = range(first, first + 400, 2)
        yield b"".join(
            _begin(each, block) + frame(FrameType.DATA, END_STREAM, each, body) for each in streams
        )
        yield b"".join(frame(FrameType.RST_STREAM, 0, each, _CANCEL) for each in streams)


def _bomb() -> Iterator[bytes]:
    """A field of the size of the dynamic table is inserted into it, and then referenced 16 000
    times with one byte each.
    """
    name_and_value = b"\x40\x01a" + b"\x7f\xa1\x1e" + bytes(b"v" * 4000)
    yield _begin(1, encode(_fields("/KafkaPixy/Ack")) + name_and_value, END_HEADERS | END_STREAM)
    for stream_id in range(3, _LAST_STREAM, 2):
        yield _begin(stream_id, _BLOCK + b"\xbe" * 16_000, END_HEADERS | END_STREAM)


def _huge_headers(stream_id: int) -> bytes:
    block = _BLOCK + encode([(b"x-%d" % number, b"v" * 4000) for number in range(15)])
    parts = [block[at : at + 16_384] for at in range(0, len(block), 16_384)]
    frames = [_begin(stream_id, parts[0], END_STREAM)]
    frames += [frame(FrameType.CONTINUATION, 0, stream_id, part) for part in parts[1:-1]]
    return b"".join([*frames, frame(FrameType.CONTINUATION, END_HEADERS, stream_id, parts[-1])])


def _slow_read(window: int, request: Callable[[int], bytes], calls: int) -> Iterator[bytes]:
    """Calls whose responses the client's window blocks."""
    settings = frame(FrameType.SETTINGS, 0, 0, b"\x00\x04" + window.to_bytes(4, "big"))
    greeting = PREFACE + settings + frame(FrameType.SETTINGS, ACK, 0) + window_update(0, 2**30)
    return _in_chunks((request(2 * number + 1) for number in range(calls)), greeting=greeting)


def _dribble() -> Iterator[bytes]:
    """A response that is released byte by byte (CVE-2019-9511), and never to its end."""
    yield from _slow_read(0, _consume_big, 1)
    yield from repeat(b"", 50)
    yield from repeat(window_update(1, 1) * 1000, 200)


def _incomplete(stream_id: int) -> bytes:
    """A request that announces 4 MB, sends 64 KiB and then nothing."""
    body = b"\x00" + (4_000_000).to_bytes(4, "big") + bytes(65_000)
    parts = [body[at : at + 16_384] for at in range(0, len(body), 16_384)]
    return _begin(stream_id) + b"".join(frame(FrameType.DATA, 0, stream_id, part) for part in parts)


def _gzip_bomb() -> Callable[[int], bytes]:
    """A message of 4 KB that decompresses to 4 MB."""
    block = encode([*_fields("/KafkaPixy/Produce"), (b"grpc-encoding", b"gzip")])
    body = _message(gzip.compress(bytes(4 << 20)), flag=1)
    return lambda stream_id: _begin(stream_id, block) + frame(FrameType.DATA, END_STREAM, stream_id, body)


def _random_bytes(first: bytes) -> Callable[[], Iterator[bytes]]:
    seeds = count()
    return lambda: chain([first], (random.Random(next(seeds)).randbytes(_CHUNK_BYTES) for _ in count()))


def _one_byte_at_a_time() -> Iterator[bytes]:
    whole = GREETING + b"".join(_consume(stream_id) for stream_id in range(1, 1000, 2))
    return (whole[at : at + 1] for at in range(len(whole)))


_CALM = frozenset({ErrorCode.ENHANCE_YOUR_CALM})
_COMPRESSION = frozenset({ErrorCode.COMPRESSION_ERROR})
_FLOW = frozenset({ErrorCode.FLOW_CONTROL_ERROR})
_NOT_HTTP2 = frozenset({ErrorCode.PROTOCOL_ERROR})
_GARBLED = frozenset({ErrorCode.PROTOCOL_ERROR, ErrorCode.FRAME_SIZE_ERROR})
_PATIENT = {"handshake_timeout": "1s", "keepalive": "1s"}
_MANY = 500

ATTACKS: dict[str, Attack] = {
    "rapid reset (CVE-2023-44487)": Attack(_for_each_stream(_rapid_reset), _CALM),
    "made to reset (CVE-2025-8671)": Attack(_for_each_stream(_made_to_reset), _CALM),
    "CONTINUATION flood (CVE-2024-27316)": Attack(
        _for_ever(
            frame(FrameType.CONTINUATION, 0, 1, b"\x00\x01a\x7f\x81\x7e" + b"v" * 16_000),
            first=_begin(1, _BLOCK, 0),
        ),
        _CALM,
    ),
    "flood of empty CONTINUATION": Attack(
        _for_ever(frame(FrameType.CONTINUATION, 0, 1), first=_begin(1, _BLOCK, 0)), _CALM
    ),
    "HPACK bomb": Attack(lambda: _in_chunks(_bomb()), _CALM),
    "huge header lists": Attack(_for_each_stream(_huge_headers), _CALM),
    "Huffman padding": Attack(_once(GREETING + _begin(1, b"\x00\x81\xff\x81\x00")), _COMPRESSION),
    "Huffman end of string": Attack(
        _once(GREETING + _begin(1, b"\x00\x84\xff\xff\xff\xfc\x01a")), _COMPRESSION
    ),
    "table size beyond the setting": Attack(
        _once(GREETING + _begin(1, b"\x3f\xe1\xff\x03" + _BLOCK)), _COMPRESSION
    ),
    "SETTINGS flood (CVE-2019-9515)": Attack(_for_ever(frame(FrameType.SETTINGS, 0, 0)), _CALM),
    "PING flood (CVE-2019-9512)": Attack(_for_ever(frame(FrameType.PING, 0, 0, bytes(8))), _CALM),
    "empty DATA (CVE-2019-9518)": Attack(_for_ever(frame(FrameType.DATA, 0, 1), first=_begin(1)), _CALM),
    "priorities (CVE-2019-9513)": Attack(_for_ever(frame(FrameType.PRIORITY, 0, 1, bytes(5))), _CALM),
    "small answers never read (CVE-2019-9517)": Attack(
        lambda: _slow_read(0, call_frames("/KafkaPixy/ListTopics", b""), 4000), connections=1
    ),
    "large answers never let out": Attack(
        lambda: _slow_read(0, _consume_big, 100),
        refused_by=ErrorCode.ENHANCE_YOUR_CALM,
        connections=1,
        alone=True,
        big_answers=True,
    ),
    "large answers never read": Attack(
        lambda: _slow_read(2**31 - 1, _consume_big, 100),
        connections=1,
        reads=False,
        alone=True,
        big_answers=True,
    ),
    "answers byte by byte (CVE-2019-9511)": Attack(
        _dribble, _CALM, pause_s=0.01, alone=True, big_answers=True
    ),
    "window overflow": Attack(_once(GREETING + window_update(0, 2**31 - 1) * 2), _FLOW),
    "one byte per packet": Attack(_one_byte_at_a_time),
    "half-open": Attack(
        _once(b""), frozenset({ErrorCode.SETTINGS_TIMEOUT}), connections=_MANY, config=_PATIENT
    ),
    "half a preface": Attack(
        lambda: (PREFACE[at : at + 1] for at in range(len(PREFACE) - 1)),
        frozenset({ErrorCode.SETTINGS_TIMEOUT}),
        connections=_MANY,
        pause_s=0.02,
        config=_PATIENT,
    ),
    "idle": Attack(_once(GREETING), frozenset({ErrorCode.NO_ERROR}), connections=_MANY, config=_PATIENT),
    "a header that never ends": Attack(
        lambda: chain([GREETING, _begin(1, _BLOCK, 0)[:-1]]),
        frozenset({ErrorCode.NO_ERROR}),
        connections=_MANY,
        config=_PATIENT,
    ),
    "streams beyond the limit": Attack(_for_each_stream(_begin), _CALM),
    "a preface that never ends": Attack(
        lambda: chain([PREFACE[:-1]], repeat(b"A" * _CHUNK_BYTES)), _NOT_HTTP2
    ),
    "random bytes": Attack(_random_bytes(b""), _NOT_HTTP2),
    "random bytes behind a greeting": Attack(_random_bytes(GREETING), _GARBLED),
    "requests that are never complete": Attack(_for_each_stream(_incomplete), connections=1, alone=True),
    "requests of many connections that are never complete": Attack(
        _for_each_stream(_incomplete),
        _CALM,
        connections=16,
        alone=True,
        config=dict.fromkeys(("buffer_bytes", "output_buffer_bytes"), 8 * 1024 * 1024),
    ),
    "resets at short deadlines": Attack(_resets_at_deadlines, pause_s=0.001),
    "small messages on one stream after the other": Attack(
        lambda: _in_chunks(_small_messages(), greeting=_OPEN_WINDOWS), connections=1, windowed=True
    ),
    "small messages on streams of four connections": Attack(
        lambda: _in_chunks(_small_messages(), greeting=_OPEN_WINDOWS), windowed=True
    ),
    "streams that end with their connection": Attack(
        lambda: _in_chunks(_streams_that_are_dropped()), _NOT_HTTP2, connections=1
    ),
    "gzip bombs": Attack(_for_each_stream(_gzip_bomb()), alone=True),
}
