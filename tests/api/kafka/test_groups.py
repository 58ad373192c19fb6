"""Members of consumer groups, in every version."""

import asyncio

import pytest

from pixy.kafka_messages.generated.find_coordinator import FindCoordinatorRequest
from pixy.kafka_messages.generated.heartbeat import HeartbeatRequest
from pixy.kafka_messages.generated.leave_group import LeaveGroupRequest, MemberIdentity
from pixy.kafka_messages.generated.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.api.kafka.group_support import (
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    SYNC_GROUP,
    grouped,
    join_request,
    joined,
    stable,
)
from tests.fakes.kafka_client import kafka_client
from tests.fakes.kafka_server import ServedKafka

pytestmark = pytest.mark.slow

__all__ = ["grouped"]


@pytest.mark.parametrize("version", range(7))
async def test_this_node_coordinates_all_groups(grouped: ServedKafka, version: int) -> None:
    request = FindCoordinatorRequest(key="g", coordinator_keys=["g", "h"])
    answer = await grouped.client.call(FIND_COORDINATOR, version, request)
    host, _, port = grouped.address.rpartition(":")
    found = [answer] if version < 4 else answer.coordinators
    assert [(each.error_code, each.node_id, each.host, each.port) for each in found] == [
        (0, 1, host, int(port))
    ] * (1 if version < 4 else 2)


@pytest.mark.parametrize("version", [1, 6])
async def test_no_other_kind_of_coordinator_is_there(grouped: ServedKafka, version: int) -> None:
    for key, key_type, code in (("tx", 1, 53), ("share", 2, 42), ("", 0, 24)):
        request = FindCoordinatorRequest(key, key_type, [key])
        answer = await grouped.client.call(FIND_COORDINATOR, version, request)
        found = answer if version < 4 else answer.coordinators[0]
        assert (found.error_code, found.node_id) == (code, -1)


@pytest.mark.parametrize("version", range(10))
async def test_a_group_of_two_in_every_version(grouped: ServedKafka, version: int) -> None:
    async with kafka_client(grouped.address) as second:
        one = await joined(grouped.client, version)
        assert one.member_id == one.leader
        assert one.member_id.startswith("raw-")
        assert one.protocol_name == "range"
        assert one.protocol_type == ("consumer" if version >= 7 else None)
        joining = asyncio.create_task(joined(second, version))
        while (
            await grouped.client.call(HEARTBEAT, 3, HeartbeatRequest("g", 1, one.member_id))
        ).error_code != 27:
            pass
        one = (
            await grouped.client.call(JOIN_GROUP, version, join_request(one.member_id)),
            await joining,
        )
        leader, follower = one
        assert leader.generation_id == follower.generation_id == 2
        assert {each.member_id for each in leader.members} == {leader.member_id, follower.member_id}
        assert follower.members == []

        plan = [
            SyncGroupRequestAssignment(leader.member_id, b"L"),
            SyncGroupRequestAssignment(follower.member_id, b"F"),
        ]
        sync_version = min(version, 5)
        grouped.client.send(
            SYNC_GROUP, sync_version, SyncGroupRequest("g", 2, leader.member_id, assignments=plan)
        )
        second.send(SYNC_GROUP, sync_version, SyncGroupRequest("g", 2, follower.member_id))
        answers = [await each.response(SYNC_GROUP, sync_version) for each in (grouped.client, second)]
        assert [(each.error_code, each.assignment) for each in answers] == [(0, b"L"), (0, b"F")]


@pytest.mark.parametrize("version", range(5))
async def test_heartbeats(grouped: ServedKafka, version: int) -> None:
    member_id = (await stable(grouped.client)).member_id
    for generation, wanted in ((1, 0), (2, 22)):
        answer = await grouped.client.call(HEARTBEAT, version, HeartbeatRequest("g", generation, member_id))
        assert answer.error_code == wanted
    answer = await grouped.client.call(HEARTBEAT, version, HeartbeatRequest("h", 1, member_id))
    assert answer.error_code == 25


@pytest.mark.parametrize("version", range(6))
async def test_members_leave(grouped: ServedKafka, version: int) -> None:
    member_id = (await stable(grouped.client)).member_id
    members = [MemberIdentity("who"), MemberIdentity(member_id)]
    if version < 3:
        codes = []
        for each in members:
            request = LeaveGroupRequest("g", each.member_id)
            codes.append((await grouped.client.call(LEAVE_GROUP, version, request)).error_code)
    else:
        answer = await grouped.client.call(LEAVE_GROUP, version, LeaveGroupRequest("g", members=members))
        assert answer.error_code == 0
        assert [each.member_id for each in answer.members] == ["who", member_id]
        codes = [each.error_code for each in answer.members]
    assert codes == [25, 0]


@pytest.mark.parametrize("version", [5, 9])
async def test_a_static_member_that_starts_again(grouped: ServedKafka, version: int) -> None:
    before = await stable(grouped.client, group_instance_id="one")
    after = await grouped.client.call(JOIN_GROUP, version, join_request(group_instance_id="one"))
    assert (after.error_code, after.generation_id) == (0, 1)
    assert after.member_id != before.member_id
    assert after.skip_assignment == (version == 9)
    heartbeat = HeartbeatRequest("g", 1, before.member_id, "one")
    assert (await grouped.client.call(HEARTBEAT, 3, heartbeat)).error_code == 82


async def test_a_leader_of_an_old_version_is_told_of_static_members(grouped: ServedKafka) -> None:
    """KAFKA-14422."""
    leader = await joined(grouped.client, 4)
    async with kafka_client(grouped.address) as other:
        other.send(JOIN_GROUP, 5, join_request(group_instance_id="one"))
        while (
            await grouped.client.call(HEARTBEAT, 3, HeartbeatRequest("g", 1, leader.member_id))
        ).error_code != 27:
            pass
        answer = await grouped.client.call(JOIN_GROUP, 4, join_request(leader.member_id))
        static = await other.response(JOIN_GROUP, 5)
    assert {each.member_id for each in answer.members} == {leader.member_id, static.member_id}


async def test_a_member_without_an_id_is_given_one_from_version_4_on(grouped: ServedKafka) -> None:
    answer = await grouped.client.call(JOIN_GROUP, 4, join_request())
    assert (answer.error_code, answer.member_id.startswith("raw-")) == (79, True)
    answer = await grouped.client.call(JOIN_GROUP, 3, join_request())
    assert answer.error_code == 0


async def test_a_group_without_a_name(grouped: ServedKafka) -> None:
    answer = await grouped.client.call(JOIN_GROUP, 5, join_request(group_id=""))
    assert answer.error_code == 24


async def test_in_front_of_kafka_there_are_no_groups(fake: ServedKafka) -> None:
    assert fake.proxy.classic_groups is None
    fake.client.send(FIND_COORDINATOR, 1, FindCoordinatorRequest("g"))
    assert await fake.client.ended()
