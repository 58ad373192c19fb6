"""The server for gRPC's interoperability tests, on pixy's gRPC server: `python -m
tests.judges.interop_server [CERTIFICATE KEY]`.

It implements the server of grpc's doc/interop-test-descriptions.md. Prints its address, serves
until SIGTERM, and exits with 1 after a fault: an exception of the server itself, or one of a
handler that is not a status.
"""

import asyncio
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from pixy.clock import SystemClock
from pixy.config import TlsConfig
from pixy.rpc import GrpcError, GrpcFactory, GrpcOptions, Handler, Service, Status, StreamCall, UnaryCall
from pixy.serving import Server, ServerOptions
from tests.judges.descriptors import ORCA, TEST, message_class

_SERVER_ID = "pixy"
_GRACE_S = 1.0
_ECHO_INITIAL, _ECHO_TRAILING = "x-grpc-test-echo-initial", "x-grpc-test-echo-trailing-bin"
_LOAD_REPORT = "endpoint-load-metrics-bin"

_Payload = message_class("grpc.testing.Payload")
_OrcaLoadReport = message_class("xds.service.orca.v3.OrcaLoadReport")
_Empty = message_class("grpc.testing.Empty")
_SimpleResponse = message_class("grpc.testing.SimpleResponse")
_StreamingInputCallResponse = message_class("grpc.testing.StreamingInputCallResponse")
_StreamingOutputCallResponse = message_class("grpc.testing.StreamingOutputCallResponse")


class TestService:
    """Implements `grpc.testing.TestService` and the load reports that two of the cases check."""

    __test__ = False  # not a test class for pytest

    def __init__(self) -> None:
        # The reported load of the server; replaced on a client's request.
        self._report = _OrcaLoadReport()
        self._report_changed = asyncio.Event()

    def services(self) -> list[Service]:
        """Handlers of the service. `UnimplementedCall` has none, as its case requires."""
        handlers: dict[str, Handler] = {
            "EmptyCall": self.empty_call,
            "UnaryCall": self.unary_call,
            "StreamingOutputCall": self.streaming_output_call,
            "StreamingInputCall": self.streaming_input_call,
            "FullDuplexCall": self.full_duplex_call,
        }
        return [Service(TEST, handlers), Service(ORCA, {"StreamCoreMetrics": self.stream_core_metrics})]

    def empty_call(self, request: Any, call: UnaryCall) -> None:
        call.answer(_Empty())

    def unary_call(self, request: Any, call: UnaryCall) -> None:
        _echo_metadata(call)
        _check_compression(request, call)
        _maybe_fail(request)
        if request.HasField("orca_per_query_report"):
            report = _load_report(request.orca_per_query_report)
            call.add_trailing_metadata(_LOAD_REPORT, report.SerializeToString())
        call.compress = request.response_compressed.value
        answer = _SimpleResponse(payload=_payload(request.response_size))
        if request.fill_server_id:
            answer.server_id = _SERVER_ID
        call.answer(answer)

    async def streaming_output_call(self, request: Any, call: StreamCall) -> None:
        await _send_all(request.response_parameters, call)

    async def streaming_input_call(self, call: StreamCall) -> Any:
        size = 0
        async for request in call:
            _check_compression(request, call)
            size += len(request.payload.body)
        return _StreamingInputCallResponse(aggregated_payload_size=size)

    async def full_duplex_call(self, call: StreamCall) -> None:
        _echo_metadata(call)
        async for request in call:
            _maybe_fail(request)
            if request.HasField("orca_oob_report"):
                self._report = _load_report(request.orca_oob_report)
                self._report_changed.set()
                self._report_changed = asyncio.Event()
            await _send_all(request.response_parameters, call)

    async def stream_core_metrics(self, request: Any, call: StreamCall) -> None:
        while True:
            changed = self._report_changed
            await call.send(self._report)
            await changed.wait()


def _payload(size: int) -> Any:
    if size < 0:
        raise GrpcError(Status.INVALID_ARGUMENT, f"a payload of {size} bytes")
    return _Payload(body=bytes(size))


def _echo_metadata(call: UnaryCall | StreamCall) -> None:
    for name, value in call.metadata:
        if name == _ECHO_INITIAL:
            call.add_initial_metadata(name, value)
        elif name == _ECHO_TRAILING:
            call.add_trailing_metadata(name, value)


def _check_compression(request: Any, call: UnaryCall | StreamCall) -> None:
    if request.HasField("expect_compressed") and request.expect_compressed.value != call.request_compressed:
        raise GrpcError(Status.INVALID_ARGUMENT, "the request is not compressed as it says")


def _maybe_fail(request: Any) -> None:
    if request.response_status.code:
        raise GrpcError(request.response_status.code, request.response_status.message)


def _load_report(report: Any) -> Any:
    return _OrcaLoadReport(
        cpu_utilization=report.cpu_utilization,
        mem_utilization=report.memory_utilization,
        request_cost=dict(report.request_cost),
        utilization=dict(report.utilization),
    )


async def _send_all(parameters: Sequence[Any], call: StreamCall) -> None:
    for one in parameters:
        await asyncio.sleep(one.interval_us / 1e6)
        call.compress = one.compressed.value
        await call.send(_StreamingOutputCallResponse(payload=_payload(one.size)))


async def serve(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM; returns the exit status."""
    faults: list[BaseException] = []
    server = Server(ServerOptions(), SystemClock(), faults.append)
    factory = GrpcFactory(server.environment, TestService().services(), GrpcOptions())
    tls = TlsConfig(certificate_path=arguments[0], key_path=arguments[1]) if arguments else None
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    print(f"interop ready grpc={await server.listen('127.0.0.1:0', factory, tls)}", flush=True)
    await stopping.wait()
    await server.stop(_GRACE_S)
    for fault in faults:
        traceback.print_exception(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(serve(sys.argv[1:])))
