"""Records of other nodes for consume requests that wait here."""

import asyncio
from collections import Counter

import pytest

from pixy.backend import OffsetCommit, TopicPartition
from pixy.consume import ConsumeRequest
from pixy.consume.lending.lender import SILENCE_S
from pixy.errors import LongPollTimeout
from pixy.proto.consumer_calls_pb2 import ConsumerCall
from tests.consume.conftest import MakeNodes
from tests.consume.fakes import Answers, Nodes
from tests.fakes.waiting import settle

T0 = TopicPartition("t", 0)


async def two(make_nodes: MakeNodes, **options: object) -> Nodes:
    """Two nodes with a partition each, node 1 with partition 0, and the calls so far forgotten."""
    nodes = make_nodes(2, 2, **options)
    await nodes.join(1, 2)
    assert (nodes.owned(1), nodes.owned(2)) == ([0], [1])
    await nodes.pass_time(1)  # of a question that nobody needs any more
    nodes.links.calls.clear()
    return nodes


async def poll(nodes: Nodes, times: int) -> list[bytes | None]:
    """Consume at node 1, once a second; returns what came."""
    got: list[bytes | None] = []
    for _ in range(times):
        answers = await nodes[1].consume()
        await nodes.pass_time(1)
        for waiting in answers.waiting:
            waiting.cancel()
        got += answers.values
    return got


def kinds(nodes: Nodes) -> list[str]:
    """Kinds of the calls so far."""
    return [str(ConsumerCall.FromString(request).WhichOneof("call")) for _, _, request in nodes.links.calls]


async def test_a_record_of_another_node_comes_after_a_short_wait(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    nodes.log(1).append(b"a")
    answers = await nodes[1].consume()
    await nodes.pass_time(0.015)
    assert (answers.values, kinds(nodes)) == ([], [])
    await nodes.pass_time(0.01)
    assert answers.values == [b"a"]


async def test_a_node_without_partitions_asks_at_once(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(2, 1)
    await nodes.join(1)
    nodes.log().append(b"a")
    assert nodes.owned(1) == [0]
    answers = await nodes[2].consume()
    await settle()
    assert answers.values == [b"a"]


async def test_a_record_that_is_produced_later_comes_at_once(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    answers = await nodes[1].consume()
    await nodes.pass_time(2.5)
    nodes.log(1).append(b"a")
    await settle()
    assert answers.values == [b"a"]


@pytest.mark.slow
async def test_a_node_with_records_of_its_own_asks_nobody(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    nodes.log(0).append(*[b"x"] * 100)
    for _ in range(100):
        await nodes[1].consume(auto_ack=True)
        await nodes.pass_time(0.01)
    assert kinds(nodes) == []


async def test_a_node_whose_records_are_coming_asks_nobody_yet(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    answers = await nodes[1].consume(20)
    for _ in range(8):
        nodes.log(0).append(b"x")
        await nodes.pass_time(0.01)
    assert (len(answers.offers), kinds(nodes)) == (8, [])
    for _ in range(4):
        nodes.log(0).append(b"x")
        await nodes.pass_time(0.01)
    assert kinds(nodes) == ["offers"]


async def test_a_node_that_has_records_again_asks_after_a_wait_again(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    nodes.log(1).append(b"x")
    assert await poll(nodes, 1) == [b"x"]
    nodes.log(0).append(b"y")
    assert (await nodes[1].consume()).values == [b"y"]
    nodes.links.calls.clear()
    answers = await nodes[1].consume()
    await nodes.pass_time(0.01)
    assert (answers.values, kinds(nodes)) == ([], [])


@pytest.mark.slow
async def test_requests_without_any_record_time_out_as_ever(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    answers = await nodes[1].consume()
    await nodes.pass_time(3)
    assert [type(error) for error in answers.errors] == [LongPollTimeout]
    await nodes.pass_time(SILENCE_S)
    nodes.links.calls.clear()
    await nodes.pass_time(1)
    assert kinds(nodes) == []


@pytest.mark.slow
async def test_one_consumer_at_one_node_gets_all_records(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(3, 3)
    await nodes.join(1, 2, 3)
    for partition in range(3):
        nodes.log(partition).append(*[b"%d" % partition] * 20)
    got: Counter[bytes | None] = Counter()
    for _ in range(60):
        answers = await nodes[2].consume(auto_ack=True)
        await nodes.pass_time(0.03)
        for offer in answers.offers:
            offer.delivered()
        got.update(answers.values)
    assert got == {b"0": 20, b"1": 20, b"2": 20}
    await nodes.pass_time(1)
    assert [nodes[1].committed(partition) for partition in range(3)] == [OffsetCommit(20)] * 3


async def test_records_follow_each_other_without_a_wait(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    nodes.log(1).append(*[b"x"] * 50)
    answers = await nodes[1].consume(auto_ack=True)
    await nodes.pass_time(0.03)
    before = nodes.clock.monotonic()
    nodes.links.calls.clear()
    while len(answers.offers) < 50:
        answers.offers[-1].delivered()
        nodes[1].consumers.consume(ConsumeRequest("g", "t", True), answers)
        nodes.clock.advance(0.001)
        await settle()
    assert nodes.clock.monotonic() - before < 0.1
    assert kinds(nodes).count("settled") == 0
    assert len(kinds(nodes)) < 60


async def test_a_client_that_takes_its_time_gets_the_next_record_without_a_wait(
    make_nodes: MakeNodes,
) -> None:
    nodes = await two(make_nodes)
    nodes.log(1).append(*[b"x"] * 3)
    assert await poll(nodes, 1) == [b"x"]
    answers = await nodes[1].consume()
    await settle()
    assert answers.values == [b"x"]
    await nodes.pass_time(2)
    answers = await nodes[1].consume()
    await settle()
    assert answers.values == []


@pytest.mark.slow
async def test_a_hundred_consumers_of_all_nodes_are_served_evenly(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(3, 3)
    await nodes.join(1, 2, 3)
    clients = [(number, Answers()) for number, count in ((1, 1), (2, 60), (3, 39)) for _ in range(count)]
    got: Counter[Answers] = Counter()
    for number, client in clients:
        nodes[number].consumers.consume(ConsumeRequest("g", "t", True), client)
    await nodes.pass_time(0.05)
    for _ in range(400):
        nodes.log(0).append(b"x")  # all at one node
        await settle()
        nodes.clock.advance(0.001)
        await settle()
        for number, client in clients:
            if client.offers:
                client.offers.pop().delivered()
                got[client] += 1
                nodes[number].consumers.consume(ConsumeRequest("g", "t", True), client)
    assert sum(got.values()) >= 395
    assert {got[client] for _, client in clients} <= {3, 4, 5}


async def test_a_borrowed_record_is_acked_at_its_owner(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    nodes.log(1).append(b"a", b"b")
    answers = await nodes[1].consume()
    await nodes.pass_time(0.03)
    assert answers.values == [b"a"]
    assert await nodes[1].ack(1, 0) == [None]
    await nodes.pass_time(0.5)
    assert nodes[2].committed(1) == OffsetCommit(1)


@pytest.mark.slow
async def test_the_ack_timeout_of_a_borrowed_record_runs_from_its_delivery(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes, ack_timeout=20.0, subscription_timeout=100.0)
    nodes.log(1).append(b"a")
    answers = await nodes[1].consume(slow=True)
    await nodes.pass_time(30)
    assert (await nodes[2].consume()).offers == []
    answers.offers[0].delivered()
    await nodes.pass_time(19)
    late = await nodes[2].consume()
    assert late.offers == []
    await nodes.pass_time(1.1)
    assert late.values == [b"a"]


async def test_a_record_that_nobody_takes_any_more_is_given_back_at_once(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    gone = await nodes[1].consume()
    await nodes.pass_time(0.03)
    gone.waiting[0].cancel()
    nodes.log(1).append(b"a")
    answers = await nodes[2].consume()
    assert answers.values == [b"a"]


async def test_a_record_that_cannot_be_delivered_is_given_back_at_once(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    nodes.log(1).append(b"a")
    answers = await nodes[1].consume(slow=True)
    await nodes.pass_time(0.03)
    there = await nodes[2].consume()
    assert there.values == []
    answers.offers[0].undelivered()
    await settle()
    assert there.values == [b"a"]


async def test_an_owner_hears_of_a_delivery_also_while_other_requests_wait(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    nodes.log(1).append(b"a")
    answers = await nodes[1].consume(2, auto_ack=True, slow=True)
    await nodes.pass_time(0.03)
    assert nodes[2].consumers.outstanding == 1
    answers.offers[0].delivered()
    await settle()
    assert nodes[2].consumers.outstanding == 0


async def test_records_come_back_from_a_lost_node(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    nodes.log(1).append(b"a", b"b")
    lost = await nodes[1].consume(slow=True)
    await nodes.pass_time(0.03)
    assert lost.values == [b"a"]
    nodes.kill(1)
    there = await nodes[2].consume(2)
    assert there.values == [b"b"]
    await nodes.pass_time(SILENCE_S)
    assert there.values == [b"b", b"a"]


async def test_records_come_back_at_once_from_a_node_that_was_waiting_when_it_was_lost(
    make_nodes: MakeNodes,
) -> None:
    nodes = await two(make_nodes)
    nodes.log(1).append(b"a")
    lost = await nodes[1].consume(2, slow=True)
    await nodes.pass_time(0.03)
    assert lost.values == [b"a"]
    there = await nodes[2].consume()
    nodes.kill(1)
    await settle()
    assert there.values == [b"a"]


async def test_records_of_a_lost_answer_are_offered_again(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    nodes.log(1).append(b"a")
    nodes.links.lose_answers(1)
    answers = await nodes[1].consume()
    await nodes.pass_time(0.2)
    assert answers.values == [b"a"]
    await nodes.pass_time(SILENCE_S + 1)
    assert nodes[2].consumers.outstanding == 1
    assert await nodes[1].ack(1, 0) == [None]
    assert nodes[2].consumers.outstanding == 0


async def test_what_became_of_a_record_is_told_over_a_new_connection(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    nodes.log(1).append(b"a")
    answers = await nodes[1].consume(auto_ack=True, slow=True)
    await nodes.pass_time(0.03)
    nodes.links.cut(1, 2)
    answers.offers[0].delivered()
    await nodes.pass_time(1)
    nodes.links.heal()
    await nodes.pass_time(1.5)
    assert nodes[2].consumers.outstanding == 0
    assert nodes[2].committed(1) == OffsetCommit(1)


async def test_an_ack_is_committed_in_time_if_the_news_of_the_delivery_does_not_come(
    make_nodes: MakeNodes,
) -> None:
    nodes = await two(make_nodes)
    nodes.log(1).append(b"a")
    answers = await nodes[1].consume(slow=True)
    await nodes.pass_time(0.03)
    nodes.links.cut(1, 2)
    answers.offers[0].delivered()
    assert await nodes[2].ack(1, 0) == [None]
    await nodes.pass_time(0.5)
    assert nodes[2].committed(1) == OffsetCommit(1)
    nodes.links.heal()
    await nodes.pass_time(SILENCE_S)
    assert (await nodes[2].consume()).values == []


async def test_an_ack_is_committed_in_time_if_the_news_of_the_delivery_is_late(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    nodes.log(1).append(b"a")
    answers = await nodes[1].consume(slow=True)
    await nodes.pass_time(0.03)
    nodes.links.delay_s = 0.3
    answers.offers[0].delivered()
    assert await nodes[2].ack(1, 0) == [None]
    await nodes.pass_time(0.5)
    assert nodes[2].committed(1) == OffsetCommit(1)


@pytest.mark.parametrize("waiting", [0, 1])
async def test_an_ack_that_comes_before_its_record_is_given_back_has_no_effect(
    make_nodes: MakeNodes, waiting: int
) -> None:
    nodes = await two(make_nodes)
    nodes.log(1).append(b"a")
    answers = await nodes[1].consume(1 + waiting, slow=True)
    await nodes.pass_time(0.03)
    assert await nodes[2].ack(1, 0) == [None]
    await nodes.pass_time(2)  # the client is a slow reader
    answers.offers[0].undelivered()
    await nodes.pass_time(0.5)
    assert nodes[2].committed(1) == OffsetCommit(0)
    values = answers.values[1:] if waiting else (await nodes[2].consume()).values
    assert values == [b"a"]


async def test_an_ack_that_comes_before_its_record_is_given_back_skips_nothing_when_the_owner_stops(
    make_nodes: MakeNodes,
) -> None:
    nodes = await two(make_nodes)
    nodes.log(1).append(b"a")
    answers = await nodes[1].consume(slow=True)
    await nodes.pass_time(0.03)
    assert await nodes[2].ack(1, 0) == [None]
    await nodes.pass_time(1)
    stopping = asyncio.create_task(nodes[2].consumers.drain(1))
    await nodes.pass_time(2)
    assert stopping.done()
    assert nodes[1].committed(1) == OffsetCommit(0)
    answers.offers[0].undelivered()
    assert await poll(nodes, 1) == [b"a"]


@pytest.mark.slow
async def test_an_auto_ack_that_is_told_after_the_silence_still_counts(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    nodes.log(1).append(b"a")
    answers = await nodes[1].consume(auto_ack=True, slow=True)
    await nodes.pass_time(0.03)
    nodes.links.cut(1, 2)
    answers.offers[0].delivered()
    await nodes.pass_time(SILENCE_S + 1)
    nodes.links.heal()
    await nodes.pass_time(2)
    assert nodes[2].committed(1) == OffsetCommit(1)
    assert (await nodes[2].consume()).values == []


async def test_records_over_a_slow_link_are_handed_out(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    nodes.links.delay_s = 0.3
    nodes.log(1).append(b"a", b"b")
    answers = await nodes[1].consume(2)
    await nodes.pass_time(1)
    assert answers.values == [b"a", b"b"]


async def test_records_of_an_answer_that_is_too_late_are_given_back(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    nodes.log(1).append(b"a")
    nodes.links.delay_s = 0.6
    answers = await nodes[1].consume()
    await nodes.pass_time(1.5)
    nodes.links.delay_s = 0.0
    assert answers.values == []
    await nodes.pass_time(1)
    assert answers.values == [b"a"]


@pytest.mark.slow
async def test_an_owner_that_cannot_be_reached_delays_nobody_else(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(3, 3)
    await nodes.join(1, 2, 3)
    nodes.links.cut(1, 2)
    answers = await nodes[1].consume()
    await nodes.pass_time(0.5)
    nodes.log(2).append(b"c")
    await settle()
    assert answers.values == [b"c"]
    nodes.links.calls.clear()
    answers = await nodes[1].consume()
    await nodes.pass_time(2.9)
    assert len([node for _, node, _ in nodes.links.calls if node == 2]) < 10
    nodes.links.heal()
    await nodes.pass_time(0.05)
    answers = await nodes[1].consume()
    nodes.log(1).append(b"b")
    await nodes.pass_time(1)
    assert answers.values == [b"b"]


async def test_the_first_owner_is_asked_soon(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(2, 1)
    nodes.groups.withheld.add(T0)
    await nodes.join(1, 2)
    nodes.log().append(b"a")
    answers = await nodes[2].consume()
    await nodes.pass_time(1)
    assert answers.values == []
    nodes.groups.withheld.clear()
    nodes.groups.assign("g")
    await nodes.pass_time(0.3)
    assert nodes.owned(1) == [0]
    assert answers.values == [b"a"]


async def test_a_new_owner_is_asked_too(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(3, 3)
    await nodes.join(1, 2)
    answers = await nodes[1].consume()
    await nodes.pass_time(0.1)
    await nodes.join(3)
    nodes.log(nodes.owned(3)[0]).append(b"c")
    await nodes.pass_time(1.1)
    assert answers.values == [b"c"]


@pytest.mark.slow
async def test_a_node_without_clients_gives_up_its_partitions_although_others_ask_it(
    make_nodes: MakeNodes,
) -> None:
    nodes = await two(make_nodes, subscription_timeout=10.0)
    for _ in range(12):
        answers = await nodes[1].consume(auto_ack=True)
        nodes.log(1).append(b"a")
        await nodes.pass_time(1)
        assert answers.values == [b"a"]
        answers.offers[0].delivered()
        if nodes.owned(2) == []:
            break
    assert nodes.owned(1) == [0, 1]


@pytest.mark.slow
async def test_a_node_without_clients_stops_lending_for_a_while_to_give_up_its_partitions(
    make_nodes: MakeNodes,
) -> None:
    nodes = await two(make_nodes, subscription_timeout=10.0)
    await poll(nodes, 8)
    nodes.log(1).append(b"a", b"b")
    assert await poll(nodes, 1) == [b"a"]
    assert (await poll(nodes, 1), nodes.owned(2)) == ([], [1])
    assert await nodes[1].ack(1, 0) == [None]
    await nodes.pass_time(0.1)
    assert nodes.owned(1) == [0, 1]
    assert await poll(nodes, 1) == [b"b"]


@pytest.mark.slow
async def test_a_node_that_has_clients_again_lends_again(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes, subscription_timeout=10.0)
    await poll(nodes, 8)
    nodes.log(1).append(b"a")
    assert await poll(nodes, 1) == [b"a"]
    nodes.log(1).append(b"b", b"c")
    assert await poll(nodes, 1) == []
    assert (await nodes[2].consume()).values == [b"b"]
    assert await poll(nodes, 1) == [b"c"]


@pytest.mark.slow
async def test_a_record_that_is_never_acked_stops_lending_for_a_bounded_time_only(
    make_nodes: MakeNodes,
) -> None:
    nodes = await two(make_nodes, subscription_timeout=10.0)
    nodes.log(1).append(b"a")
    assert await poll(nodes, 10) == [b"a"]
    nodes.log(1).append(b"b")
    assert await poll(nodes, 3) == []
    assert await poll(nodes, 3) == [b"b"]
    assert nodes.owned(2) == [1]


async def test_a_draining_node_lends_nothing_more(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    nodes.log(1).append(b"a", b"b")
    await nodes[2].consume()
    nodes[2].consumers.stop_offering()
    answers = await nodes[1].consume()
    await nodes.pass_time(1)
    assert answers.values == []


async def test_a_draining_node_says_what_became_of_the_records_that_it_had(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    nodes.log(1).append(b"a")
    answers = await nodes[1].consume(auto_ack=True, slow=True)
    await nodes.pass_time(0.03)
    drained = asyncio.create_task(nodes[1].consumers.drain(10))
    await nodes.pass_time(0.5)
    assert not drained.done()
    answers.offers[0].delivered()
    await nodes.pass_time(0.5)
    assert drained.done()
    assert nodes[2].committed(1) == OffsetCommit(1)


async def test_a_draining_node_accepts_acks_of_records_that_it_borrowed(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    nodes.log(1).append(b"a")
    await nodes[1].consume()
    await nodes.pass_time(0.03)
    nodes[1].consumers.stop_offering()
    assert await nodes[1].ack(1, 0) == [None]
    await nodes.pass_time(0.5)
    assert nodes[2].committed(1) == OffsetCommit(1)
