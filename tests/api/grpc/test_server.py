"""pixy/api/grpc/server.py: addresses, health, reflection."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from pixy.clock import SystemClock
from pixy.config import TlsConfig
from pixy.errors import StartError
from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from tests.api.grpc.conftest import CONFIG, ServedNode
from tests.fakes.server import LoneGrpcServer

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def health(channel: grpc.aio.Channel, service: str) -> int:
    stub: Any = health_pb2_grpc.HealthStub(channel)  # the published types know the synchronous stub only
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    status: int = answer.status
    return status


@pytest.mark.slow
async def test_health_is_the_last_status_set_for_every_service(
    served: ServedNode, channel: grpc.aio.Channel
) -> None:
    names = ("", "KafkaPixy", "pixy.topics.v1.Topics", "pixy.log.v1.Log", "pixy.cluster.v1.Cluster")
    assert [await health(channel, name) for name in names] == [SERVING] * 5
    served.server.set_health(serving=False)
    assert [await health(channel, name) for name in names] == [NOT_SERVING] * 5


@pytest.mark.slow
async def test_reflection_lists_the_services(channel: grpc.aio.Channel) -> None:
    make_stub: Any = (
        reflection_pb2_grpc.ServerReflectionStub
    )  # the published types know synchronous channels only
    stub = make_stub(channel)
    requests = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    answers = [answer async for answer in stub.ServerReflectionInfo(requests)]
    names = {service.name for service in answers[0].list_services_response.service}
    assert names == {
        "KafkaPixy",
        "pixy.topics.v1.Topics",
        "pixy.log.v1.Log",
        "pixy.cluster.v1.Cluster",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }


@pytest.mark.slow
async def test_port_zero_is_reported_as_the_actual_port(served: ServedNode) -> None:
    host, port = served.addresses["grpc"].rsplit(":", 1)
    assert host == "127.0.0.1"
    assert int(port) > 0


@pytest.mark.slow
async def test_the_unix_socket_is_served_too_and_removed_afterwards(
    served: ServedNode, tmp_path: Path
) -> None:
    async with grpc.aio.insecure_channel(served.addresses["grpc-unix"]) as channel:
        await KafkaPixyStub(channel).ListTopics(pb.ListTopicRq())
    await served.server.stop(0)
    assert not (tmp_path / "pixy.sock").exists()


async def test_a_taken_port_is_an_error_that_names_the_address(served: ServedNode) -> None:
    taken = served.addresses["grpc"]
    server = LoneGrpcServer(
        replace(CONFIG, grpc_addr=taken), {"": served.proxy}, SystemClock(), served.faults.append
    )
    hint = r"Address already in use: end the process that has it, or set another grpc_addr \(--grpc-addr\)"
    with pytest.raises(StartError, match=f"cannot listen on {taken}: {hint}"):
        await server.start()
    await server.stop(0)


@pytest.mark.parametrize(
    ("tcp_addr", "hint"),
    [
        ("127.0.0.1:19092", b"The HTTP API has a port of its own, 19092 (tcp_addr).\n"),
        ("", b"There is no HTTP/1.1 API: tcp_addr is not set.\n"),
    ],
)
async def test_a_client_of_http1_learns_where_that_is_spoken(
    served: ServedNode, tcp_addr: str, hint: bytes
) -> None:
    server = LoneGrpcServer(
        replace(CONFIG, tcp_addr=tcp_addr), {"": served.proxy}, SystemClock(), served.faults.append
    )
    host, port = (await server.start())["grpc"].rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /topics HTTP/1.1\r\nHost: pixy\r\n\r\n")
    async with asyncio.timeout(30):
        assert (await reader.read()).endswith(b"\r\n\r\nThis port serves gRPC over HTTP/2. " + hint)
    writer.close()
    await server.stop(0)


async def test_a_regular_file_in_place_of_the_socket_is_left_alone(
    served: ServedNode, tmp_path: Path
) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    server = LoneGrpcServer(
        replace(CONFIG, grpc_addr="", unix_addr=str(path)),
        {"": served.proxy},
        SystemClock(),
        served.faults.append,
    )
    with pytest.raises(StartError, match="is not a socket"):
        await server.start()
    assert path.read_text() == "data"
    await server.stop(0)


async def test_a_certificate_that_cannot_be_read_is_an_error(served: ServedNode, tmp_path: Path) -> None:
    tls = TlsConfig(certificate_path=str(tmp_path / "none.pem"), key_path=str(tmp_path / "none.key"))
    server = LoneGrpcServer(replace(CONFIG, tls=tls), {"": served.proxy}, SystemClock(), served.faults.append)
    with pytest.raises(StartError, match=r"none\.pem"):
        await server.start()
    await server.stop(0)


async def test_an_address_of_another_machine_is_an_error_that_says_so(served: ServedNode) -> None:
    config = replace(CONFIG, grpc_addr="192.0.2.1:0")
    server = LoneGrpcServer(config, {"": served.proxy}, SystemClock(), served.faults.append)
    with pytest.raises(StartError, match=r"cannot listen on 192\.0\.2\.1:0: Cannot assign"):
        await server.start()
    await server.stop(0)


async def test_a_file_that_is_no_certificate_is_an_error(served: ServedNode, tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("not a certificate")
    tls = TlsConfig(certificate_path=str(tmp_path / "bad.pem"), key_path=str(tmp_path / "bad.pem"))
    server = LoneGrpcServer(replace(CONFIG, tls=tls), {"": served.proxy}, SystemClock(), served.faults.append)
    with pytest.raises(StartError, match=r"tls\.certificate_path .*bad\.pem .* cannot be used"):
        await server.start()
    await server.stop(0)
