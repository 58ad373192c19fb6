"""Clients of consumer groups: each consumes at one node after the other, acks at any, and now and
then sets offsets.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from pixy.cluster import Process
from pixy.consume import ConsumeRequest, Offer, PendingRequest
from pixy.consume.group import NEWEST, OLDEST
from pixy.consume.lending import RecordPosition
from pixy.consume.partition import LivePartition
from pixy.errors import PixyError, Unavailable
from pixy.records import OffsetCommit, TopicPartition
from tests.sim.kit.failure import ClusterFailure
from tests.sim.kit.messages import message_id
from tests.sim.kit.scene import Scene
from tests.sim.whole.audits import Audits
from tests.sim.whole.calls import Call, Calls, Outcome
from tests.sim.whole.group_audit import GroupAudit, GroupPartition
from tests.sim.whole.machine import Machine
from tests.sim.whole.swarm import Consuming

_PATIENCE_S = (0.2, 2.0, 5.0, 5.0)
_WRONG_ACKS = 0.1
"""Probability that a client acks something else too."""
_WRONG_BY_MAX = 20
_POLL_S = 0.5
"""Time that a consume request waits once everything is repaired."""
_REST_S_MAX = 5.0
_LAST_ACKS_S = 0.01
_AFTER_ACKS_S = 0.5
_DRAINERS = 5
_DRAIN_PAUSE_S = 0.2


class _Held(NamedTuple):
    """A record that a client got, and has not acked.

    `at`: virtual time when it got it.
    """

    key: GroupPartition
    topic: str
    offset: int
    at: float


@dataclass(slots=True)
class _Client:
    """One client; `machine` is where it calls, and `rests` if it ever rests."""

    name: str
    rests: bool = False
    machine: Machine | None = None
    held: list[_Held] = field(default_factory=list)


class GroupClients:
    """All clients of consumer groups.

    Args:
        scene: see `Scene`.
        calls: see `Calls`.
        audits, audit: judges of the outcomes.
        habits: what they do.
        serving: machines whose node takes calls.
    """

    def __init__(
        self,
        scene: Scene,
        calls: Calls,
        audits: Audits,
        audit: GroupAudit,
        habits: Consuming,
        serving: Callable[[], Sequence[Machine]],
    ) -> None:
        self._scene = scene
        self._calls = calls
        self._audits = audits
        self._audit = audit
        self._habits = habits
        self._serving = serving
        self._rng = scene.random("clients of groups")
        self._wrong = scene.random("wrong acks of groups")
        self._requests: dict[Call, PendingRequest] = {}
        self._drains = False
        # Partitions that records are missing of, by group and topic.
        self._is_missing: Callable[[str, str], bool] = lambda *_: False
        # Partitions that cannot be read, by topic and number.
        self._is_stuck: Callable[[str, int], bool] = lambda *_: False

    def start(self) -> None:
        """Begin to call."""
        for number in range(self._habits.clients):
            self._later(_Client(f"m{number}", rests=not number % 2))

    def drain(
        self,
        is_missing: Callable[[str, str], bool],
        is_stuck: Callable[[str, int], bool],
        serving: Callable[[], Sequence[Machine]],
    ) -> None:
        """From here on, get everything that nobody got yet.

        Args:
            is_missing: true for a group and a topic of which records are missing.
            is_stuck: true for a topic and a partition that no owner can read: its records are not
                acked.
            serving: nodes to call.
        """
        self._drains, self._is_missing, self._serving = True, is_missing, serving
        self._is_stuck = is_stuck
        for group in self._habits.groups:
            for topic in self._habits.topics:
                for number in range(_DRAINERS):
                    self._drain(_Client(f"{group}-{topic}-{number}"), group, topic)

    # --- one call after the other -----------------------------------------------------------------

    def _later(self, client: _Client) -> None:
        delay = self._rng.expovariate(1 / self._habits.think_s)
        self._scene.loop.outside(delay, self._next, client)

    def _next(self, client: _Client) -> None:
        if self._drains:
            return
        rng, habits = self._rng, self._habits
        machine = self._node_of(client, habits.moves)
        topics = [topic for topic in habits.topics if topic in self._audits.topics_seen]
        if machine is None or not topics:
            self._later(client)
            return
        if habits.rests and self._may_rest(client, topics) and rng.random() < habits.rests:
            delay = min(_REST_S_MAX, habits.options.subscription_timeout * rng.uniform(1.0, 1.5))
            self._scene.loop.outside(delay, self._ack_all, client, machine)
            return
        then = partial(self._later, client)
        group, topic = rng.choice(habits.groups), rng.choice(topics)
        if client.held and rng.random() < habits.acks:
            # The record may be acked at any node.
            self._ack(client, rng.choice(self._serving() or [machine]), rng.choice(client.held), then)
        elif rng.random() < habits.sets:
            self._set(client, machine, group, topic, then)
        else:
            ack = None
            riding = [each for each in client.held if (each.key.group, each.topic) == (group, topic)]
            if riding and rng.random() < habits.riding:
                ack = rng.choice(riding)
                client.held.remove(ack)
            auto_ack = rng.random() < habits.auto_acks
            self._consume(client, machine, group, topic, then, auto_ack=auto_ack, ack=ack)

    @staticmethod
    def _may_rest(client: _Client, topics: Collection[str]) -> bool:
        return client.rests and {held.topic for held in client.held}.issuperset(topics)

    def _ack_all(self, client: _Client, machine: Machine) -> None:
        """Ack all records of a client at nearly the same time, at one node."""
        if self._drains:
            return
        if machine in self._serving():
            for held in client.held:
                delay = self._rng.uniform(0.0, _LAST_ACKS_S)
                self._scene.loop.outside(delay, self._ack, client, machine, held, lambda: None)
        self._scene.loop.outside(_AFTER_ACKS_S, self._later, client)

    def _node_of(self, client: _Client, moves: float) -> Machine | None:
        serving = self._serving()
        if client.machine not in serving or self._rng.random() < moves:
            client.machine = self._rng.choice(serving) if serving else None
        return client.machine

    def _drain(self, client: _Client, group: str, topic: str) -> None:
        then = partial(self._drain, client, group, topic)
        machine = self._node_of(client, 0.3)
        if machine is None or not (client.held or self._is_missing(group, topic)):
            self._scene.loop.outside(_DRAIN_PAUSE_S, then)
        elif client.held:
            self._ack(client, machine, client.held[0], then)
        else:
            self._consume(client, machine, group, topic, then, auto_ack=self._rng.random() < 0.5)

    def _begin(
        self,
        client: _Client,
        machine: Machine,
        what: str,
        input: Any,
        then: Callable[[], None],
        judge: Callable[[Call], None],
    ) -> Call:
        patience = self._rng.choice(_PATIENCE_S) if not self._drains else _PATIENCE_S[-1]

        def ended(call: Call) -> None:
            if call.outcome is Outcome.UNKNOWN and self._rng.random() < 0.7:
                client.machine = None
            judge(call)
            then()

        return self._calls.begin(client.name, machine, what, input, patience, ended)

    # --- calls ------------------------------------------------------------------------------------

    def _consume(
        self,
        client: _Client,
        machine: Machine,
        group: str,
        topic: str,
        then: Callable[[], None],
        *,
        auto_ack: bool,
        ack: _Held | None = None,
    ) -> None:
        riding = None if ack is None else (ack.key.partition, ack.offset)
        judge = partial(self._consumed, client, auto_ack, topic)
        call = self._begin(client, machine, "consume", (group, topic, auto_ack, riding), then, judge)
        call.life.run(self._consume_there, call, group, topic, auto_ack, riding)

    def _consume_there(
        self, call: Call, group: str, topic: str, auto_ack: bool, riding: tuple[int, int] | None
    ) -> None:
        """Runs in the process, which may have been paused since the call began."""
        machine = call.machine
        if call.outcome is not Outcome.OPEN or machine.process is None:
            return

        def done(offer: Offer | None, error: PixyError | None) -> None:
            if offer is None:
                self._calls.answered(call, error)
            elif call.outcome is not Outcome.OPEN:
                offer.undelivered()
            else:
                key = self._handed_out(machine, group, offer)
                offer.delivered()
                if offer.auto_ack and isinstance(offer._owner, LivePartition):
                    self._audit.acked(key, offer.record.offset, self._scene.now, self._scene.now)
                self._calls.answered(call, (key, offer.record.offset))

        deadline = machine.clock.monotonic() + _POLL_S if self._drains else None
        try:
            self._check_known(machine, topic, 0 if riding is None else riding[0])
            consume = machine.process.consumers.consume
            request = consume(ConsumeRequest(group, topic, auto_ack, riding), done, deadline)
        except PixyError as error:
            self._calls.answered(call, error)
            return
        if request is not None:
            self._requests[call] = request

    def _handed_out(self, machine: Machine, group: str, offer: Offer) -> GroupPartition:
        node = machine.node
        assert node is not None
        partition = TopicPartition(offer.topic, offer.partition)
        key = GroupPartition(group, node.metadata.topics[offer.topic].topic_id, offer.partition)
        is_here = isinstance(offer._owner, LivePartition)
        process = Process(node.node_id, node.incarnation) if is_here else None
        self._scene.counts["records handed out elsewhere"] += not is_here
        try:
            self._audit.handed_out(key, offer.record.offset, process)
            log = self._audits.log(partition)
            assert log is not None
            log.handed_out(offer.record.offset, message_id(offer.record.value or b""))
        except ClusterFailure as failure:
            self._scene.fail(failure)
        return key

    @staticmethod
    def _check_known(machine: Machine, topic: str, partition: int) -> None:
        """Whoever calls `Consumers` knows that there is such a partition."""
        assert machine.process is not None
        found = machine.process.backend.topic(topic)
        if found is None or partition >= len(found.partitions):
            raise Unavailable(f"{topic}/{partition} is not known yet")

    def _consumed(self, client: _Client, auto_ack: bool, topic: str, call: Call) -> None:
        request = self._requests.pop(call, None)
        if call.outcome is Outcome.OK and not auto_ack:
            key, offset = call.answer
            if self._rng.random() >= self._habits.forgets or self._drains:
                client.held.append(_Held(key, topic, offset, call.ended_at))
        elif call.outcome is Outcome.UNKNOWN and request is not None and self._rng.random() < 0.7:
            call.life.run(request.cancel)

    def _ack(self, client: _Client, machine: Machine, held: _Held, then: Callable[[], None]) -> None:
        client.held.remove(held)
        input = (held.key.group, held.topic, held.key.partition, held.offset)
        call = self._begin(client, machine, "ack", input, then, partial(self._acked, client, held))
        call.life.run(self._ack_there, call, held)

    def _ack_there(self, call: Call, held: _Held) -> None:
        machine = call.machine
        if call.outcome is not Outcome.OPEN or machine.process is None:
            return
        try:
            self._check_known(machine, held.topic, held.key.partition)
        except PixyError as error:
            self._calls.answered(call, error)
            return
        ack = machine.process.consumers.ack
        if self._wrong.random() < _WRONG_ACKS:
            # Of a record that perhaps nobody got: the audit notices if that one is skipped.
            wrong = RecordPosition(held.key.partition, held.offset + self._wrong.randint(1, _WRONG_BY_MAX))
            # Of one that another node has, and says nothing of, the ack says that a client got it.
            if not self._is_lent(held.key.group, held.topic, wrong):
                ack(held.key.group, held.topic, *wrong, lambda _: None)
        ack(held.key.group, held.topic, held.key.partition, held.offset, partial(self._calls.answered, call))

    def _is_lent(self, group: str, topic: str, position: RecordPosition) -> bool:
        processes = [machine.process for machine in self._serving() if machine.process is not None]
        subscriptions = [each.consumers._subscriptions.get((group, topic)) for each in processes]
        return any(
            position in borrower.lending._sent or position in borrower.lending._granted
            for subscription in subscriptions
            if subscription is not None
            for borrower in subscription.lender._borrowers.values()
        )

    def _acked(self, client: _Client, held: _Held, call: Call) -> None:
        if call.outcome is Outcome.OK:
            self._audit.acked(held.key, held.offset, call.began_at, held.at)
        elif self._rng.random() >= self._habits.forgets and not self._is_stuck(
            held.topic, held.key.partition
        ):
            client.held.append(held)

    def _set(
        self, client: _Client, machine: Machine, group: str, topic: str, then: Callable[[], None]
    ) -> None:
        rng, node = self._rng, machine.node
        known = None if node is None else node.metadata.topics.get(topic)
        if known is None:
            then()
            return
        offsets: dict[int, OffsetCommit] = {}
        count = len(known.raft_groups)
        for number in sorted(rng.sample(range(count), rng.randint(1, count))):
            got = sorted(self._audit.got(GroupPartition(group, known.topic_id, number)))
            offset = rng.choice((OLDEST, NEWEST, rng.choice(got) if got else OLDEST))
            offsets[number] = OffsetCommit(offset, "")
        call = self._begin(client, machine, "set offsets", (group, topic, offsets), then, lambda _: None)
        self._calls.ask(call, partial(_set_there, machine, group, topic, offsets))


async def _set_there(
    machine: Machine, group: str, topic: str, offsets: Mapping[int, OffsetCommit], _: Any
) -> None:
    assert machine.process is not None
    await machine.process.consumers.set_offsets(group, topic, offsets)
