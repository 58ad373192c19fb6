"""Steps in which a node looks at consumer groups that have changed."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pixy.aio.tasks import Tasks
from pixy.backend.embedded.local_members import LocalMembers
from pixy.cluster import Node
from pixy.cluster.state.group_members import Membership
from tests.fakes.waiting import settle


class Member(SimpleNamespace):
    """A member that counts the looks at it."""

    topics: tuple[str, ...]
    seen: list[str]
    group: str
    member_id = None

    def look(self) -> None:
        self.seen.append(self.group)


@pytest.mark.parametrize(("topics", "at_once"), [(1, 46), (40, 10), (2500, 1)])
async def test_a_step_looks_at_fewer_groups_the_more_topics_they_have(topics: int, at_once: int) -> None:
    groups = [f"group-{number}" for number in range(100)]
    state = SimpleNamespace(groups_of=lambda _: groups, membership=lambda _: Membership())
    node = SimpleNamespace(node_id=1, incarnation=1, state_groups=SimpleNamespace(offsets_of=lambda _: state))
    members = LocalMembers(cast("Node", node), Tasks(lambda _: None), 0.0)
    seen: list[str] = []
    found: dict[str, Any] = {
        group: [Member(topics=("topic",) * topics, seen=seen, group=group)] for group in groups
    }
    members._members.update(found)
    members.groups_changed(groups)
    assert seen == groups[:at_once]
    await asyncio.sleep(0)
    assert seen == groups[: 2 * at_once]
    await settle(100)
    assert seen == groups
