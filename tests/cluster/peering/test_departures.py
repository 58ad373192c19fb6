"""pixy/cluster/peering/departures.py: who has to say that a leaving node is needed no more."""

from types import SimpleNamespace
from typing import Any

import pytest

from pixy.cluster.peering.departures import Departures
from pixy.cluster.state.nodes import DEPARTURES_LEVEL
from pixy.errors import Unavailable
from pixy.proto.node_calls_pb2 import IsMemberRequest, IsMemberResponse
from tests.fakes.waiting import until

ASKED, LOST, LEAVING = 1, 8, 9
METADATA, OWN, ELSEWHERE = 1, 1000, 1001


class Cluster:
    """Node 1 with a group of its own, and the answers of others to its questions."""

    def __init__(self, replicas: tuple[int, ...], answers: dict[int, bool | None]) -> None:
        levels = {ASKED: DEPARTURES_LEVEL, **dict.fromkeys(answers, DEPARTURES_LEVEL), LOST: 0, LEAVING: 0}
        self.answers = answers
        self.faults: list[BaseException] = []
        self.has_all_groups = True
        self.metadata = SimpleNamespace(
            started=[ASKED, *answers],
            nodes={
                node_id: SimpleNamespace(
                    feature_level=level, removed=node_id in (LOST, LEAVING), lost=node_id == LOST
                )
                for node_id, level in levels.items()
            },
            topics={"t": SimpleNamespace(raft_groups=(OWN, ELSEWHERE), replicas=((ASKED,), replicas))},
        )
        self.driver = SimpleNamespace(node_id=ASKED, groups={})
        self.set_members(METADATA, {ASKED, LEAVING})
        self.set_members(OWN, {ASKED})
        driver: Any = self.driver
        metadata: Any = self.metadata
        self.departures = Departures(
            driver, metadata, self._call, lambda: self.has_all_groups, self.faults.append
        )

    def set_members(self, raft_group: int, members: set[int]) -> None:
        self.driver.groups[raft_group] = SimpleNamespace(
            raft_group=raft_group, storage=SimpleNamespace(conf_state=SimpleNamespace(members=members))
        )

    async def _call(self, node_id: int, _: int, payload: bytes, __: float) -> bytes:
        assert IsMemberRequest.FromString(payload).node_id == LEAVING
        answer = self.answers[node_id]
        if answer is None:
            raise Unavailable("it is silent")
        return IsMemberResponse(is_member=answer).SerializeToString()

    async def is_let_go(self) -> bool:
        first = self.departures.partitions_let_go({LEAVING})
        await until(lambda: not self.departures._tasks)
        assert not self.faults
        return first or self.departures.partitions_let_go({LEAVING})


@pytest.mark.parametrize(
    ("replicas", "answers", "expected"),
    [
        pytest.param((2, 3), {2: False, 3: False}, True, id="both say no"),
        pytest.param((2, 3), {2: False, 3: True}, False, id="one needs it"),
        pytest.param((2, 3, 4), {2: False, 3: True, 4: False}, False, id="one needs it beside a majority"),
        pytest.param((2, 3), {2: False, 3: None}, False, id="no majority of the replicas has answered"),
        pytest.param((2, 3, 4), {2: False, 3: None, 4: False}, True, id="a majority has"),
        pytest.param((2,), {2: False, 3: None}, True, id="a node without a replica is silent"),
        pytest.param((LOST,), {2: False}, True, id="a partition has lost all its replicas"),
    ],
)
async def test_a_majority_of_each_partitions_replicas_lets_a_node_go(
    replicas: tuple[int, ...], answers: dict[int, bool | None], expected: bool
) -> None:
    assert await Cluster(replicas, answers).is_let_go() is expected


async def test_a_node_of_an_earlier_release_is_not_asked() -> None:
    cluster = Cluster((2,), {2: None})
    cluster.metadata.nodes[2].feature_level = DEPARTURES_LEVEL - 1
    assert await cluster.is_let_go()


async def test_groups_here_are_asked_first_and_not_before_all_are_open() -> None:
    cluster = Cluster((2,), {2: False})
    cluster.has_all_groups = False
    assert not await cluster.is_let_go()
    cluster.has_all_groups = True
    cluster.set_members(OWN, {ASKED, LEAVING})
    assert not await cluster.is_let_go()
    cluster.set_members(OWN, {ASKED})
    assert await cluster.is_let_go()


@pytest.mark.parametrize(
    ("members", "removed", "opened", "expected"),
    [
        ({ASKED}, True, True, False),
        ({ASKED, LEAVING}, True, True, True),
        ({ASKED}, False, True, True),
        ({ASKED}, True, False, True),
    ],
)
async def test_a_node_answers_by_its_groups_once_it_knows_of_the_removal(
    members: set[int], removed: bool, opened: bool, expected: bool
) -> None:
    cluster = Cluster((2,), {2: False})
    cluster.set_members(OWN, members)
    cluster.metadata.nodes[LEAVING].removed = removed
    cluster.has_all_groups = opened
    answer = cluster.departures.answer(IsMemberRequest(node_id=LEAVING).SerializeToString())
    assert IsMemberResponse.FromString(answer).is_member is expected


async def test_a_node_that_has_never_started_is_not_asked() -> None:
    """It may be waiting itself, for the leaving one to leave metadata."""
    cluster = Cluster((2,), {2: False, 3: True})
    cluster.metadata.started = [ASKED, 2]
    assert await cluster.is_let_go()
