"""pixy/rpc/health.py: Check and Watch with grpc's own client."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pixy.rpc.health import Health
from tests.fakes.echo import serve

STATUS = health_pb2.HealthCheckResponse


@pytest.fixture
async def health() -> Health:
    return Health(["a.B"])


@pytest.fixture
async def stub(health: Health) -> AsyncIterator[Any]:
    faults: list[BaseException] = []
    server, address = await serve([health.service()], faults)
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # the published types know the synchronous stub only
        yield stub
    await server.stop(0)
    assert faults == []


async def test_every_service_begins_as_not_serving_and_all_change_together(health: Health, stub: Any) -> None:
    for expected in (STATUS.NOT_SERVING, STATUS.SERVING, STATUS.NOT_SERVING):
        for service in ("", "a.B"):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == expected
        health.set_all(serving=expected == STATUS.NOT_SERVING)


async def test_an_unknown_service_is_not_found(stub: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Check(health_pb2.HealthCheckRequest(service="none"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_watcher_gets_the_current_health_and_every_change(health: Health, stub: Any) -> None:
    watch = stub.Watch(health_pb2.HealthCheckRequest(service="a.B"))
    assert (await watch.read()).status == STATUS.NOT_SERVING
    health.set_all(serving=True)
    assert (await watch.read()).status == STATUS.SERVING
    health.set_all(serving=True)
    health.set_all(serving=False)
    assert (await watch.read()).status == STATUS.NOT_SERVING
    watch.cancel()


async def test_a_watcher_of_an_unknown_service_gets_service_unknown(stub: Any) -> None:
    watch = stub.Watch(health_pb2.HealthCheckRequest(service="none"))
    assert (await watch.read()).status == STATUS.SERVICE_UNKNOWN
    watch.cancel()
