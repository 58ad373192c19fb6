"""State that the gRPC connections of a server share: methods, limits, deadlines, uploads."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pixy.aio.address_quota import AddressQuota, AddressSemaphore
from pixy.client_address import share_of
from pixy.faults import internal_error
from pixy.http2 import Options
from pixy.rpc.deadlines import Deadlines
from pixy.rpc.interception import Interceptor
from pixy.rpc.methods import Method
from pixy.rpc.status import GrpcError, Status
from pixy.serving import Environment, LimitLog

_MIB = 1 << 20
_PARSED_PART = 16
"""Part of `buffer_bytes` for parsed requests of each method."""


@dataclass(frozen=True, slots=True)
class GrpcOptions:
    """The limits of gRPC's connections, beside those of the server. Times are in seconds; 0
    switches a time off.

    Attributes:
        http2: of each connection.
        message_bytes_max: largest message that a client may send, compressed or not.
        request_bytes_max: bytes of incomplete requests, per connection.
        request_s: time to complete a request that has begun, or a message for which a handler
            waits.
    """

    http2: Options = field(default_factory=Options)
    message_bytes_max: int = 4 * _MIB
    request_bytes_max: int = 16 * _MIB
    request_s: float = 120


class CallEnvironment:
    """Shared by the gRPC connections of one server in the running event loop.

    Args:
        environment: shared by the connections of all protocols.
        methods: by path.
        options: limits.
        intercept: sees each call before its handler.

    Attributes:
        shared: the first argument.
        strangers: log of clients that speak something else.
        deadlines: of all calls.
        upload_quota: of large messages.
        parsed_semaphores: memory of parsed requests that are not small, by name of each method
            whose requests are weighed. Each has its own, so that calls that take long hold up none
            of others.
        counters, limits, tasks, note: of `shared`.
    """

    def __init__(
        self,
        environment: Environment,
        methods: Mapping[bytes, Method],
        options: GrpcOptions,
        intercept: Interceptor,
    ) -> None:
        self.shared = environment
        self.counters = environment.counters
        self.limits = environment.limits
        self.tasks = environment.tasks
        self.note = environment.note
        larger = options.message_bytes_max + 1
        self.methods = {
            path: replace(method, checked_bytes_min=min(method.checked_bytes_min, larger))
            for path, method in methods.items()
        }
        self.options = options
        self.intercept = intercept
        self.strangers = LimitLog("a client does not speak gRPC", "reason")
        self.deadlines = Deadlines(environment.clock)
        uploads_bytes = environment.options.buffer_bytes // 2
        uploads_share = share_of(uploads_bytes, environment.options.client_share_percent)
        self.upload_quota = AddressQuota(uploads_bytes, uploads_share)
        parsed_bytes = environment.options.buffer_bytes // _PARSED_PART
        parsed_share = share_of(parsed_bytes, environment.options.client_share_percent)
        self.parsed_semaphores = {
            method.name: AddressSemaphore(parsed_bytes, parsed_share)
            for method in methods.values()
            if method.is_weighed
        }

    def status_of(self, error: Exception, method: Method) -> GrpcError:
        """The status of a handler's error; INTERNAL for a bug, which is noted."""
        translated = error if isinstance(error, GrpcError) else method.translate(error)
        if translated is None:
            self.note(error)
            translated = GrpcError(Status.INTERNAL, str(internal_error(error)))
        return translated
