"""Consumer groups for operators, in every version."""

import pytest

from pixy.kafka_messages.generated.delete_groups import DeleteGroupsRequest
from pixy.kafka_messages.generated.describe_groups import DescribeGroupsRequest
from pixy.kafka_messages.generated.leave_group import LeaveGroupRequest
from pixy.kafka_messages.generated.list_groups import ListGroupsRequest
from pixy.kafka_protocol.consumer import decode_subscription
from tests.api.kafka.group_support import (
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    LEAVE_GROUP,
    LIST_GROUPS,
    OFFSET_COMMIT,
    grouped,
    stable,
)
from tests.api.kafka.test_group_offsets import commit_request
from tests.fakes.kafka_server import ServedKafka

pytestmark = pytest.mark.slow

__all__ = ["grouped"]


async def lone_offsets(served: ServedKafka, group: str) -> None:
    request = commit_request({0: 1})
    request.group_id = group
    await served.client.call(OFFSET_COMMIT, 7, request)


@pytest.mark.parametrize("version", range(6))
async def test_groups_are_listed(grouped: ServedKafka, version: int) -> None:
    await stable(grouped.client)
    await lone_offsets(grouped, "simple")
    answer = await grouped.client.call(LIST_GROUPS, version, ListGroupsRequest())
    assert answer.error_code == 0
    found = {each.group_id: (each.protocol_type, each.group_state, each.group_type) for each in answer.groups}
    state, kind = version >= 4, version >= 5
    assert found == {
        "g": ("consumer", "Stable" if state else "", "classic" if kind else ""),
        "simple": ("", "Empty" if state else "", "classic" if kind else ""),
    }


@pytest.mark.parametrize(
    ("states", "types", "names"),
    [
        (["stable"], [], ["g"]),
        (["EMPTY"], [], ["simple"]),
        ([], ["Classic"], ["g", "simple"]),
        ([], ["consumer"], []),
        (["Dead"], [], []),
    ],
)
async def test_filters_ignore_case(
    grouped: ServedKafka, states: list[str], types: list[str], names: list[str]
) -> None:
    await stable(grouped.client)
    await lone_offsets(grouped, "simple")
    answer = await grouped.client.call(LIST_GROUPS, 5, ListGroupsRequest(states, types))
    assert sorted(each.group_id for each in answer.groups) == names


@pytest.mark.parametrize("version", range(7))
async def test_groups_are_described(grouped: ServedKafka, version: int) -> None:
    member_id = (await stable(grouped.client)).member_id
    answer = await grouped.client.call(DESCRIBE_GROUPS, version, DescribeGroupsRequest(["g", "none"]))
    known, unknown = answer.groups
    assert (known.error_code, known.group_state, known.protocol_type, known.protocol_data) == (
        0,
        "Stable",
        "consumer",
        "range",
    )
    (member,) = known.members
    assert (member.member_id, member.client_id, member.client_host) == (member_id, "raw", "/127.0.0.1")
    assert decode_subscription(member.member_metadata) == {"t"}
    assert member.member_assignment == b"all"
    assert (unknown.error_code, unknown.group_state) == (69 if version >= 6 else 0, "Dead")


@pytest.mark.parametrize("version", range(3))
async def test_groups_are_deleted(grouped: ServedKafka, version: int) -> None:
    member_id = (await stable(grouped.client)).member_id
    await lone_offsets(grouped, "simple")
    request = DeleteGroupsRequest(["g", "simple", "none"])
    answer = await grouped.client.call(DELETE_GROUPS, version, request)
    assert [(each.group_id, each.error_code) for each in answer.results] == [
        ("g", 68),
        ("simple", 0),
        ("none", 69),
    ]
    await grouped.client.call(LEAVE_GROUP, 1, LeaveGroupRequest("g", member_id))
    for wanted in (0, 69):
        answer = await grouped.client.call(DELETE_GROUPS, version, DeleteGroupsRequest(["g"]))
        assert answer.results[0].error_code == wanted
