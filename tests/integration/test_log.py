"""The bulk log API on a real daemon: answered appends survive a kill, and the documentation's
example works.
"""

import re
import subprocess
import sys
from collections import deque
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import pytest

from pixy.proto import pixy_log_pb2 as pb
from pixy.proto.pixy_log_pb2_grpc import LogStub
from tests.fakes.batches import as_batches, batch_of, offsets_in, values_in
from tests.integration.daemon import Daemon

pytestmark = pytest.mark.process

SECONDS = 60.0
GUIDE = Path(__file__).parents[2] / "docs" / "log.md"


def log(daemon: Daemon) -> LogStub:
    return LogStub(daemon.channel())


def fetch_all(daemon: Daemon, partition: int) -> list[tuple[int, bytes | None]]:
    """Offset and value of every record of a partition."""
    found: list[tuple[int, bytes | None]] = []
    wanted = pb.FetchRange(topic="t", partition=partition, to_offset=-1)
    state = pb.MORE
    for answer in log(daemon).Fetch(pb.FetchRequest(ranges=[wanted]), timeout=SECONDS):
        found += zip(offsets_in(answer.batches), values_in(answer.batches), strict=True)
        state = answer.state
    assert state == pb.END_OF_RANGE
    return found


def append_until_it_is_gone(
    daemon: Daemon, kill_after: int, first: int
) -> tuple[dict[tuple[int, int], int], int]:
    """Append batches of two records, with eight requests in flight, and kill the daemon after
    `kill_after` answers.

    Returns:
        request numbers by the answered partition and offset, and the number of requests sent.
    """
    answered: dict[tuple[int, int], int] = {}
    stub = log(daemon)
    under_way: deque[tuple[int, Any]] = deque()
    for number in count(first):
        value = b"%d" % number
        batches = [
            pb.PartitionBatches(topic="t", partition=partition, batches=batch_of(value, value))
            for partition in range(2)
        ]
        under_way.append((number, stub.Append.future(pb.AppendRequest(partitions=batches), timeout=SECONDS)))
        if len(under_way) < 8:
            continue
        oldest, call = under_way.popleft()
        for partition, result in enumerate(call.result().results):
            assert result.code == 0, result.message
            answered[partition, result.base_offset] = oldest
        if len(answered) >= 2 * kill_after:
            break
    daemon.process.kill()
    for number, call in under_way:
        try:
            results = call.result().results
        except grpc.RpcError:
            continue
        answered |= {(partition, each.base_offset): number for partition, each in enumerate(results)}
    daemon.restart()
    return answered, number + 1


def test_answered_batches_survive_kills_complete_and_at_their_offsets(daemon: Daemon) -> None:
    request = pb.DescribeTopicsRequest(topics=["t"], create_missing=True)
    log(daemon).DescribeTopics(request, timeout=SECONDS)
    answered: dict[tuple[int, int], int] = {}
    sent = 0
    for kill_after in (1, 20, 100):
        more, sent = append_until_it_is_gone(daemon, kill_after, sent)
        assert not answered.keys() & more.keys(), "an offset was given twice"
        answered |= more
    stored = [dict(fetch_all(daemon, partition)) for partition in range(2)]
    for (partition, offset), number in answered.items():
        assert stored[partition][offset] == stored[partition][offset + 1] == b"%d" % number
    for records in stored:
        assert sorted(records) == list(range(len(records))), "offsets have no holes"
        assert all(records[at] == records[at + 1] for at in range(0, len(records), 2)), "half a batch"
    assert len(answered) >= 2 * 121


def test_stored_batches_are_fetched_in_many_responses_after_a_restart(daemon: Daemon) -> None:
    request = pb.DescribeTopicsRequest(topics=["t"], create_missing=True)
    log(daemon).DescribeTopics(request, timeout=SECONDS)
    batches = b"".join(batch_of(b"%d" % number, bytes(200_000)) for number in range(10))
    appended = pb.PartitionBatches(topic="t", partition=0, batches=batches)
    log(daemon).Append(pb.AppendRequest(partitions=[appended]), timeout=SECONDS)
    daemon.stop()
    daemon.start()
    wanted = pb.FetchRange(topic="t", from_offset=3, to_offset=15)
    answers = list(log(daemon).Fetch(pb.FetchRequest(ranges=[wanted], max_bytes=500_000), timeout=SECONDS))
    assert [len(list(as_batches(each.batches))) for each in answers] == [2, 2, 2, 1]
    assert [offset for each in answers for offset in offsets_in(each.batches)] == list(range(2, 16))


def test_the_example_of_the_documentation_works(daemon: Daemon) -> None:
    match = re.search(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert match is not None
    example = match[1].replace("127.0.0.1:19091", daemon.address)
    assert daemon.address in example
    done = subprocess.run(
        [sys.executable, "-c", example], stdout=subprocess.PIPE, text=True, check=True, timeout=SECONDS
    )
    assert done.stdout.splitlines() == ["0 first", "1 second"]
