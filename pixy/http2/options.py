"""What one connection may cost, as options with defaults and the reason of each."""

from dataclasses import dataclass

from pixy.http2.frames import MIN_MAX_FRAME_BYTES, STREAM_ID_MAX
from pixy.http2.token_buckets import Cost, TokenBucketOptions

__all__ = ["DEFAULT_WINDOW_BYTES", "Options"]

DEFAULT_WINDOW_BYTES = 65_535
"""What a peer may send, per stream and in all, before it knows our settings (RFC 9113 §6.9.2)."""

_MAX_FRAME_LIMIT = 2**24 - 1


_RESETS = TokenBucketOptions(burst=4096, per_second=100, per_frame=0.5)
_PINGS = TokenBucketOptions(burst=100, per_second=1, per_frame=1)
_SETTINGS = TokenBucketOptions(burst=100, per_second=1, per_frame=0)
_OVERHEAD = TokenBucketOptions(burst=10_000, per_second=1000, per_frame=4)


@dataclass(frozen=True, slots=True)
class Options:
    """Limits of one connection. Times are in seconds; 0 switches a time off.

    Attributes:
        max_concurrent_streams: calls that run at once. Clients with thousands of long polls use one connection; a running call
            costs the core 70 to 250 bytes. More are refused, and safe to try again.
        max_header_list_bytes: fields of a request with 32 bytes for each. gRPC's own servers take 8 or 16 KiB. Beyond it the
            stream is reset; beyond as many compressed bytes, which is more than any encoder makes of it, the connection ends.
        max_frame_bytes: the largest frame that is taken. Data are passed on as they come. With 48 KiB, large messages take a tenth less
            of a processor than with the least that a server may say; a larger limit gains little more.
        stream_window_bytes: what a client may send on a stream ahead of the reader. A usual message fits, so that a call needs
            no WINDOW_UPDATE.
        connection_window_bytes: the same for the connection, hence the memory that unread data can take.
        output_bytes: data that the client does not take: bodies that wait for its windows or for the transport. A body beyond it
            is not accepted and its stream reset.
        continuation_frames: frames that one header block may be cut into. One holds what is allowed, if it is full.
        resets: streams that the client cancels or makes us reset (CVE-2023-44487). A client may give up everything that it has
            running at once, and one in two calls for ever.
        pings: gRPC's clients ping every 10 s at most, and in proportion to what they receive (CVE-2019-9512).
        settings: SETTINGS frames, and one more for each 32 entries (CVE-2019-9515).
        overhead: frames that move no message: WINDOW_UPDATE, PRIORITY, empty DATA, unknown types, frames for closed streams
            (CVE-2019-9511, CVE-2019-9518 and others).
        handshake_s: until the client has sent its preface and settings, and acknowledged ours.
        header_block_s: until a header block that has begun must be complete.
        keepalive_s: a connection on which nothing whole was received for so long is sent a PING.
        keepalive_timeout_s: how long a PING, of ours, may stay without any sign of life.
        idle_s: a connection without a call for so long is closed gracefully.
        send_stall_s: a stream whose answer has waited for its window for so long, or was let out in crumbs of less than 128 bytes,
            is reset (CVE-2019-9517, CVE-2019-9511).
        drain_ping_s: how long the first GOAWAY waits for the answer to its PING before the final one is sent.
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

    def __post_init__(self) -> None:
        """Raises ValueError if the limits contradict the protocol or each other."""
        _check_range("max_concurrent_streams", self.max_concurrent_streams, 1, STREAM_ID_MAX)
        _check_range("max_header_list_bytes", self.max_header_list_bytes, 1024, STREAM_ID_MAX)
        # One frame fits the window of its stream, so a request of one frame need not be held against it.
        most = min(_MAX_FRAME_LIMIT, self.stream_window_bytes)
        _check_range("max_frame_bytes", self.max_frame_bytes, MIN_MAX_FRAME_BYTES, most)
        # A client may use the protocol's default before it has our settings.
        _check_range("stream_window_bytes", self.stream_window_bytes, DEFAULT_WINDOW_BYTES, STREAM_ID_MAX)
        _check_range(
            "connection_window_bytes", self.connection_window_bytes, DEFAULT_WINDOW_BYTES, STREAM_ID_MAX
        )
        _check_range("output_bytes", self.output_bytes, 1, STREAM_ID_MAX)

    @property
    def token_buckets(self) -> dict[Cost, TokenBucketOptions]:
        """The sizes of all budgets."""
        return {
            Cost.RESET: self.resets,
            Cost.PING: self.pings,
            Cost.SETTINGS: self.settings,
            Cost.OVERHEAD: self.overhead,
        }

    @property
    def header_block_bytes(self) -> int:
        """Compressed bytes of a header block. A block is decoded in one go, and 16 KiB can take some milliseconds."""
        return self.max_header_list_bytes


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}, allowed are {least} to {most}")
