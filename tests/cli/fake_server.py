"""A real gRPC server on a free port of loopback whose answers a test scripts."""

from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc

from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyServicer, add_KafkaPixyServicer_to_server
from pixy.proto.pixy_topics_pb2_grpc import TopicsServicer, add_TopicsServicer_to_server


class Refused(Exception):
    """What a scripted answer raises to have the call fail with a status."""

    def __init__(self, status: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.status = status


@dataclass
class FakePixy(KafkaPixyServicer, TopicsServicer):
    """Records every request and answers what the test put into `answers`: a message, or a function of the request."""

    calls: list[tuple[str, Any]] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)
    queue: list[pb.ConsRs] = field(default_factory=list)
    address: str = ""

    def named(self, method: str) -> list[Any]:
        return [request for name, request in self.calls if name == method]

    def _answer(self, method: str, request: Any, context: Any) -> Any:
        self.calls.append((method, request))
        answer: Any = self.answers.get(method)
        try:
            return answer(request) if callable(answer) else answer
        except Refused as refused:
            context.abort(refused.status, str(refused))

    def Produce(self, request: Any, context: Any) -> Any:
        return self._answer("Produce", request, context)

    def ConsumeNAck(self, request: Any, context: Any) -> Any:
        self.answers.setdefault("ConsumeNAck", self._take)
        return self._answer("ConsumeNAck", request, context)

    def _take(self, _: pb.ConsNAckRq) -> pb.ConsRs:
        if not self.queue:
            raise Refused(grpc.StatusCode.NOT_FOUND, "long polling timeout")
        return self.queue.pop(0)

    def Ack(self, request: Any, context: Any) -> Any:
        self.answers.setdefault("Ack", pb.AckRs())
        return self._answer("Ack", request, context)

    def GetOffsets(self, request: Any, context: Any) -> Any:
        return self._answer("GetOffsets", request, context)

    def SetOffsets(self, request: Any, context: Any) -> Any:
        return self._answer("SetOffsets", request, context)

    def ListTopics(self, request: Any, context: Any) -> Any:
        return self._answer("ListTopics", request, context)

    def ListConsumers(self, request: Any, context: Any) -> Any:
        return self._answer("ListConsumers", request, context)

    def GetTopicMetadata(self, request: Any, context: Any) -> Any:
        return self._answer("GetTopicMetadata", request, context)

    def CreateTopic(self, request: Any, context: Any) -> Any:
        return self._answer("CreateTopic", request, context)

    def AlterTopic(self, request: Any, context: Any) -> Any:
        return self._answer("AlterTopic", request, context)

    def DeleteTopic(self, request: Any, context: Any) -> Any:
        return self._answer("DeleteTopic", request, context)

    def DescribeTopic(self, request: Any, context: Any) -> Any:
        return self._answer("DescribeTopic", request, context)


def start(fake: FakePixy) -> grpc.Server:
    """Starts a server for the fake and writes its address into it."""
    server = grpc.server(futures.ThreadPoolExecutor(8))
    add_KafkaPixyServicer_to_server(fake, server)
    add_TopicsServicer_to_server(fake, server)
    fake.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    return server
