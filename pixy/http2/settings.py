"""SETTINGS in both directions (RFC 9113 §6.5).

A payload is a list of entries: 2 bytes identifier, 4 bytes value. Later entries win; unknown
identifiers are ignored.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from pixy.http2.errors import ErrorCode, Http2ConnectionError
from pixy.http2.frames import MIN_MAX_FRAME_BYTES, STREAM_ID_MAX, FrameType, frame, window_update
from pixy.http2.options import DEFAULT_WINDOW_BYTES, Options

SETTING_BYTES = 6
_ENTRY = struct.Struct(">HI")
_UNLIMITED = 2**32 - 1


class Setting(IntEnum):
    """Identifiers of settings (RFC 9113 §6.5.2)."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


class _Range(NamedTuple):
    least: int
    most: int
    error: ErrorCode


_RANGES: dict[int, _Range] = {
    Setting.ENABLE_PUSH: _Range(0, 1, ErrorCode.PROTOCOL_ERROR),
    Setting.INITIAL_WINDOW_SIZE: _Range(0, STREAM_ID_MAX, ErrorCode.FLOW_CONTROL_ERROR),
    Setting.MAX_FRAME_SIZE: _Range(MIN_MAX_FRAME_BYTES, 2**24 - 1, ErrorCode.PROTOCOL_ERROR),
}


@dataclass(slots=True)
class PeerSettings:
    """The peer's settings that matter to a server that never pushes.

    Attributes:
        initial_window_bytes: send window of a new stream.
        max_frame_bytes: largest frame that we may send.
        max_header_list_bytes: largest header list that the peer accepts; advisory.
    """

    initial_window_bytes: int = DEFAULT_WINDOW_BYTES
    max_frame_bytes: int = MIN_MAX_FRAME_BYTES
    max_header_list_bytes: int = _UNLIMITED

    def apply(self, entries: Iterable[tuple[int, int]]) -> None:
        """Apply entries returned by `read_settings`, in order."""
        for setting, value in entries:
            name = _ATTRIBUTES.get(setting)
            if name is not None:
                setattr(self, name, value)


_ATTRIBUTES: dict[int, str] = {
    Setting.INITIAL_WINDOW_SIZE: "initial_window_bytes",
    Setting.MAX_FRAME_SIZE: "max_frame_bytes",
    Setting.MAX_HEADER_LIST_SIZE: "max_header_list_bytes",
}


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Entries of a SETTINGS frame, including unknown identifiers.

    Raises:
        Http2ConnectionError: FRAME_SIZE_ERROR if the payload is not a whole number of entries; the
            code that RFC 9113 §6.5.2 assigns to a value out of range.
    """
    if len(payload) % SETTING_BYTES:
        raise Http2ConnectionError(
            ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes, not a multiple of {SETTING_BYTES}"
        )
    entries = list(_ENTRY.iter_unpack(payload))
    for setting, value in entries:
        allowed = _RANGES.get(setting)
        if allowed and not allowed.least <= value <= allowed.most:
            raise Http2ConnectionError(
                allowed.error,
                f"{Setting(setting).name} is {value}, expected {allowed.least} to {allowed.most}",
            )
    return entries


def encode_settings(entries: Iterable[tuple[int, int]]) -> bytes:
    """Encode the payload of a SETTINGS frame."""
    return b"".join(_ENTRY.pack(setting, value) for setting, value in entries)


def our_preface(options: Options) -> bytes:
    """Our part of the connection preface (RFC 9113 §3.4): SETTINGS, and the connection's window."""
    settings = encode_settings(
        (
            (Setting.MAX_CONCURRENT_STREAMS, options.max_concurrent_streams),
            (Setting.INITIAL_WINDOW_SIZE, options.stream_window_bytes),
            (Setting.MAX_FRAME_SIZE, options.max_frame_bytes),
            (Setting.MAX_HEADER_LIST_SIZE, options.max_header_list_bytes),
        )
    )
    preface = frame(FrameType.SETTINGS, 0, 0, settings)
    increment = options.connection_window_bytes - DEFAULT_WINDOW_BYTES
    return preface + window_update(0, increment) if increment > 0 else preface
