"""Requests of consumer groups with any fields: each is answered, or waits for others, and none
meets a bug. They name what is there more often than by chance.
"""

import asyncio
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from pixy.kafka_messages.generated.find_coordinator import FindCoordinatorRequest
from pixy.kafka_messages.schema import SchemaField
from tests.api.kafka.group_support import (
    DELETE_GROUPS,
    FIND_COORDINATOR,
    JOIN_GROUP,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    SYNC_GROUP,
    grouped,
    stable,
)
from tests.fakes.kafka_client import kafka_client
from tests.fakes.kafka_server import ServedKafka
from tests.kafka_messages.random_messages import CASES, RandomMessages

__all__ = ["grouped"]
pytestmark = pytest.mark.slow

KEYS = {*range(OFFSET_COMMIT, LIST_GROUPS + 1), DELETE_GROUPS, OFFSET_DELETE}
WAITING = {JOIN_GROUP, SYNC_GROUP}
REQUESTS = [(api, version) for api, version, side in CASES if api.key in KEYS and side == "request"]
ROUNDS = 6


class LikelyMessages(RandomMessages):
    """Messages with names that are there."""

    def __init__(self, rng: Random, names: list[str]) -> None:
        super().__init__(rng)
        self._names = names

    def _one(self, module: Any, field: SchemaField, version: int) -> Any:
        if field.type == "string" and self._rng.random() < 0.7:
            return self._rng.choice(self._names)
        if field.name == "session_timeout_ms" and self._rng.random() < 0.8:
            return 6000
        return super()._one(module, field, version)


@pytest.mark.parametrize("seed", range(3))
async def test_any_request_meets_no_bug(grouped: ServedKafka, seed: int) -> None:
    random = Random(seed)
    member = await stable(grouped.client, group_instance_id="one")
    names = ["g", "t", "one", "consumer", "range", member.member_id]
    messages = LikelyMessages(random, names)
    answered = 0
    for api, version in random.sample(REQUESTS * ROUNDS, len(REQUESTS) * ROUNDS):
        request = messages.message(api, version, "request")
        async with kafka_client(grouped.address) as client:
            if api.key in WAITING:
                with suppress(TimeoutError):
                    answer = await asyncio.wait_for(client.call(api.key, version, request), 0.02)
                    if api.key == JOIN_GROUP and answer.member_id:
                        names.append(answer.member_id)
                    answered += 1
            else:
                await client.call(api.key, version, request)
        assert grouped.faults == []
    assert answered > ROUNDS
    assert (await grouped.client.call(FIND_COORDINATOR, 0, FindCoordinatorRequest("g"))).error_code == 0
