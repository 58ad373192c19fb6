"""The connection of a call, as the call knows it.

A call removes itself from the connection, gives its answer to the connection's core, and has its
work done in the connection's share of the event loop. It knows no other call.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from pixy.aio.byte_semaphore import ByteSemaphore
from pixy.http2 import Delivery, Field, Http2Connection, ResponseTemplate
from pixy.rpc.call_environment import CallEnvironment
from pixy.rpc.incomplete_requests import IncompleteRequests
from pixy.rpc.methods import MethodCounts
from pixy.rpc.status import GrpcError
from pixy.rpc.unpacking import Unpacker
from pixy.serving import Link, Receipt, Receipts, Workload


class Unpackable(Protocol):
    """A call that waits for a message to be decompressed, while it is `running`."""

    running: bool

    def unpacked(self, result: bytes | GrpcError) -> None:
        """The message, or why there is none."""


class CallHost(Protocol):
    """A connection.

    Attributes:
        environment: shared by all connections.
        core: HTTP/2.
        receipts: of answers that are under way.
        incomplete: requests that are not complete.
        link: its transport.
        workload: its share of the event loop.
        message_bytes_max: largest message of a request.
        step_began: time of the step that begins calls, None between steps.
        answered_at_once: counts of the methods of calls that were answered in the step in which
            they began; at its end they are timed together.
    """

    environment: CallEnvironment
    core: Http2Connection
    receipts: Receipts
    incomplete: IncompleteRequests
    link: Link
    workload: Workload
    message_bytes_max: int
    step_began: float | None
    answered_at_once: list[MethodCounts]

    # --- answers ----------------------------------------------------------------------------------

    def forget(self, stream_id: int) -> None:
        """Remove a call that has ended."""

    def respond(
        self, stream_id: int, template: ResponseTemplate, body: bytes, receipt: Receipt | None
    ) -> None:
        """End a call with its whole answer. The fast path of `forget` and `answered` in one."""

    def respond_all(
        self, stream_ids: Sequence[int], template: ResponseTemplate, bodies: Sequence[bytes]
    ) -> None:
        """End calls as `respond` does, without receipts."""

    def answered(self, stream_id: int, delivery: Delivery, receipt: Receipt | None) -> None:
        """Take the receipt of an answer that was given to the core, and schedule its write."""

    def take_receipt(self, stream_id: int, delivery: Delivery, receipt: Receipt) -> None:
        """Take the receipt of an answer that was given to the core."""

    def refuse(self, stream_id: int, headers: list[Field], trailers: list[Field]) -> None:
        """Answer with a status alone (Trailers-Only)."""

    def make_room(self, size: int) -> None:
        """Write until the core takes as many bytes, or the transport no more: the core would not
        accept the next answer otherwise.
        """

    @property
    def output_semaphore(self) -> ByteSemaphore:
        """Bounds large answers to half of the core's output, so that all others are accepted."""

    # --- handlers ---------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a handler in a task, whose steps the workload schedules."""

    async def pause(self) -> None:
        """Yield if the step that runs has used its time."""

    def unpack(self, call: Unpackable, packed: Unpacker) -> None:
        """Decompress a message of a call step by step, and give it `Unpackable.unpacked`."""

    @property
    def drain_event(self) -> asyncio.Event:
        """Set when a drain begins: of the server, or of a connection that has reached its age."""

    # --- requests ---------------------------------------------------------------------------------

    def replenish(self, stream_id: int, size: int) -> None:
        """Replenish the client's flow-control windows."""

    def broken(self, bug: Exception) -> None:
        """End the connection: an exception of the core is a bug."""
