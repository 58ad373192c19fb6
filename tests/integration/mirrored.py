"""Mirrors as processes, and the records of both clusters, compared one by one."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto import pixy_log_pb2 as log_pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from pixy.proto.pixy_log_pb2_grpc import LogStub
from pixy.records import Header, NewRecord, build_batch, read_records
from tests.fakes.batches import as_batches
from tests.integration.daemon import CHANNEL_OPTIONS

SECONDS = 300.0
"""Only ends a test that would hang: on a busy machine a command takes most of a minute."""


class Copy(NamedTuple):
    """The parts of a record that its copy has to have."""

    key: bytes | None
    value: bytes | None
    headers: list[Header]
    timestamp: int


class Place(NamedTuple):
    """A cluster at a daemon."""

    address: str
    cluster: str = ""


def arguments_of(source: Place, target: Place, *others: str) -> list[str]:
    """Arguments of a mirror, of all topics unless others are named."""
    return [
        *(sys.executable, "-m", "pixy", "mirror", "--json"),
        *(() if "--topics" in others else ("--topics", "*")),
        *("--from", source.address, "--from-cluster", source.cluster),
        *("--to", target.address, "--to-cluster", target.cluster),
        *others,
    ]


def mirror_once(source: Place, target: Place, *others: str) -> list[dict[str, Any]]:
    """Mirror what is there; returns the events."""
    done = subprocess.run(
        arguments_of(source, target, "--once", *others),
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, (done.stderr, done.stdout)
    return [json.loads(line) for line in done.stdout.splitlines()]


def refused(source: Place, target: Place, *others: str) -> str:
    """Run a mirror that ends with an error; returns that."""
    arguments = arguments_of(source, target, "--once", *others)
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert done.returncode == 1, (done.returncode, done.stderr, done.stdout)
    return done.stderr


@contextmanager
def mirroring(source: Place, target: Place, log: Path, *others: str) -> "Iterator[subprocess.Popen[bytes]]":
    """A mirror that runs meanwhile, and is killed then. Its lines go to a file."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            arguments_of(source, target, *others),
            stdout=file,
            stderr=file,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def records_at(place: Place, topic: str) -> list[list[Copy]]:
    """The records of a topic that clients can read, by partition, in order."""
    with grpc.insecure_channel(place.address, options=CHANNEL_OPTIONS) as channel:
        stub = LogStub(channel)
        request = log_pb.DescribeTopicsRequest(cluster=place.cluster, topics=[topic])
        described = stub.DescribeTopics(request, timeout=SECONDS).topics
        if not described:
            return []
        numbers = range(described[0].partitions)
        queries = [log_pb.OffsetQuery(topic=topic, partition=each, latest=True) for each in numbers]
        asked = log_pb.ListOffsetsRequest(cluster=place.cluster, queries=queries)
        ends = [answer.offset for answer in stub.ListOffsets(asked, timeout=SECONDS).answers]
        queries = [log_pb.OffsetQuery(topic=topic, partition=each, earliest=True) for each in numbers]
        asked = log_pb.ListOffsetsRequest(cluster=place.cluster, queries=queries)
        begins = [answer.offset for answer in stub.ListOffsets(asked, timeout=SECONDS).answers]
        found: list[list[Copy]] = [[] for _ in numbers]
        for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            wanted = log_pb.FetchRange(topic=topic, partition=number, from_offset=begin, to_offset=end)
            fetch = log_pb.FetchRequest(cluster=place.cluster, ranges=[wanted], max_wait_ms=60_000)
            state = log_pb.MORE
            for answer in stub.Fetch(fetch, timeout=SECONDS):
                state = answer.state
                for batch in as_batches(answer.batches):
                    found[number] += [
                        Copy(each.key, each.value, list(each.headers), each.timestamp)
                        for each in read_records(batch)
                        if each.offset >= begin
                    ]
            assert state == log_pb.END_OF_RANGE, log_pb.RangeState.Name(state)
    return found


def append(place: Place, topic: str, partition: int, records: Sequence[NewRecord]) -> None:
    """Append a batch."""
    with grpc.insecure_channel(place.address, options=CHANNEL_OPTIONS) as channel:
        written = log_pb.PartitionBatches(
            topic=topic, partition=partition, batches=bytes(build_batch(records))
        )
        request = log_pb.AppendRequest(cluster=place.cluster, partitions=[written])
        (result,) = LogStub(channel).Append(request, timeout=SECONDS).results
        assert not result.code, result.message


def offsets_at(place: Place, topic: str, group: str) -> dict[int, int]:
    """Offsets of a group in the partitions where it has one."""
    with grpc.insecure_channel(place.address, options=CHANNEL_OPTIONS) as channel:
        request = pb.GetOffsetsRq(cluster=place.cluster, topic=topic, group=group)
        answer = KafkaPixyStub(channel).GetOffsets(request, timeout=SECONDS)
    return {each.partition: each.offset for each in answer.offsets if each.offset >= 0}


def set_offsets(place: Place, topic: str, group: str, offsets: dict[int, int], metadata: str = "") -> None:
    """Set offsets of a group."""
    with grpc.insecure_channel(place.address, options=CHANNEL_OPTIONS) as channel:
        request = pb.SetOffsetsRq(
            cluster=place.cluster,
            topic=topic,
            group=group,
            offsets=[
                pb.PartitionOffset(partition=p, offset=o, metadata=metadata) for p, o in offsets.items()
            ],
        )
        KafkaPixyStub(channel).SetOffsets(request, timeout=SECONDS)
