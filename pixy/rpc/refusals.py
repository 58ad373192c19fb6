"""Requests that begin no call: their header section, the interceptor or a limit refuses them.

A client of gRPC is answered at once, one that does not speak it when its request is complete.
"""

from functools import lru_cache

from pixy.http2 import Http2Connection
from pixy.rpc.call_environment import CallEnvironment
from pixy.rpc.headers import CallHeaders, Refusal, refusal_fields
from pixy.rpc.incomplete_requests import IncompleteRequests
from pixy.rpc.interception import CallHead
from pixy.rpc.methods import Method
from pixy.rpc.status import GrpcError, Status
from pixy.serving import Excess, Link


class Refusals:
    """Refused requests of one connection, and the place where they are refused.

    Args:
        link: of the connection.
        core: of the connection.
        environment: has the interceptor.
        incomplete: has the times of refused requests that are not complete.
    """

    __slots__ = ("_core", "_environment", "_incomplete", "_link", "_waiting")

    def __init__(
        self, link: Link, core: Http2Connection, environment: CallEnvironment, incomplete: IncompleteRequests
    ) -> None:
        self._link = link
        self._core = core
        self._environment = environment
        self._incomplete = incomplete
        # Refusals of requests that are answered when they are complete, by stream.
        self._waiting: dict[int, Refusal] = {}

    def maybe_admit(self, stream_id: int, head: CallHeaders, *, ended: bool) -> Method | None:
        """Ask the interceptor for the caller's principal; None if the call is refused.

        The head keeps the principal for calls with the same header section, and no refusal.
        """
        refusal, called, transport = head.refusal, head.called, self._link.transport
        if refusal is None:
            assert called is not None
            try:
                head.principal = self._environment.intercept(
                    CallHead(called.name, transport.peer, transport.certificate, head.fields)
                )
            except Exception as error:
                refusal = Refusal(refusal_fields(self._environment.status_of(error, called)))
            else:
                head.method = called
                return called
        if refusal.text and not ended:
            self._waiting[stream_id] = refusal
            self._incomplete.restart(stream_id)
        else:
            self._answer(stream_id, refusal)
        return None

    def refuse_beyond(self, stream_id: int) -> None:
        """Refuse a call that exceeds the open calls of the server, or of a client address."""
        excess = self._environment.shared.open_calls.excess()
        self._environment.limits.hit(excess.limit, self._link.peer)
        self._answer(stream_id, _refusal_of(excess))

    def complete(self, stream_id: int) -> None:
        """Answer a refused request that is complete, or has not been for too long."""
        self._incomplete.complete(stream_id)
        refusal = self._waiting.pop(stream_id, None)
        if refusal is not None:
            self._answer(stream_id, refusal)

    def reset(self, stream_id: int) -> None:
        """Forget a request whose stream was reset."""
        if self._waiting.pop(stream_id, None) is not None:
            self._incomplete.complete(stream_id)

    def _answer(self, stream_id: int, refusal: Refusal) -> None:
        self._environment.counters.rejected += 1
        if refusal.text:
            self._core.send_headers(stream_id, refusal.fields)
            self._core.send_data(stream_id, refusal.text)
            self._core.send_trailers(stream_id, ())
        else:
            self._core.send_trailers(stream_id, refusal.fields)
        self._link.touch()


@lru_cache(maxsize=8)
def _refusal_of(excess: Excess) -> Refusal:
    return Refusal(refusal_fields(GrpcError(Status.RESOURCE_EXHAUSTED, excess.text, limit=excess.limit)))
