"""Limits of a connection, with defaults and rationale."""

from dataclasses import dataclass

from pixy.http2.frames import MIN_MAX_FRAME_BYTES, STREAM_ID_MAX
from pixy.http2.token_buckets import Cost, TokenBucketOptions

DEFAULT_WINDOW_BYTES = 65_535
"""Initial window size, of streams and of the connection, before SETTINGS (RFC 9113 §6.9.2)."""

_MAX_FRAME_LIMIT = 2**24 - 1


_RESETS = TokenBucketOptions(burst=4096, per_second=100, per_frame=0.5)
_PINGS = TokenBucketOptions(burst=100, per_second=1, per_frame=1)
_SETTINGS = TokenBucketOptions(burst=100, per_second=1, per_frame=0)
_OVERHEAD = TokenBucketOptions(burst=10_000, per_second=1000, per_frame=4)


@dataclass(frozen=True, slots=True)
class Options:
    """Limits of one connection. Times are in seconds; 0 disables a timeout.

    Attributes:
        max_concurrent_streams: concurrent calls. Clients with thousands of long polls use one
            connection; an active call costs the core 70 to 250 bytes. Streams beyond the limit are
            refused and safe to retry.
        max_header_list_bytes: size of a header list, counting 32 extra bytes per field. gRPC's own
            servers allow 8 or 16 KiB. A larger list resets its stream; a block with more compressed
            bytes than this, which no encoder makes of a valid list, ends the connection.
        max_frame_bytes: largest frame accepted. Data is passed on as it arrives. With 48 KiB, large
            messages take a tenth less CPU than with the smallest limit that a server may set; a
            larger limit gains little more.
        stream_window_bytes: receive window of a stream: bytes a client may send ahead of the
            reader. A typical message fits, so a call needs no WINDOW_UPDATE.
        connection_window_bytes: receive window of the connection, which bounds the memory of unread
            data.
        output_bytes: response data that the client has not taken: bodies waiting for its windows or
            for the transport. A body beyond the limit is not accepted and its stream is reset.
        continuation_frames: CONTINUATION frames of one header block. A single full frame can hold
            the largest block allowed.
        resets: streams that the client cancels or makes us reset (CVE-2023-44487). A client may
            cancel all its active calls at once, and every second call forever.
        pings: PING frames. gRPC clients send at most one every 10 s, and otherwise in proportion to
            the data they receive (CVE-2019-9512).
        settings: SETTINGS frames, plus one token per 32 entries (CVE-2019-9515).
        overhead: frames that carry no message: WINDOW_UPDATE, PRIORITY, empty DATA, unknown types,
            frames on closed streams (CVE-2019-9511, CVE-2019-9518 and others).
        handshake_s: time for the client to send its preface and SETTINGS, and to acknowledge ours.
        header_block_s: time to complete a header block.
        keepalive_s: time without a complete frame after which a PING is sent.
        keepalive_timeout_s: time to wait for any frame after that PING.
        idle_s: time without a call after which the connection is closed gracefully.
        send_stall_s: time after which a stream is reset whose response waits for its window, or
            gets through in frames of less than 128 bytes only (CVE-2019-9517, CVE-2019-9511).
        drain_ping_s: time that the first GOAWAY waits for the acknowledgement of its PING before
            the final GOAWAY is sent.
        http1_hint: sentence for clients of HTTP/1 on where that is spoken.
    """

    max_concurrent_streams: int = 4096
    max_header_list_bytes: int = 16_384
    max_frame_bytes: int = 48 * 1024
    stream_window_bytes: int = 512 * 1024
    connection_window_bytes: int = 4 * 1024 * 1024
    output_bytes: int = 8 * 1024 * 1024
    continuation_frames: int = 16
    resets: TokenBucketOptions = _RESETS
    pings: TokenBucketOptions = _PINGS
    settings: TokenBucketOptions = _SETTINGS
    overhead: TokenBucketOptions = _OVERHEAD
    handshake_s: float = 10
    header_block_s: float = 10
    keepalive_s: float = 60
    keepalive_timeout_s: float = 20
    idle_s: float = 0
    send_stall_s: float = 300
    drain_ping_s: float = 1
    http1_hint: str = "There is no HTTP/1.1 API."

    def __post_init__(self) -> None:
        """Raise ValueError if the limits contradict the protocol or each other."""
        _check_range("max_concurrent_streams", self.max_concurrent_streams, 1, STREAM_ID_MAX)
        _check_range("max_header_list_bytes", self.max_header_list_bytes, 1024, STREAM_ID_MAX)
        # A single frame always fits the stream's window, so a request of one frame need not be
        # checked against it.
        most = min(_MAX_FRAME_LIMIT, self.stream_window_bytes)
        _check_range("max_frame_bytes", self.max_frame_bytes, MIN_MAX_FRAME_BYTES, most)
        # A client may use the protocol's default before it knows our settings.
        _check_range("stream_window_bytes", self.stream_window_bytes, DEFAULT_WINDOW_BYTES, STREAM_ID_MAX)
        _check_range(
            "connection_window_bytes", self.connection_window_bytes, DEFAULT_WINDOW_BYTES, STREAM_ID_MAX
        )
        _check_range("output_bytes", self.output_bytes, 1, STREAM_ID_MAX)

    @property
    def token_buckets(self) -> dict[Cost, TokenBucketOptions]:
        """Sizes of all token buckets."""
        return {
            Cost.RESET: self.resets,
            Cost.PING: self.pings,
            Cost.SETTINGS: self.settings,
            Cost.OVERHEAD: self.overhead,
        }

    @property
    def header_block_bytes(self) -> int:
        """Largest compressed header block.

        A block is decoded in one step, and 16 KiB can take several milliseconds.
        """
        return self.max_header_list_bytes


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}, expected {least} to {most}")
