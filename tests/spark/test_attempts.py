"""Retries: which calls, at which address and for how long, against a service with scripted
failures.
"""

from collections.abc import Iterator
from threading import Event
from typing import Any

import grpc
import pytest

from pixy.errors import FailedPrecondition, ResourceExhausted, Unavailable
from pixy.proto import pixy_log_pb2 as pb
from pixy.spark.client import LogClient
from pixy.spark.connection import ConnectionOptions
from tests.spark.service import FakeService, serving

pytestmark = pytest.mark.slow


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def address(service: FakeService) -> Iterator[str]:
    with serving(service) as address:
        yield address


def failing(code: grpc.StatusCode) -> Any:
    def fail(request: Any, context: grpc.ServicerContext) -> Any:
        context.abort(code, "on purpose")

    return fail


REQUEST = pb.PublishRequest(sink_id="s", epoch=3, query_id="q", stage_ids=["a"])


def test_a_publication_without_an_answer_in_time_is_retried(service: FakeService, address: str) -> None:
    ended = Event()

    def hang(request: Any, context: grpc.ServicerContext) -> Any:
        ended.wait(60)
        return pb.PublishResponse()

    def published_before(request: Any, context: grpc.ServicerContext) -> Any:
        return pb.PublishResponse(published=False, last_epoch=3)

    service.answers["Publish"] = [hang, published_before]
    client = LogClient(ConnectionOptions((address,), timeout_seconds=0.5, publish_timeout_seconds=60))
    try:
        assert client.publish(REQUEST) == pb.PublishResponse(published=False, last_epoch=3)
    finally:
        ended.set()
    assert service.requests["Publish"] == [REQUEST, REQUEST]


def test_a_publication_has_a_deadline_of_its_own(service: FakeService, address: str) -> None:
    service.answers["Publish"] = [failing(grpc.StatusCode.DEADLINE_EXCEEDED)] * 1000
    client = LogClient(ConnectionOptions((address,), timeout_seconds=60, publish_timeout_seconds=1.0))
    with pytest.raises(
        Unavailable,
        match=r"Publish: pixy did not answer within 1 s \(pixy\.publishTimeoutMs\): .*on purpose",
    ):
        client.publish(REQUEST)
    assert len(service.requests["Publish"]) > 1


def test_a_call_waits_for_capacity_at_the_same_address(service: FakeService, address: str) -> None:
    service.answers["Stage"] = [failing(grpc.StatusCode.RESOURCE_EXHAUSTED)] * 2
    client = LogClient(ConnectionOptions((address, "127.0.0.1:1"), timeout_seconds=60))
    assert client.stage(pb.StageRequest(sink_id="s", stage_id="a")) == pb.StageResponse()
    assert len(service.requests["Stage"]) == 3


def test_lasting_lack_of_capacity_is_an_error_of_its_own(service: FakeService, address: str) -> None:
    service.answers["Stage"] = [failing(grpc.StatusCode.RESOURCE_EXHAUSTED)] * 1000
    client = LogClient(ConnectionOptions((address,), timeout_seconds=1.0))
    with pytest.raises(
        ResourceExhausted,
        match=r"Stage: pixy had no capacity for it within 1 s \(pixy\.timeoutMs\): .*on purpose",
    ):
        client.stage(pb.StageRequest(sink_id="s", stage_id="a"))


def test_an_attempt_that_the_deadline_cuts_short_does_not_hide_an_earlier_answer(
    service: FakeService, address: str
) -> None:
    ended = Event()

    def hang(request: Any, context: grpc.ServicerContext) -> Any:
        ended.wait(60)
        return pb.StageResponse()

    service.answers["Stage"] = [failing(grpc.StatusCode.RESOURCE_EXHAUSTED), hang]
    client = LogClient(ConnectionOptions((address,), timeout_seconds=1.0))
    try:
        with pytest.raises(ResourceExhausted, match=r"no capacity for it within 1 s .*on purpose"):
            client.stage(pb.StageRequest(sink_id="s", stage_id="a"))
    finally:
        ended.set()


def test_a_rejected_call_is_not_retried(service: FakeService, address: str) -> None:
    service.answers["Publish"] = [failing(grpc.StatusCode.FAILED_PRECONDITION)]
    with pytest.raises(FailedPrecondition, match="on purpose"):
        LogClient(ConnectionOptions((address,))).publish(REQUEST)
    assert len(service.requests["Publish"]) == 1
