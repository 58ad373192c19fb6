"""Proposals of a node without a replica, at the nodes that have one."""

import asyncio
from pathlib import Path

import pytest

from pixy.cluster.peering.propose_answers import ProposeAnswers
from pixy.errors import FailedPrecondition, Unavailable, UnknownPartition
from pixy.multiraft.raft_group import RaftGroup
from pixy.proto.node_calls_pb2 import ProposeRequest, ProposeResponse
from pixy.storage import EntryType
from tests.cluster.drivers import BATCH, GROUP, DriverNetwork, DriverNode, batch_of, forwarded_to

STRANGER = 4


class Asked:
    """The answers of one node."""

    def __init__(self, node: DriverNode) -> None:
        self._answers = ProposeAnswers(node.driver, forwarded_to(node), self._find)
        self._group: RaftGroup | None = node.group

    def _find(self, raft_group: int) -> RaftGroup | None:
        return self._group if raft_group == GROUP else None

    def propose(
        self,
        sequence: int,
        *values: bytes,
        kind: int = BATCH,
        raft_group: int = GROUP,
        incarnation: int = 1,
        caller: int = STRANGER,
    ) -> asyncio.Task[ProposeResponse]:
        request = ProposeRequest(
            raft_group=raft_group,
            kind=kind,
            payload=bytes(batch_of(*values)),
            incarnation=incarnation,
            sequence=sequence,
        )
        return asyncio.create_task(self._ask(caller, request))

    async def _ask(self, caller: int, request: ProposeRequest) -> ProposeResponse:
        answer = await self._answers.answer(caller, request.SerializeToString())
        return ProposeResponse.FromString(answer)


async def test_the_answer_comes_once_the_leader_has_applied_the_entry(network: DriverNetwork) -> None:
    leader = await network.elect(1)
    network[2].holds_writes = network[3].holds_writes = True
    asked = Asked(leader)
    first, second = asked.propose(1, b"a", b"b"), asked.propose(2, b"c")
    await network.run()
    assert not first.done()
    network[3].holds_writes = False
    await network.run()
    assert [(await each).offset for each in (first, second)] == [0, 2]
    assert network[3].application.applied == [b"a", b"b", b"c"]


async def test_a_node_with_the_only_vote_leads_when_it_is_asked(tmp_path: Path) -> None:
    network = DriverNetwork(tmp_path, 1)
    asked = Asked(network[1])
    assert (await asked.propose(1, b"a")).not_leader
    await network.run()
    answer = asked.propose(1, b"a")
    await network.run()
    assert (await answer).offset == 0


async def test_a_repetition_waits_for_its_original_and_gets_its_result(network: DriverNetwork) -> None:
    leader = await network.elect(1)
    asked = Asked(leader)
    await network.run()
    network[2].holds_writes = network[3].holds_writes = True
    attempts = [asked.propose(1, b"a"), asked.propose(1, b"a")]
    await network.run()
    attempts[0].cancel()
    network[2].holds_writes = network[3].holds_writes = False
    await network.run()
    assert (await attempts[1]).offset == 0
    assert (await asked.propose(1, b"a")).offset == 0
    assert leader.application.applied == [b"a"]


async def test_the_leader_answers_itself_beside_its_other_proposals(network: DriverNetwork) -> None:
    leader = await network.elect(1)
    leader.propose(b"a", BATCH)
    await network.run()
    answer = Asked(leader).propose(2, b"b", caller=1)
    await network.run()
    assert (await answer).offset == 1


async def test_a_follower_names_the_leader(network: DriverNetwork) -> None:
    asked = Asked(network[1])
    response = await asked.propose(1, b"a")
    assert (response.not_leader, response.leader) == (True, 0), "there is none"
    await network.elect(2)
    response = await asked.propose(1, b"a")
    assert (response.not_leader, response.leader) == (True, 2)


async def test_a_lost_leadership_ends_the_wait_and_the_next_leader_knows_the_rest(
    network: DriverNetwork,
) -> None:
    leader = await network.elect(1)
    network[3].holds_writes = True
    attempt = Asked(leader).propose(1, b"a")
    await asyncio.sleep(0)
    leader.write()
    network.deliver()
    network.cut = {1}
    await network.run()
    network[3].holds_writes = False
    await network.tick(30)
    assert not attempt.done()
    network.cut = set()
    await network.tick(2)
    assert (await attempt).not_leader
    next_leader = next(network[each] for each in (2, 3) if network[each].group.leads)
    repeated = Asked(next_leader).propose(1, b"a")
    await network.run()
    assert (await repeated).offset == 0
    assert next_leader.application.applied == [b"a"]


async def test_what_a_leader_has_no_room_for_waits_and_is_proposed_once(network: DriverNetwork) -> None:
    leader = await network.elect(1)
    asked = Asked(leader)
    leader.room = -1
    large = bytes(1 << 20)
    attempts = [asked.propose(1, large), asked.propose(1, large)]
    await network.run()
    assert not any(each.done() for each in attempts)
    leader.room = 1 << 30
    leader.driver.resume()
    await network.run()
    assert [(await each).offset for each in attempts] == [0, 0]
    assert leader.application.applied == [large]


async def test_a_deleted_partition_answers_with_its_error(network: DriverNetwork) -> None:
    leader = await network.elect(1)
    network[2].holds_writes = network[3].holds_writes = True
    attempt = Asked(leader).propose(1, b"a")
    await network.run()
    leader.driver.remove(leader.group, UnknownPartition("topic was deleted"))
    with pytest.raises(UnknownPartition, match="topic was deleted"):
        await attempt


async def test_what_cannot_be_proposed_is_refused(network: DriverNetwork) -> None:
    asked = Asked(await network.elect(1))
    with pytest.raises(Unavailable, match="node 1 has no replica of raft group 7"):
        await asked.propose(1, b"a", raft_group=7)
    with pytest.raises(FailedPrecondition, match="kind 0 is not proposed for other nodes"):
        await asked.propose(1, b"a", kind=EntryType.EMPTY)
    accepted = asked.propose(1, b"a", incarnation=2)
    await network.run()
    await accepted
    with pytest.raises(FailedPrecondition, match="is outdated"):
        await asked.propose(2, b"b", incarnation=1)


@pytest.mark.parametrize("sequence", [0, 2**62, 2**64 - 1])
async def test_a_sequence_that_no_follower_takes_is_refused(network: DriverNetwork, sequence: int) -> None:
    leader = await network.elect(1)
    with pytest.raises(FailedPrecondition, match="is impossible"):
        await Asked(leader).propose(sequence, b"a")
    assert not leader.group.tail_ids
