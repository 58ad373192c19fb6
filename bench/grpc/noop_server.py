"""The no-op server: grpc.aio, raw bytes in, a constant answer out. The upper limit of a gRPC server
in Python.

    python -m bench.grpc.noop_server

Answers Produce and ConsumeNAck of kafkapixy.proto with messages of typical size, without parsing
the request.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from pixy.proto import kafkapixy_pb2 as pb

_ANSWERS = {
    "Produce": pb.ProdRs(partition=1, offset=123_456),
    "ConsumeNAck": pb.ConsRs(partition=1, offset=123_456, key_undefined=True, message=bytes(100)),
}


def _handler(answer: bytes) -> Callable[[bytes, Any], Awaitable[bytes]]:
    async def handle(request: bytes, context: Any) -> bytes:
        return answer

    return handle


async def serve() -> None:
    """Serve until SIGTERM; print the address first."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        name: grpc.unary_unary_rpc_method_handler(_handler(answer.SerializeToString()))
        for name, answer in _ANSWERS.items()
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("KafkaPixy", methods)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print(f"noop ready grpc=127.0.0.1:{port}", flush=True)
    await stop.wait()
    await server.stop(None)


if __name__ == "__main__":
    try:
        import uvloop

        uvloop.run(serve())
    except ImportError:
        asyncio.run(serve())
