"""The service `grpc.health.v1.Health` (gRPC Health Checking Protocol)."""

import asyncio
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, cast

from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2 as pb

from pixy.rpc.call import UnaryCall
from pixy.rpc.methods import Service
from pixy.rpc.status import GrpcError, Status
from pixy.rpc.stream import StreamCall

# The published types of the package are incomplete.
HEALTH: ServiceDescriptor = cast(Any, pb.DESCRIPTOR).services_by_name["Health"]


class Health:
    """Health of a server and of its services.

    Args:
        services: full names, and other parts of the server that have a health of their own; "" is
            added for the server as a whole. All begin as NOT_SERVING.
    """

    def __init__(self, services: Iterable[str]) -> None:
        self._serving = dict.fromkeys(("", *services), False)
        # Set, and replaced by a new one, at each change.
        self._changed = asyncio.Event()

    def set_all(self, serving: bool, others: Mapping[str, bool] = MappingProxyType({})) -> None:
        """Set the health of the server and of all services.

        Args:
            others: those with another health.
        """
        self._serving = {**dict.fromkeys(self._serving, serving), **others}
        self._changed.set()
        self._changed = asyncio.Event()

    def service(self) -> Service:
        """The service with its handlers."""
        return Service(HEALTH, {"Check": self.check, "Watch": self.watch}, maxima={})

    def check(self, request: pb.HealthCheckRequest, call: UnaryCall) -> None:
        """# health.proto: Check"""
        if request.service not in self._serving:
            raise GrpcError(Status.NOT_FOUND, f"unknown service {request.service}")
        call.answer(pb.HealthCheckResponse(status=self._status(request.service)))

    async def watch(self, request: pb.HealthCheckRequest, call: StreamCall) -> None:
        """# health.proto: Watch"""
        # Nothing else of the request is kept, for as long as its client likes.
        service = request.service if request.service in self._serving else None
        del request
        last: int | None = None
        while True:
            changed, status = self._changed, self._status(service)
            if status != last:
                last = status
                await call.send(pb.HealthCheckResponse(status=status))
            await changed.wait()

    def _status(self, service: str | None) -> Any:
        serving = None if service is None else self._serving.get(service)
        if serving is None:
            return pb.HealthCheckResponse.SERVICE_UNKNOWN
        return pb.HealthCheckResponse.SERVING if serving else pb.HealthCheckResponse.NOT_SERVING
