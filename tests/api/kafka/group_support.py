"""Members of a consumer group, as requests of any version."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pixy.config import StorageConfig
from pixy.kafka_messages.generated.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from pixy.kafka_messages.generated.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from pixy.kafka_protocol.consumer import encode_subscription
from tests.api.kafka.conftest import CONFIG
from tests.fakes.kafka_client import RawKafkaClient
from tests.fakes.kafka_server import ServedKafka, serve_kafka
from tests.fakes.node import make_embedded

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, LEAVE_GROUP = range(8, 14)
SYNC_GROUP, DESCRIBE_GROUPS, LIST_GROUPS, DELETE_GROUPS, OFFSET_DELETE = 14, 15, 16, 42, 47


@pytest.fixture
async def grouped(tmp_path: Path) -> AsyncIterator[ServedKafka]:
    """A group's first member waits for nobody."""
    storage = replace(StorageConfig(), group_initial_rebalance_delay=0.0)
    async with serve_kafka(make_embedded(tmp_path / "data", storage=storage), CONFIG) as served:
        await served.proxy.create_topic("t", 2, {})
        yield served


def join_request(member_id: str = "", **changes: Any) -> JoinGroupRequest:
    of: dict[str, Any] = {
        "group_id": "g",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [JoinGroupRequestProtocol("range", encode_subscription(["t"]))],
    }
    return JoinGroupRequest(**{**of, **changes})


async def joined(client: RawKafkaClient, version: int = 7, **changes: Any) -> Any:
    """The answer to a join, with the id that the coordinator wants to be used."""
    answer = await client.call(JOIN_GROUP, version, join_request(**changes))
    if answer.error_code == 79:
        answer = await client.call(JOIN_GROUP, version, join_request(answer.member_id, **changes))
    assert answer.error_code == 0
    return answer


async def stable(client: RawKafkaClient, **changes: Any) -> Any:
    """The answer to the join of a member that has all assigned, as `all`."""
    answer = await joined(client, **changes)
    request = SyncGroupRequest(
        "g",
        answer.generation_id,
        answer.member_id,
        assignments=[SyncGroupRequestAssignment(answer.member_id, b"all")],
    )
    synced = await client.call(SYNC_GROUP, 3, request)
    assert (synced.error_code, synced.assignment) == (0, b"all")
    return answer
