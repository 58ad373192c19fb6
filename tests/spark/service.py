"""The service `Log` in the test process, with scripted answers."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from threading import Condition
from typing import Any

import grpc

from pixy.proto import pixy_log_pb2 as pb

Answer = Callable[[Any, grpc.ServicerContext], Any]

_TOPIC = pb.Topic(topic="t", topic_id=b"t" * 16, partitions=1)
_METHODS: dict[str, tuple[Any, Any]] = {
    "DescribeTopics": (pb.DescribeTopicsRequest, pb.DescribeTopicsResponse(topics=[_TOPIC])),
    "Stage": (pb.StageRequest, pb.StageResponse()),
    "Publish": (pb.PublishRequest, pb.PublishResponse(published=True)),
    "Discard": (pb.DiscardRequest, pb.DiscardResponse()),
}
"""Request types, and their default answers."""


class FakeService:
    """A fake daemon with the topic `t`, sufficient for writers.

    Attributes:
        answers: answers of the next calls of a method, in turn; later calls get the default answer.
        requests: requests received, by method.
    """

    def __init__(self) -> None:
        self.answers: dict[str, list[Answer]] = {}
        self.requests: dict[str, list[Any]] = {}
        self._came = Condition()

    def wait_for(self, name: str, calls: int, seconds: float = 60.0) -> None:
        """Wait for a number of calls of a method."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.requests.get(name, ())) >= calls, seconds)

    def handler(self) -> grpc.GenericRpcHandler:
        """Handler of the methods."""
        methods = {
            name: grpc.unary_unary_rpc_method_handler(
                partial(self._answer, name, default), kind.FromString, type(default).SerializeToString
            )
            for name, (kind, default) in _METHODS.items()
        }
        return grpc.method_handlers_generic_handler("pixy.log.v1.Log", methods)

    def _answer(self, name: str, default: Any, request: Any, context: grpc.ServicerContext) -> Any:
        with self._came:
            self.requests.setdefault(name, []).append(request)
            self._came.notify_all()
            answers = self.answers.get(name)
            answer = answers.pop(0) if answers else None
        return default if answer is None else answer(request, context)


@contextmanager
def serving(service: FakeService) -> Iterator[str]:
    """Serve on a free port; yields the address."""
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((service.handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
