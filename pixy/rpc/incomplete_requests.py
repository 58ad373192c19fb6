"""Incomplete requests of one connection: their bytes, and the time since when they are incomplete.

A request is incomplete until its last byte has come; a message of a stream is, while a handler
waits for its rest. All of them together hold at most `bytes_max`; the call that exceeds it is
refused. What has been incomplete for too long is ended by the connection (`take_expired`).
"""

from pixy.rpc.status import GrpcError, Status

__all__ = ["IncompleteRequests"]


class IncompleteRequests:
    """Bytes and times of incomplete requests, by stream.

    Args:
        bytes_max: bytes that they hold together.

    Attributes:
        held: bytes of each request that holds any.
        held_bytes: their sum.
        since: begin of each request, in seconds on the server's clock, ascending. `held` and
            `since` are the same dicts for life: the fast paths of a connection look into them.
    """

    __slots__ = ("_bytes_max", "held", "held_bytes", "since")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        # Invariant: held_bytes is the sum; none is 0.
        self.held: dict[int, int] = {}
        self.held_bytes = 0
        self.since: dict[int, float] = {}

    def hold(self, stream_id: int, size: int) -> None:
        """Set the bytes that a request holds, more than 0.

        Raises:
            GrpcError: RESOURCE_EXHAUSTED, all of them together hold too many.
        """
        self.held_bytes += size - self.held.get(stream_id, 0)
        self.held[stream_id] = size
        if self.held_bytes > self._bytes_max:
            reason = f"incomplete requests of this connection exceed grpc.request_buffer_bytes, {self._bytes_max} bytes"
            raise GrpcError(Status.RESOURCE_EXHAUSTED, reason)

    def release(self, stream_id: int) -> None:
        """Release the bytes of a request."""
        self.held_bytes -= self.held.pop(stream_id, 0)

    def restart(self, stream_id: int, now: float) -> None:
        """Measure the time of a request from now on."""
        self.since.pop(stream_id, None)
        self.since[stream_id] = now

    def complete(self, stream_id: int) -> None:
        """Measure the time of a request no more."""
        if self.since:
            self.since.pop(stream_id, None)

    def take_expired(self, since: float) -> int | None:
        """Remove and return a stream that has been incomplete since then or longer, if any."""
        if not self.since:
            return None
        stream_id, began = next(iter(self.since.items()))
        if began > since:
            return None
        del self.since[stream_id]
        return stream_id
