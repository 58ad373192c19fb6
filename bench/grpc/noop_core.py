"""The no-op server on pixy's own core: the answers of `noop_server`, but with parsed requests.

python -m bench.grpc.noop_core [CERTIFICATE KEY]
"""

import asyncio
import signal
import sys

from pixy.clock import SystemClock
from pixy.config import TlsConfig
from pixy.daemon import prepare_interpreter, settle_interpreter
from pixy.proto import kafkapixy_pb2 as pb
from pixy.rpc import GrpcFactory, GrpcOptions, Handler, Service, UnaryCall
from pixy.serving import Server, ServerOptions


def _produce(request: pb.ProdRq, call: UnaryCall) -> None:
    call.answer(pb.ProdRs(partition=1, offset=123_456))


def _consume_n_ack(request: pb.ConsNAckRq, call: UnaryCall) -> None:
    call.answer(pb.ConsRs(partition=1, offset=123_456, key_undefined=True, message=bytes(100)))


def _fault(error: BaseException) -> None:
    raise error


async def serve(certificate: str = "", key: str = "") -> None:
    """Serve until SIGTERM; print the address first."""
    handlers: dict[str, Handler] = {"Produce": _produce, "ConsumeNAck": _consume_n_ack}
    service = Service(pb.DESCRIPTOR.services_by_name["KafkaPixy"], handlers)
    server = Server(ServerOptions(), SystemClock(), _fault)
    factory = GrpcFactory(server.environment, [service], GrpcOptions())
    tls = TlsConfig(certificate_path=certificate, key_path=key) if certificate else None
    address = await server.listen("127.0.0.1:0", factory, tls)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    settle_interpreter()
    print(f"noop ready grpc={address}", flush=True)
    await stop.wait()
    await server.stop(0)


if __name__ == "__main__":
    prepare_interpreter()
    try:
        import uvloop

        uvloop.run(serve(*sys.argv[1:]))
    except ImportError:
        asyncio.run(serve(*sys.argv[1:]))
