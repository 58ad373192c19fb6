"""Fuzz what peers send: `python -m tests.peers.fuzz_frames --time 60`.

An input is the bytes of a connection. They give the same frames, or the same damage, however they
are cut; no payload exceeds the limit. With checksums put right, frames go through the handshakes of
either side, which accepts nobody without the secret, and through the parsers of greetings and
failures. Nothing but `FrameDamage` is raised.
"""

import random
import struct
from contextlib import suppress

from pixy.peers.failures import decode_failure
from pixy.peers.first_handshake import FirstHandshake
from pixy.peers.frames import (
    FAILURE,
    HEAD_BYTES,
    HELLO,
    MESSAGE,
    FrameDamage,
    PeerFrame,
    PeerFrameReader,
    frame_head,
)
from pixy.peers.handshake import Handshake
from pixy.peers.handshake_side import HandshakeSide, HandshakeState
from pixy.peers.hello import Greeting, LinkPurpose, Opening
from pixy.records import crc32c
from tests.http2.fuzzing import run
from tests.peers.support import hello_of

_LIMIT = 100_000
_SECRET = b"the secret of all nodes"
_LARGE = frame_head(MESSAGE, 1, 0, 0, [bytes(66_000)], 66_000) + bytes(66_000)
"""A frame that gets a buffer of its own."""
_LARGE_SHARE = 0.1
_OWN = Greeting(hello_of(1), LinkPurpose.MAIN, bytes(32), True)


def check(changed: bytes, chooser: random.Random) -> None:
    """Read an input; it is understood or refused."""
    if chooser.random() < _LARGE_SHARE:
        changed = _LARGE + changed
    for stream in (changed, _with_checksums(changed)):
        whole, damage = _read(stream, [len(stream)])
        assert _read(stream, _sizes(len(stream), chooser)) == (whole, damage)
        assert all(len(frame[4]) <= _LIMIT for frame in whole)
    for own in (None, _OWN):
        _shake_hands(whole, FirstHandshake([_SECRET], own))
        _shake_hands(whole, Handshake([_SECRET], bytes(32), own))
    for kind, *_, payload in whole:
        if kind == FAILURE:
            decode_failure(payload)
        if kind == HELLO:
            _greet(bytes(payload))


def _with_checksums(stream: bytes) -> bytes:
    """The stream with the right checksum in each complete frame."""
    changed, at = bytearray(stream), 0
    while at + HEAD_BYTES <= len(changed):
        end = at + HEAD_BYTES + struct.unpack_from(">I", changed, at)[0]
        if end > len(changed):
            break
        struct.pack_into(">H", changed, at + 10, crc32c(changed[at : at + 4]) & 0xFFFF)
        struct.pack_into(">I", changed, at + 4, crc32c(changed[at + 8 : end]))
        at = end
    return bytes(changed)


def _sizes(total: int, chooser: random.Random) -> list[int]:
    sizes = []
    while total > 0:
        sizes.append(min(total, chooser.choice((1, 2, 7, 8, 23, 24, 25, 300, 70_000))))
        total -= sizes[-1]
    return sizes


def _read(stream: bytes, sizes: list[int]) -> tuple[list[PeerFrame], bool]:
    """The frames of a stream that arrives in pieces, and whether damage ended it."""
    reader, frames, at = PeerFrameReader(_LIMIT), list[PeerFrame](), 0
    try:
        for piece in sizes:
            end = at + piece
            while at < end:
                buffer = reader.buffer()
                size = min(len(buffer), end - at)
                assert size > 0
                buffer[:size] = stream[at : at + size]
                at += size
                frames += [(*frame[:4], bytes(frame[4])) for frame in reader.received(size)]
    except FrameDamage:
        # The frames before the damage are lost if they came in one piece with it.
        return [], True
    return frames, False


def _shake_hands(frames: list[PeerFrame], side: HandshakeSide) -> None:
    for kind, *_, payload in frames:
        try:
            side.receive(kind, payload)
        except FrameDamage:
            return
        if side.state is HandshakeState.AWAITS_GREETING:
            side.greet(_OWN)
        assert side.state not in (HandshakeState.AWAITS_DECISION, HandshakeState.ACCEPTED)


def _greet(payload: bytes) -> None:
    with suppress(FrameDamage):
        Opening.decode(payload)
    try:
        found = Greeting.decode(payload)
    except FrameDamage:
        return
    if found.protocols[0] == 1:
        assert Greeting.decode(found.encode(with_secret=True)) == found
    assert str(found.hello).isprintable()


if __name__ == "__main__":
    run("peers", check)
