"""Incomplete requests of one connection: their bytes, their time, and when the client may go on.

A request is incomplete until its last byte has come; a message of a stream is, while a handler
waits for its rest. A request that waits to be parsed holds its bytes in the same way. All of them
together hold at most `request_bytes_max`; the call that exceeds it is refused. What has been
incomplete for too long is ended by the connection (`take_expired`).

The rest of a message may come at once if the message fits the window of its stream. A larger one is
admitted first, see `uploads`.
"""

from pixy.client_address import client_address
from pixy.http2 import Http2Connection
from pixy.rpc.call_environment import CallEnvironment
from pixy.rpc.status import GrpcError, Status
from pixy.rpc.uploads import Uploads
from pixy.serving import Link

_UPLOADS_PART = 2
"""Half of `request_bytes_max` is for admitted uploads.

The other half has the first bytes of those that wait.
"""
_BEGIN_PART = 4
"""Part of a stream's window that comes before a message asks for admission: so much that an
announced size costs its client something, and the client need not wait if it is admitted at once.
"""


class IncompleteRequests:
    """Bytes and times of incomplete requests, by stream.

    Args:
        link: of the connection.
        core: of the connection.
        environment: has the limits, and the quota of all connections.

    Attributes:
        held: bytes of each request that holds any.
        held_bytes: their sum.
        since: begin of each request, in seconds on the server's clock, ascending. `held` and
            `since` are the same dicts for life: the fast paths of a connection look into them.
    """

    __slots__ = ("_core", "_link", "_options", "_quota", "_uploads", "held", "held_bytes", "since")

    def __init__(self, link: Link, core: Http2Connection, environment: CallEnvironment) -> None:
        self._link = link
        self._core = core
        self._options = environment.options
        self._quota = environment.upload_quota
        # Invariant: held_bytes is the sum; none is 0.
        self.held: dict[int, int] = {}
        self.held_bytes = 0
        self.since: dict[int, float] = {}
        # Messages larger than the window of a stream; None until there is one.
        self._uploads: Uploads | None = None

    # --- bytes ------------------------------------------------------------------------------------

    def hold(self, stream_id: int, size: int) -> None:
        """Set the bytes that a request holds; 0 if it is complete.

        Raises:
            GrpcError: RESOURCE_EXHAUSTED, all of them together hold too many.
        """
        if not size:
            self.release(stream_id)
            return
        self.held_bytes += size - self.held.get(stream_id, 0)
        self.held[stream_id] = size
        self._link.note_held()
        if self.held_bytes > self._options.request_bytes_max:
            reason = (
                f"incomplete requests of this connection, and those that wait for their turn, exceed "
                f"{self._options.request_bytes_max} bytes: send fewer at a time"
            )
            raise GrpcError(Status.RESOURCE_EXHAUSTED, reason, limit="incomplete requests of a connection")

    def release(self, stream_id: int) -> None:
        """Release all bytes of a request."""
        self.held_bytes -= self.held.pop(stream_id, 0)
        self.end_part(stream_id)

    # --- parts of messages ------------------------------------------------------------------------

    def receive_part(self, stream_id: int, size: int, part: int) -> None:
        """Take a part of a message that is not complete.

        The client may continue at once, or when the message is admitted.

        Args:
            stream_id: of the call.
            size: bytes of the whole message, 0 if that is not known.
            part: bytes that have come.
        """
        self.since.setdefault(stream_id, self._link.workload.now)
        if size <= self._options.http2.stream_window_bytes:
            self._core.replenish(stream_id, part)
        else:
            if self._uploads is None:
                self._uploads = self._begin_uploads()
            self._core.replenish_connection(stream_id, part)
            if self._uploads.receive(stream_id, size, part):
                self._core.replenish_stream(stream_id, part)
        self._link.touch()

    def end_part(self, stream_id: int) -> None:
        """Forget a message that is complete, or abandoned."""
        self.complete(stream_id)
        if self._uploads is not None:
            self._uploads.end(stream_id)

    def _begin_uploads(self) -> Uploads:
        return Uploads(
            self._options.request_bytes_max // _UPLOADS_PART,
            self._quota,
            client_address(self._link.peer),
            self._options.http2.stream_window_bytes // _BEGIN_PART,
            self._admitted,
        )

    def _admitted(self, stream_id: int, withheld: int) -> None:
        """Let the client send an admitted message, and count its time from here on."""
        self.restart(stream_id)
        self._core.replenish_stream(stream_id, withheld)
        self._link.touch()

    # --- time -------------------------------------------------------------------------------------

    def restart(self, stream_id: int) -> None:
        """Measure the time of a request from now on."""
        self.since.pop(stream_id, None)
        self.since[stream_id] = self._link.workload.now

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

    def maybe_postpone(self, stream_id: int) -> bool:
        """Restart the time of an expired message that waits for admission; False for others."""
        if self._uploads is None or not self._uploads.waits(stream_id):
            return False
        self.restart(stream_id)
        return True

    def take_stalled(self) -> list[int]:
        """Streams of admitted messages that hardly come while others wait for admission. Called
        about once a second.
        """
        return [] if self._uploads is None else self._uploads.tick()
