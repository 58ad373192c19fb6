"""A real gRPC server on a free loopback port with scripted answers."""

from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc

from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto import pixy_log_pb2 as log_pb
from pixy.proto import pixy_topics_pb2 as topics_pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyServicer, add_KafkaPixyServicer_to_server
from pixy.proto.pixy_cluster_pb2_grpc import ClusterServicer, add_ClusterServicer_to_server
from pixy.proto.pixy_log_pb2_grpc import LogServicer, add_LogServicer_to_server
from pixy.proto.pixy_topics_pb2_grpc import TopicsServicer, add_TopicsServicer_to_server
from pixy.records import NewRecord, Record, build_batch, patch_batch, read_records


class Refused(Exception):
    """Raised by a scripted answer to fail the call with a status."""

    def __init__(self, status: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.status = status


@dataclass
class FakePixy(KafkaPixyServicer, TopicsServicer, LogServicer, ClusterServicer):
    """Records every request and answers from `answers`: a message, or a function of the request."""

    calls: list[tuple[str, Any]] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)
    queue: list[pb.ConsRs] = field(default_factory=list)
    address: str = ""
    partitions: int = 1
    max_message_bytes: int = 1_000_000
    # Appended records by partition. Invariant: a record's index is its offset.
    log: dict[int, list[Record]] = field(default_factory=dict)

    def named(self, method: str) -> list[Any]:
        return [request for name, request in self.calls if name == method]

    @property
    def consuming(self) -> list[tuple[str, Any]]:
        """The calls, except the check that the topic exists."""
        return [call for call in self.calls if call[0] != "GetTopicMetadata"]

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

    def ConsumeBatch(self, request: Any, context: Any) -> Any:
        if "ConsumeBatch" not in self.answers:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method ConsumeBatch")
        return self._answer("ConsumeBatch", request, context)

    def Ack(self, request: Any, context: Any) -> Any:
        self.answers.setdefault("Ack", pb.AckRs())
        return self._answer("Ack", request, context)

    def GetOffsets(self, request: Any, context: Any) -> Any:
        return self._answer("GetOffsets", request, context)

    def SetOffsets(self, request: Any, context: Any) -> Any:
        return self._answer("SetOffsets", request, context)

    def DescribeTopics(self, request: Any, context: Any) -> Any:
        self.answers.setdefault("DescribeTopics", self._describe)
        return self._answer("DescribeTopics", request, context)

    def _describe(self, request: log_pb.DescribeTopicsRequest) -> log_pb.DescribeTopicsResponse:
        topics = [
            log_pb.Topic(topic=name, topic_id=b"i" * 16, version=1, partitions=self.partitions)
            for name in request.topics
        ]
        return log_pb.DescribeTopicsResponse(
            topics=topics, partitioner="hash", max_message_bytes=self.max_message_bytes
        )

    def Append(self, request: Any, context: Any) -> Any:
        self.answers.setdefault("Append", self.append)
        return self._answer("Append", request, context)

    def append(self, request: log_pb.AppendRequest) -> log_pb.AppendResponse:
        answer = log_pb.AppendResponse()
        for entry in request.partitions:
            records = self.log.setdefault(entry.partition, [])
            answer.results.add(base_offset=len(records))
            records += read_records(entry.batches)
        return answer

    def values(self, partition: int = 0) -> list[bytes | None]:
        return [record.value for record in self.log.get(partition, [])]

    def ListOffsets(self, request: Any, context: Any) -> Any:
        self.answers.setdefault("ListOffsets", self._list_offsets)
        return self._answer("ListOffsets", request, context)

    def _list_offsets(self, request: log_pb.ListOffsetsRequest) -> log_pb.ListOffsetsResponse:
        return log_pb.ListOffsetsResponse(
            answers=[log_pb.OffsetAnswer(offset=self._offset(query)) for query in request.queries]
        )

    def _offset(self, query: log_pb.OffsetQuery) -> int:
        records = self.log.get(query.partition, [])
        if query.HasField("timestamp_ms"):
            return next((each.offset for each in records if each.timestamp >= query.timestamp_ms), -1)
        return len(records) if query.latest else 0

    def Stage(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    def Publish(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    def Discard(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    def Fetch(self, request: Any, context: Any) -> Iterator[log_pb.FetchResponse]:
        if "Fetch" in self.answers:
            yield self._answer("Fetch", request, context)
            return
        self.calls.append(("Fetch", request))
        (wanted,) = request.ranges
        records = self.log.get(wanted.partition, [])
        batch = build_batch([NewRecord(r.key, r.value, r.headers, r.timestamp) for r in records])
        patch_batch(batch, 0, 0)
        yield log_pb.FetchResponse(batches=bytes(batch), next_offset=len(records), state=log_pb.END_OF_RANGE)

    def ListTopics(self, request: Any, context: Any) -> Any:
        return self._answer("ListTopics", request, context)

    def ListConsumers(self, request: Any, context: Any) -> Any:
        return self._answer("ListConsumers", request, context)

    def GetTopicMetadata(self, request: Any, context: Any) -> Any:
        self.answers.setdefault("GetTopicMetadata", pb.GetTopicMetadataRs())
        return self._answer("GetTopicMetadata", request, context)

    def ListGroups(self, request: Any, context: Any) -> Any:
        self.answers.setdefault("ListGroups", topics_pb.ListGroupsResponse())
        return self._answer("ListGroups", request, context)

    def DeleteGroup(self, request: Any, context: Any) -> Any:
        return self._answer("DeleteGroup", request, context)

    def CreateTopic(self, request: Any, context: Any) -> Any:
        return self._answer("CreateTopic", request, context)

    def AlterTopic(self, request: Any, context: Any) -> Any:
        return self._answer("AlterTopic", request, context)

    def DeleteRecords(self, request: Any, context: Any) -> Any:
        return self._answer("DeleteRecords", request, context)

    def DeleteTopic(self, request: Any, context: Any) -> Any:
        return self._answer("DeleteTopic", request, context)

    def Status(self, request: Any, context: Any) -> Any:
        if "Status" not in self.answers:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "this is a Kafka cluster")
        return self._answer("Status", request, context)

    def RemoveNode(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    def DrainNode(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    def PlanMoves(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    def BeginMoves(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    def ExportState(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    def ForgetNode(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    def DescribeTopic(self, request: Any, context: Any) -> Any:
        return self._answer("DescribeTopic", request, context)


def start(fake: FakePixy) -> grpc.Server:
    """Starts a server for the fake and sets its address."""
    server = grpc.server(futures.ThreadPoolExecutor(8))
    add_KafkaPixyServicer_to_server(fake, server)
    add_TopicsServicer_to_server(fake, server)
    add_LogServicer_to_server(fake, server)
    add_ClusterServicer_to_server(fake, server)
    fake.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    return server
