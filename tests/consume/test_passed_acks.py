"""Acks at nodes that do not own the partition: the owner answers them."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import pytest

from pixy.backend import OffsetCommit, TopicPartition
from pixy.consume.core import AckRange, encode
from pixy.consume.core.passing_turns import PassingTurns
from pixy.consume.core.timers import Timers
from pixy.errors import (
    AckBeyondEnd,
    AckElsewhere,
    DeadlineExceeded,
    InvalidAck,
    OwnedElsewhere,
    PixyError,
    ResourceExhausted,
    TooManyRequests,
    Unavailable,
)
from pixy.proto.consumer_calls_pb2 import AckOutcomes, ConsumerCall, PassedAck
from tests.consume.conftest import MakeNodes
from tests.consume.fakes import Nodes, World
from tests.fakes.clock import FakeClock
from tests.fakes.waiting import settle, until


class At(NamedTuple):
    """A client at an address."""

    peer: str


T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def two(make_nodes: MakeNodes, **options: object) -> Nodes:
    """Two nodes with a partition each, node 1 with partition 0, and a record in each partition."""
    nodes = make_nodes(2, 2, **options)
    await nodes.join(1, 2)
    assert (nodes.owned(1), nodes.owned(2)) == ([0], [1])
    await nodes.pass_time(1)  # of a question that nobody needs any more
    for partition in (0, 1):
        nodes.log(partition).append(b"a")
    await settle()
    return nodes


def ask(nodes: Nodes, partition: int, offset: int) -> "asyncio.Task[bytes]":
    """Pass an ack from node 1 to node 2."""
    ack = PassedAck(group="g", topic="t", partition=partition, offset=offset)
    request = ConsumerCall(ack=ack).SerializeToString()
    return asyncio.create_task(nodes[1].backend.ask_node(2, request, 1.0))


async def test_an_ack_at_any_member_counts_at_the_owner(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    assert (await nodes[2].consume()).values == [b"a"]
    assert await nodes[1].ack(1, 0) == [None]
    assert nodes[2].consumers.outstanding == 0
    await nodes.pass_time(0.5)
    assert nodes[2].committed(1) == OffsetCommit(1)


async def test_an_ack_at_a_node_without_a_member_counts_at_the_owner(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(2, 1)
    nodes.log().append(b"a")
    assert (await nodes[1].consume()).values == [b"a"]
    assert await nodes[2].ack(0, 0) == [None]
    assert nodes[1].consumers.outstanding == 0
    assert nodes.groups.member("g", 2) is None


async def test_an_ack_that_rides_on_a_request_counts_at_the_owner(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    await nodes[2].consume()
    answers = await nodes[1].consume(ack=(1, 0))
    assert answers.values == [b"a"]
    assert nodes[2].consumers.outstanding == 0


@pytest.mark.parametrize("acks", [1, 2])
async def test_a_default_ack_counts_at_the_owner_if_the_record_is_outstanding(
    make_nodes: MakeNodes, acks: int
) -> None:
    nodes = await two(make_nodes)
    await nodes[1].consume()
    nodes.log(1).append(b"b")
    for _ in range(acks):
        answers = await nodes[2].consume(ack=(0, 0), ack_if_offered=True)
        assert len(answers.offers) == 1
    assert nodes[1].consumers.counters().acked == 1
    await nodes.pass_time(0.5)
    assert nodes[1].committed(0) == OffsetCommit(1)


async def test_a_default_ack_of_a_record_that_is_not_outstanding_has_no_effect(
    make_nodes: MakeNodes,
) -> None:
    nodes = await two(make_nodes)
    assert (await nodes[2].consume(ack=(0, 0), ack_if_offered=True)).values == [b"a"]
    await nodes.pass_time(0.5)
    assert nodes[1].committed(0) == OffsetCommit(0)


@pytest.mark.parametrize("is_default", [True, False])
async def test_an_ack_reaches_the_owner_from_a_node_that_is_not_a_member_yet(
    make_nodes: MakeNodes, is_default: bool
) -> None:
    nodes = make_nodes(2, 1)
    nodes.log().append(b"a", b"b")
    assert (await nodes[1].consume()).values == [b"a"]
    nodes[2].backend.gates["join"] = asyncio.Event()
    assert (await nodes[2].consume(ack=(0, 0), ack_if_offered=is_default)).values == [b"b"]
    assert nodes[1].consumers.counters().acked == 1


async def test_no_ack_is_given_up_for_another_program_while_its_node_may_get_the_partition(
    make_nodes: MakeNodes,
) -> None:
    nodes = make_nodes(2, 2)
    nodes.log(0).append(b"a")
    nodes[1].handed_out_before(1)
    await nodes.join(2)
    nodes.groups.owners[T0] = "pixy-b"
    gate = nodes[1].backend.gates["join"] = asyncio.Event()
    await nodes[1].consume(ack=(0, 0))
    del nodes.groups.owners[T0]
    gate.set()
    await nodes.pass_time(1)
    assert nodes[1].committed(0) == OffsetCommit(1)


async def test_a_default_ack_reaches_the_owner_from_a_node_that_has_not_heard_of_it_yet(
    make_nodes: MakeNodes,
) -> None:
    nodes = make_nodes(2, 1)
    nodes.log().append(b"a", b"b")
    assert (await nodes[1].consume()).values == [b"a"]
    nodes[2].backend.may_have_neighbours = True
    nodes[2].backend.knows_owners = False
    await nodes[2].consume(ack=(0, 0), ack_if_offered=True)
    assert nodes[1].consumers.counters().acked == 1


async def test_no_request_waits_for_a_default_ack_whose_owner_nobody_knows(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(2, 2)
    nodes.groups.withheld.add(T0)
    await nodes.join(2)
    nodes[2].backend.may_have_neighbours = True
    nodes[2].backend.gates["owner"] = asyncio.Event()
    nodes.log(1).append(b"a", b"b")
    for value in (b"a", b"b"):
        assert (await nodes[2].consume(ack=(0, 0), ack_if_offered=True)).values == [value]
    assert nodes[2].consumers.counts()["waiting_acks"] == 1


async def test_a_default_ack_waits_for_nothing_that_cannot_be_outstanding(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(2, 3)
    await nodes.join(1, 2)
    nodes.log(nodes.owned(2)[0]).append(b"a")
    nodes.groups.withheld.add(T0)
    nodes.groups.assign("g")
    await nodes.pass_time(0.1)
    assert 0 not in nodes.owned(1)
    answers = await nodes[2].consume(ack=(0, 0), ack_if_offered=True)
    assert answers.values == [b"a"]
    nodes[1].backend.gates["offset_ranges"] = asyncio.Event()
    nodes.groups.withheld.clear()
    nodes.groups.assign("g")
    await settle()
    nodes.log(1).append(b"b")
    answers = await nodes[1].consume(ack=(0, 0), ack_if_offered=True)
    assert answers.values == [b"b"]


async def test_an_ack_that_does_not_fit_at_the_owner_is_refused_everywhere_and_not_forgotten(
    make_nodes: MakeNodes,
) -> None:
    nodes = await two(make_nodes)
    nodes.log(1).append(*[b"x"] * 7200)
    acked = [AckRange(offset, offset + 1) for offset in range(3001, 7095, 2)]
    await nodes[2].consumers.set_offsets("g", "t", {1: OffsetCommit(0, encode(0, acked))})
    await settle()
    for offset in range(3):
        assert (await nodes[2].consume()).offsets == [offset]
    (here,) = await nodes[2].ack(1, 2)
    (passed,) = await nodes[1].ack(1, 2)
    riding = await nodes[1].consume(ack=(1, 2))
    assert type(here) is type(passed) is ResourceExhausted
    assert "offset 2 of t/1" in str(here)
    assert str(here) == str(passed) == str(riding.errors[0])
    assert riding.offers == []
    for offset in range(3):
        assert await nodes[1].ack(1, offset) == [None]
    await nodes.pass_time(0.5)
    committed = nodes[2].committed(1)
    assert committed is not None
    assert committed.offset == 3


@pytest.mark.parametrize(("offset", "error"), [(5, AckBeyondEnd), (-1, InvalidAck)])
async def test_an_ack_is_answered_as_the_owner_answers(
    make_nodes: MakeNodes, offset: int, error: type[PixyError]
) -> None:
    nodes = await two(make_nodes)
    (here,) = await nodes[2].ack(1, offset)
    (passed,) = await nodes[1].ack(1, offset)
    answers = await nodes[1].consume(ack=(1, offset)) if offset > 0 else None
    assert type(here) is type(passed) is error
    assert str(here) == str(passed)
    if answers is not None:
        assert [str(each) for each in answers.errors] == [str(here)]


async def test_the_owner_asks_the_cluster_before_it_refuses_an_offset(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    nodes.log(1).end += 3
    assert await nodes[1].ack(1, 3) == [None]


async def test_an_ack_of_a_record_that_was_never_handed_out_has_no_effect(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    assert await nodes[1].ack(1, 0) == [None]
    await nodes[1].consume()
    assert (await nodes[2].consume()).offsets == [0]


async def test_a_process_that_is_asked_never_passes_on(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(3, 3)
    await nodes.join(1, 2, 3)
    nodes.links.calls.clear()
    refusal = ask(nodes, 2, 0)
    await settle()
    with pytest.raises(OwnedElsewhere, match="t/2 is not consumed by this node"):
        await refusal
    assert len(nodes.links.calls) == 1


async def test_a_process_without_the_subscription_refuses(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(2, 2)
    refusal = ask(nodes, 1, 0)
    await settle()
    with pytest.raises(OwnedElsewhere, match="topic t is not consumed by this node for g"):
        await refusal


async def test_an_ack_waits_while_its_partition_starts_at_the_owner(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(2, 1)
    nodes.log().append(b"a")
    gate = nodes[1].backend.gates["offset_ranges"] = asyncio.Event()
    await nodes[1].consume()
    outcome = await nodes[2].ack(0, 0)
    assert outcome == []
    gate.set()
    await settle()
    assert outcome == [None]


async def test_acks_of_a_partition_that_does_not_start_are_with_its_owner_in_one_call(
    make_nodes: MakeNodes,
) -> None:
    nodes = make_nodes(2, 2, rebalance_timeout=3.0)
    nodes.log(0).append(b"a")
    await nodes.join(1)
    gate = nodes[1].backend.gates["offset_ranges"] = asyncio.Event()
    await nodes[1].consume(group="stuck")
    stuck = [await nodes[2].ack(0, 0, group="stuck") for _ in range(100)]
    assert len(nodes.links.calls) == 1
    assert await nodes[2].ack(0, 0) == [None]
    await nodes.pass_time(1.5)
    assert len(nodes.links.calls) <= 4
    await nodes.pass_time(2.0)
    assert {type(error) for [error] in stuck} == {DeadlineExceeded}
    late = [await nodes[2].ack(0, 0, group="stuck") for _ in range(20)]
    gate.set()
    await settle()
    await nodes.pass_time(1)
    assert late == [[None]] * 20


class Outcomes:
    """Acks of a group that are sent at once, and their outcomes."""

    def __init__(self, world: World, partition: int, offsets: Sequence[int], group: str = "g") -> None:
        self._outcomes: dict[int, PixyError | None] = {}
        self._count = len(offsets)
        for at, offset in enumerate(offsets):
            world.consumers.ack(group, "t", partition, offset, partial(self._outcomes.__setitem__, at))

    @property
    def is_whole(self) -> bool:
        return len(self._outcomes) == self._count

    async def whole(self) -> list[PixyError | None]:
        """All outcomes, in the order of the acks."""
        await until(lambda: self.is_whole)
        return [self._outcomes[at] for at in range(self._count)]


@pytest.mark.slow
@pytest.mark.parametrize("is_subscribed", [False, True])
async def test_acks_of_a_partition_travel_together_and_each_has_its_own_outcome(
    make_nodes: MakeNodes, is_subscribed: bool
) -> None:
    nodes = make_nodes(2, 2)
    await nodes.join(*([1, 2] if is_subscribed else [2]))
    await nodes.pass_time(1)
    nodes.log(1).append(*[b"x"] * 7200)
    acked = [AckRange(offset, offset + 1) for offset in range(3001, 7095, 2)]
    await nodes[2].consumers.set_offsets("g", "t", {1: OffsetCommit(0, encode(0, acked))})
    await settle()
    for _ in range(300):
        await nodes[2].consume()
    nodes.links.calls.clear()
    offsets = [2, 7200, *range(3, 290), 0, *[1] * 800, 8000]
    outcomes = await Outcomes(nodes[1], 1, offsets).whole()
    assert len(nodes.links.calls) <= 6
    kinds = [type(outcome) for outcome in outcomes]
    assert [str(outcomes[at]).split(":")[2] for at in (1, -1)] == [" 7200", " 8000"]
    assert kinds[:2] == [ResourceExhausted, AckBeyondEnd]
    assert set(kinds[2:289]) == {ResourceExhausted}
    assert set(kinds[289:-1]) == {type(None)}
    assert kinds[-1] is AckBeyondEnd
    await nodes.pass_time(0.5)
    assert nodes[2].consumers.counters().acked == 2


async def test_a_node_of_an_earlier_release_gets_the_acks_one_by_one(
    make_nodes: MakeNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = await two(make_nodes)
    nodes.log(1).append(*[b"x"] * 99)
    for _ in range(100):
        await nodes[2].consume()
    taken: list[int] = []
    more: list[int] = []
    handle = nodes.links._handlers[2]

    async def answer(node_id: int, request: bytes) -> bytes:
        call = ConsumerCall.FromString(request)
        more.append(len(call.ack.more_offsets))
        call.ack.ClearField("more_offsets")  # unknown there
        taken.append(call.ack.offset)
        return await handle(node_id, call.SerializeToString())

    nodes.links.serve(2, answer)
    outcomes = await Outcomes(nodes[1], 1, [*range(100), 100]).whole()
    assert [type(outcome) for outcome in outcomes] == [type(None)] * 100 + [AckBeyondEnd]
    assert taken == [*range(101)]
    assert more == [100] + [0] * 100
    assert nodes[2].consumers.counters().acked == 100


async def test_an_owner_decides_what_it_can_before_it_asks_for_the_end(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    await nodes[2].consume()
    nodes[2].backend.gates["offset_ranges"] = asyncio.Event()
    beyond = Outcomes(nodes[1], 1, [7])
    await settle()
    early = Outcomes(nodes[1], 1, [0, 8])
    await nodes.pass_time(3)
    assert nodes[2].consumers.counters().acked == 1
    assert list(early._outcomes.items()) == [(0, None)]
    nodes[2].backend.gates.pop("offset_ranges").set()
    await nodes.pass_time(2)
    assert beyond.is_whole
    assert early.is_whole


async def test_an_answer_that_no_node_gives_decides_nothing(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes, rebalance_timeout=3.0)
    answers = [
        AckOutcomes(acks=3).SerializeToString(),
        AckOutcomes(acks=2, undecided=[0, 1]).SerializeToString(),
        b"\xff",
    ]

    async def answer(*_: object) -> bytes:
        return answers[len(nodes.links.calls) % 3]

    nodes.links.serve(2, answer)
    outcomes = Outcomes(nodes[1], 1, [0, 1])
    await nodes.pass_time(2.5)
    assert not outcomes.is_whole
    await nodes.pass_time(1.0)
    assert [type(outcome) for outcome in await outcomes.whole()] == [Unavailable] * 2


# --- turns ----------------------------------------------------------------------------------------


class Passed:
    """Partitions whose acks wait for a turn or for their answers.

    Attributes:
        waiting: answers that owners owe, by group.
        clock: the time.
    """

    def __init__(self, share_percent: int = 100) -> None:
        self.waiting: dict[str, list[asyncio.Future[None]]] = defaultdict(list)
        self.clock = FakeClock()
        self.turns = PassingTurns(Timers(self.clock, self.clock.call_later), share_percent)
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self, *groups: str, address: str = "10.0.0.1") -> None:
        for group in groups:
            self._tasks.append(asyncio.create_task(self._pass(group, address)))
        await settle()

    async def _pass(self, group: str, address: str) -> None:
        with suppress(PixyError):
            async with self.turns.turn(group, T0, address, self.clock.monotonic() + 100):
                answer = asyncio.get_running_loop().create_future()
                self.waiting[group].append(answer)
                await answer

    async def answer(self, *groups: str, error: PixyError | None = None) -> None:
        for group in groups:
            for answer in self.waiting.pop(group, ()):
                if error is None:
                    answer.set_result(None)
                else:
                    answer.set_exception(error)
        await settle()

    async def fail(self, *groups: str) -> None:
        """Have them fail, and their turns end."""
        await self.answer(*groups, error=DeadlineExceeded("no answer"))
        self.clock.advance(1.0)
        await settle()

    async def answer_all(self) -> None:
        while self.waiting:
            await self.answer(*self.waiting)
        assert all(task.done() for task in self._tasks)


async def test_partitions_that_fail_hold_up_neither_new_ones_nor_those_that_are_answered() -> None:
    passed = Passed()
    await passed.begin("good")
    await passed.answer("good")
    stuck = [f"stuck-{number}" for number in range(1000)]
    await passed.begin(*stuck)
    for _ in range(8):
        await passed.fail(*passed.waiting)
    assert passed.waiting == {}
    await passed.begin(*stuck)
    assert len(passed.waiting) == 64, "all of them have failed once"
    await passed.begin("good", "new")
    assert (len(passed.waiting["good"]), len(passed.waiting["new"])) == (1, 1)
    await passed.answer_all()


async def test_partitions_that_fail_at_once_make_few_attempts_a_second() -> None:
    passed = Passed()
    stuck = [f"stuck-{number}" for number in range(1000)]
    await passed.begin(*stuck)
    begun = len(passed.waiting)
    await passed.answer(*passed.waiting, error=Unavailable("its node is down"))
    assert passed.waiting == {}, "others wait for the time of turns that have failed"
    passed.clock.advance(0.3)
    await settle()
    assert len(passed.waiting) == begun
    await passed.answer_all()


async def test_a_partition_that_fails_alone_keeps_no_turn() -> None:
    passed = Passed()
    await passed.begin("g")
    await passed.answer("g", error=Unavailable("its node is down"))
    assert passed.clock.timers == 0
    await passed.begin("g")
    assert len(passed.waiting["g"]) == 1
    await passed.answer_all()


@pytest.mark.slow
@pytest.mark.parametrize("are_answered", [False, True])
async def test_addresses_take_turns_and_have_a_share_of_them(are_answered: bool) -> None:
    passed = Passed(share_percent=50)
    groups, turns = [f"g{number}" for number in range(1000)], 64
    if are_answered:
        for group in groups:
            await passed.begin(group)
            await passed.answer(group)
        turns = 160
    await passed.begin(*groups)
    assert len(passed.waiting) == turns
    await passed.begin(*(f"other-{number}" for number in range(100)), address="10.0.0.2")
    assert len(passed.waiting) == turns + 64
    await passed.answer_all()


@pytest.mark.parametrize("cancelled_first", [False, True])
@pytest.mark.parametrize("known", [False, True], ids=["a new partition", "one that was answered"])
async def test_an_ack_that_is_cancelled_as_its_turn_comes_passes_the_turn_on(
    cancelled_first: bool, known: bool
) -> None:
    passed = Passed(share_percent=1)
    turns = 3 if known else 1
    groups = [f"g{number}" for number in range(turns + 2)]
    if known:
        for group in groups:
            await passed.begin(group)
            await passed.answer(group)
    await passed.begin(*groups)
    assert len(passed.waiting) == turns
    [answer] = passed.waiting.pop(groups[0])
    cancelled = [task for task in passed._tasks if not task.done()][turns]
    # In the next iteration the answered ack releases its turn, which admits the cancelled one.
    answer.set_result(None)
    if cancelled_first:
        cancelled.cancel()
    else:
        asyncio.get_running_loop().call_soon(cancelled.cancel)
    await settle()
    assert cancelled.cancelled()
    await passed.answer_all()
    assert [quota.acquired for quota in passed.turns._quotas.values()] == [0, 0, 0]


@pytest.mark.slow
async def test_the_outcomes_of_a_bounded_number_of_partitions_are_known() -> None:
    turns = Passed().turns
    for number in range(10_002):
        async with turns.turn(f"g{number}", T0, "", 1e9):
            pass
        async with turns.turn("g0", T0, "", 1e9):
            pass
    assert list(turns._outcomes)[:2] == ["g3 t/0", "g4 t/0"]
    assert len(turns._outcomes) == 10_000


# --- the limit ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_subscribed", [False, True])
async def test_waiting_acks_of_one_address_leave_others_their_share(
    make_nodes: MakeNodes, is_subscribed: bool
) -> None:
    nodes = make_nodes(2, 2, max_waiting_acks=4, client_share_percent=50)
    nodes[1].backend.gates["offset_ranges"] = asyncio.Event()
    for group in ("g", "h"):
        await nodes[1].consume(group=group)
        if is_subscribed:
            await nodes[2].consume(group=group)
    clients = [(number, At(f"10.0.0.{number}:1")) for number in (1, 1, 1, 2, 2, 3)]
    outcomes = [
        await nodes[2].ack(0, offset, group="gh"[offset % 2], client=client)
        for offset, (_, client) in enumerate(clients)
    ]
    assert [[type(error) for error in outcome] for outcome in outcomes] == [
        [], [], [TooManyRequests], [], [], [TooManyRequests]
    ]  # fmt: skip
    [[share], [limit]] = outcomes[2], outcomes[5]
    assert share is not None
    assert limit is not None
    assert (share.limit, limit.limit) == (
        "client_share_percent of consumer.max_waiting_acks",
        "consumer.max_waiting_acks",
    )
    assert nodes[2].consumers.counts()["waiting_acks"] == 4


async def test_acks_that_are_answered_make_room(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(2, 1, max_waiting_acks=2)
    nodes.log().append(b"a", b"b")
    await nodes[1].consume()
    for _ in range(3):
        outcomes = [await nodes[2].ack(0, offset) for offset in (0, 1, 5)]
        assert [type(error) for [error] in outcomes] == [type(None), type(None), AckBeyondEnd]
    assert nodes[2].consumers.counts()["waiting_acks"] == 0


async def test_an_ack_waits_for_the_move_of_its_partition_and_counts_at_the_new_owner(
    make_nodes: MakeNodes,
) -> None:
    nodes = make_nodes(3, 3)
    await nodes.join(1)
    nodes.log(2).append(b"a", b"b")
    assert (await nodes[1].consume(2)).values == [b"a", b"b"]
    await nodes[1].ack(2, 1)
    nodes.groups.drain_s = 0.5
    gate = nodes[1].backend.gates["commit"] = asyncio.Event()
    await nodes.join(2)
    nodes.clock.advance(0.6)
    await settle()
    outcome = await nodes[3].ack(2, 0)  # sealed: neither accepted nor refused
    assert outcome == []
    gate.set()
    await nodes.pass_time(0.3)
    assert nodes.owner(2) == 2
    assert outcome == [None]
    await nodes.pass_time(0.5)
    assert nodes[2].committed(2) == OffsetCommit(2)


async def test_an_ack_waits_for_an_owner_that_is_lost_and_counts_at_the_next(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(3, 3)
    await nodes.join(1, 2, 3)
    lost = nodes.owned(2)[0]
    nodes.log(lost).append(b"a")
    await nodes[2].consume()
    nodes.kill(2)
    outcome = await nodes[1].ack(lost, 0)
    await nodes.pass_time(1.5)
    assert outcome == []
    nodes.groups.expel(2)
    await nodes.pass_time(0.5)
    assert outcome == [None]
    assert nodes.owner(lost) != 2


async def test_an_ack_that_finds_no_owner_is_answered_at_its_deadline(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes, rebalance_timeout=3.0)
    nodes.links.cut(1, 2)
    outcome = await nodes[1].ack(1, 0)
    await nodes.pass_time(2.9)
    assert outcome == []
    await nodes.pass_time(0.2)
    assert [str(error) for error in outcome] == ["no connection to node 2"]


async def test_an_ack_without_an_answer_says_that_its_outcome_is_unknown(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes, rebalance_timeout=3.0)
    nodes.links.delay_s = 30.0
    outcome = await nodes[1].ack(1, 0)
    await nodes.pass_time(3.2)
    assert [type(error) for error in outcome] == [DeadlineExceeded]


async def test_an_ack_without_a_member_waits_for_its_owner_too(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(2, 1)
    nodes.log().append(b"a")
    await nodes[1].consume()
    nodes.links.cut(1, 2)
    outcome = await nodes[2].ack(0, 0)
    await nodes.pass_time(1)
    assert outcome == []
    nodes.links.heal()
    await nodes.pass_time(0.3)
    assert outcome == [None]


async def test_an_ack_whose_answer_is_lost_is_passed_again(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    await nodes[2].consume()
    nodes.links.lose_answers(1)
    outcome = await nodes[1].ack(1, 0)
    await nodes.pass_time(0.1)
    assert outcome == [None]
    assert nodes[2].consumers.counters().acked == 1


async def test_a_request_goes_on_when_the_time_of_its_ack_is_over(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    nodes.links.cut(1, 2)
    answers = await nodes[1].consume(ack=(1, 0), deadline=nodes.clock.monotonic() + 1)
    await nodes.pass_time(0.9)
    assert (answers.offers, answers.errors) == ([], [])
    await nodes.pass_time(0.3)
    assert answers.values == [b"a"]


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_the_ack_of_a_request_stays_when_the_request_has_gone_on(
    make_nodes: MakeNodes, is_cancelled: bool
) -> None:
    nodes = await two(make_nodes)
    await nodes[2].consume()
    nodes.links.cut(1, 2)
    answers = await nodes[1].consume(ack=(1, 0), deadline=nodes.clock.monotonic() + 1)
    if is_cancelled:
        answers.waiting[0].cancel()
    await nodes.pass_time(1.2)
    assert len(answers.offers) == (0 if is_cancelled else 1)
    nodes.links.heal()
    await nodes.pass_time(0.5)
    assert nodes[2].consumers.counters().acked == 1


async def test_an_ack_that_is_invalid_after_its_request_has_gone_on_ends_nothing(
    make_nodes: MakeNodes,
) -> None:
    nodes = await two(make_nodes)
    nodes.links.cut(1, 2)
    answers = await nodes[1].consume(ack=(1, 5), deadline=nodes.clock.monotonic() + 1)
    await nodes.pass_time(1.2)
    nodes.links.heal()
    await nodes.pass_time(0.5)
    assert (answers.values, answers.errors) == ([b"a"], [])


async def test_acks_that_other_nodes_pass_wait_at_the_owner_whatever_waits_there(
    make_nodes: MakeNodes,
) -> None:
    nodes = make_nodes(3, 1, max_waiting_acks=1)
    nodes.log().append(b"a")
    gate = nodes[1].backend.gates["offset_ranges"] = asyncio.Event()
    await nodes[1].consume()
    outcomes = [await nodes[number].ack(0, 0) for number in (1, 2, 3)]
    assert outcomes == [[], [], []]
    gate.set()
    await settle()
    assert outcomes == [[None]] * 3


async def test_a_silent_owner_is_given_up_for_the_next_after_a_second(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    nodes.links.delay_s = 30.0
    outcome = await nodes[1].ack(1, 0)
    await nodes.pass_time(0.5)
    nodes.groups.expel(2)
    await nodes.pass_time(0.4)
    assert outcome == []
    await nodes.pass_time(0.3)
    assert outcome == [None]


async def test_an_answer_about_an_owner_of_the_past_is_of_no_interest(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(1, 2)
    nodes.log(1).append(b"a")
    nodes.groups.withheld.add(T1)
    nodes.groups.owners[T1] = "pixy-b"
    await nodes.join(1)
    gate = nodes[1].backend.gates["owner"] = asyncio.Event()
    outcome = await nodes[1].ack(1, 0)
    nodes.groups.withheld.clear()
    nodes.groups.assign("g")
    await settle()
    assert outcome == []
    gate.set()
    await settle()
    assert outcome == [None]


async def test_an_owner_that_cannot_be_asked_is_named(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    nodes.groups.owners[T1] = "pixy-b"
    (outcome,) = await nodes[1].ack(1, 0)
    assert isinstance(outcome, AckElsewhere)
    assert str(outcome) == "ack not accepted: t/1 of g is consumed by pixy-b; ack it there"


async def test_a_draining_owner_still_accepts_passed_acks(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    await nodes[2].consume()
    drained = asyncio.create_task(nodes[2].consumers.drain(10))
    await settle()
    assert not drained.done()
    assert await nodes[1].ack(1, 0) == [None]
    await settle()
    assert drained.done()
    assert nodes[1].committed(1) == OffsetCommit(1)


async def test_a_stopped_owner_refuses(make_nodes: MakeNodes) -> None:
    nodes = await two(make_nodes)
    await nodes[2].consumers.drain(0)
    refusal = ask(nodes, 1, 0)
    await settle()
    with pytest.raises(Unavailable, match="shutting down"):
        await refusal
