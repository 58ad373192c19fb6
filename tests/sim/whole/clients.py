"""Clients: each calls one node after the other, one call at a time or several, and has the outcomes
judged.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from typing import Any

from pixy.backend import EmbeddedBackend, FetchResult, TopicDescription
from pixy.errors import OffsetOutOfRange, PixyError, UnknownPartition, UnknownTopic
from pixy.records import NewRecord, OffsetCommit, TopicPartition, build_batch, read_records
from tests.sim.kit.failure import require
from tests.sim.kit.messages import message_id
from tests.sim.kit.scene import Scene
from tests.sim.whole.audits import Audits
from tests.sim.whole.calls import Call, Calls, Outcome
from tests.sim.whole.log_audit import Record, Send
from tests.sim.whole.machine import Machine
from tests.sim.whole.objects import (
    ACKNOWLEDGED,
    DELETED_MEANWHILE,
    Alter,
    Commit,
    Create,
    Delete,
    Read,
    TopicState,
    Use,
)
from tests.sim.whole.swarm import Habits

_MARKS = "mark"
_HELD_S = 0.5
_MARK_S = 20.0
_FIRST_TOPIC = 0.3
"""Probability that a call creates a topic while none is known: little can be asked for without."""
_SETS = 0.5
"""Share of the commits that set offsets."""
_CONFIG: dict[str, tuple[str | None, ...]] = {
    "segment_bytes": ("65536", "200000", None),
    "retention_ms": ("-1", None),
}


@dataclass(slots=True)
class _Client:
    """One client.

    Attributes:
        name: names its values.
        machine: where it calls; None: it has to find one.
        position: offset of its next fetch, by partition.
    """

    name: str
    machine: Machine | None = None
    calls: int = 0
    open: int = 0
    position: dict[TopicPartition, int] = field(default_factory=dict)


class Clients:
    """All clients.

    Args:
        scene: see `Scene`.
        calls: see `Calls`.
        audits: judges of the outcomes.
        habits: what they do.
        serving: machines whose node takes calls.

    Attributes:
        held: they begin no calls by themselves for the time being.
    """

    def __init__(
        self,
        scene: Scene,
        calls: Calls,
        audits: Audits,
        habits: Habits,
        serving: Callable[[], Sequence[Machine]],
    ) -> None:
        self.held = False
        self._scene = scene
        self._calls = calls
        self._audits = audits
        self._habits = habits
        self._serving = serving
        self._rng = scene.random("clients")
        self._clients = [_Client(f"c{number}") for number in range(habits.clients)]
        self._names = count(1)
        self._stopped = False

    def start(self) -> None:
        """Begin to call."""
        for client in self._clients:
            self._later(client)

    def stop(self) -> None:
        """Begin no further calls."""
        self._stopped = True

    def _later(self, client: _Client) -> None:
        delay = self._rng.expovariate(1 / self._habits.think_s)
        self._scene.loop.outside(delay, self._next, client)

    def _next(self, client: _Client) -> None:
        if self._stopped:
            return
        quiet_s = _HELD_S if self.held else self._habits.quiet_left(self._scene.now)
        if quiet_s:
            self._scene.loop.outside(quiet_s, self._next, client)
            return
        machine = self._node_of(client)
        if machine is not None:
            kinds = self._habits.kinds
            what = self._rng.choices(list(kinds), list(kinds.values()))[0]
            if not self._audits.topics_seen and self._rng.random() < _FIRST_TOPIC:
                what = "create"
            self.call(client, machine, what)
        if client.open < self._habits.open_max:
            self._later(client)

    def _node_of(self, client: _Client) -> Machine | None:
        serving = self._serving()
        moves = client.machine not in serving or self._rng.random() < self._habits.moves
        if moves:
            client.machine = self._rng.choice(serving) if serving else None
        return client.machine

    def burst(self, machine: Machine, count: int, rng: Random) -> None:
        """Have many appends at one node at once."""
        client = rng.choice(self._clients)
        for _ in range(count):
            if machine in self._serving():
                self.call(client, machine, "append")

    def mark(self, machines: Sequence[Machine]) -> list[Call]:
        """Have each node write to everything and read it; returns the calls."""
        begun = len(self._calls.all)
        client = _Client(_MARKS)
        for machine in machines:
            for partition in self._all_partitions():
                self._append_to(client, machine, partition)
            for topic in self._habits.stable_topics:
                for group in self._habits.groups:
                    self._read_offsets(client, machine, group, topic)
                if topic in self._audits.topics_seen:
                    # Two nodes that set the same offsets at once may hear that the other one has.
                    self._commit_to(client, machine, f"{_MARKS}-{machine.number}", topic)
                    self._ask_ranges(client, machine, topic)
            self._list(client, machine)
        return self._calls.all[begun:]

    def nudge(self, machines: Sequence[Machine]) -> None:
        """Have each node write to some raft groups, whatever comes of it."""
        client = _Client(_MARKS)
        for machine in machines:
            self._create(client, machine)
            for partition in self._all_partitions():
                self._append_to(client, machine, partition)

    def _all_partitions(self) -> list[TopicPartition]:
        seen = self._audits.topics_seen
        return [
            TopicPartition(name, number)
            for name in self._habits.stable_topics
            for number in range(seen.get(name, 0))
        ]

    # --- calls ------------------------------------------------------------------------------------

    def call(self, client: _Client, machine: Machine, what: str) -> None:
        """Make a call of some kind."""
        getattr(self, f"_{what}")(client, machine)

    def _begin(
        self, client: _Client, machine: Machine, what: str, input: Any, judge: Callable[[Call], None]
    ) -> Call:
        client.open += 1
        patience = _MARK_S if client.name == _MARKS else self._rng.choice(self._habits.patience_s)

        def ended(call: Call) -> None:
            client.open -= 1
            if call.outcome is Outcome.UNKNOWN and self._rng.random() < 0.7:
                client.machine = None
            judge(call)
            if client.open == self._habits.open_max - 1 and client.name != _MARKS:
                self._later(client)

        return self._calls.begin(client.name, machine, what, input, patience, ended)

    def _topic(self) -> str:
        return self._rng.choice(self._habits.topics)

    def _partition(self, client: _Client) -> TopicPartition | None:
        """A partition that may exist."""
        known = self._audits.topics_seen
        name = self._topic()
        count = known.get(name, 0)
        del client
        return TopicPartition(name, self._rng.randrange(count)) if count else None

    # --- topics -----------------------------------------------------------------------------------

    def _create(self, client: _Client, machine: Machine) -> None:
        name, partitions = self._topic(), self._rng.choice((1, 1, 2, 3))
        config = self._config(removes=False)
        input = Create(partitions, tuple(sorted(config.items())))  # type: ignore[arg-type]  # none is None
        call = self._begin(
            client, machine, "create topic", (name, input), partial(self._changed, name, input)
        )

        async def ask(backend: EmbeddedBackend) -> Any:
            return await backend.create_topic(name, partitions, config)  # type: ignore[arg-type]  # none is None

        self._calls.ask(call, ask)

    def _alter(self, client: _Client, machine: Machine) -> None:
        name, partitions = self._topic(), self._rng.choice((0, 0, 1, 2, 3, 4))
        self._alter_to(client, machine, name, partitions, self._config(removes=True))

    def _alter_to(
        self, client: _Client, machine: Machine, name: str, partitions: int, config: dict[str, str | None]
    ) -> None:
        input = Alter(partitions, tuple(sorted(config.items())))
        call = self._begin(client, machine, "alter topic", (name, input), partial(self._changed, name, input))

        async def ask(backend: EmbeddedBackend) -> Any:
            return await backend.alter_topic(name, partitions=partitions or None, config=config)

        self._calls.ask(call, ask)

    def set_replication(self, machine: Machine, replication: int) -> None:
        """Give a topic another number of replicas."""
        self._alter_to(_Client("operator"), machine, self._topic(), 0, {"replication": str(replication)})

    def _delete(self, client: _Client, machine: Machine) -> None:
        if not self._habits.passing_topics:
            return
        name, input = self._rng.choice(self._habits.passing_topics), Delete()
        call = self._begin(
            client, machine, "delete topic", (name, input), partial(self._changed, name, input)
        )

        async def ask(backend: EmbeddedBackend) -> Any:
            return await backend.delete_topic(name)

        self._calls.ask(call, ask)

    def _config(self, *, removes: bool) -> dict[str, str | None]:
        options = self._rng.sample(sorted(_CONFIG), self._rng.choice((0, 0, 1, 2)))
        chosen = {option: self._rng.choice(_CONFIG[option]) for option in options}
        return chosen if removes else {option: value for option, value in chosen.items() if value is not None}

    def _changed(self, name: str, input: Any, call: Call) -> None:
        answer: Any = ""
        if isinstance(call.answer, TopicDescription):
            answer = topic_state(call.answer)
        elif isinstance(call.answer, PixyError):
            answer = type(call.answer).__name__
            if isinstance(call.answer, UnknownTopic) and DELETED_MEANWHILE in str(call.answer):
                answer = DELETED_MEANWHILE
        self._audits.topic(name, call, input, answer)

    def _describe(self, client: _Client, machine: Machine) -> None:
        name = self._topic()
        call = self._begin(client, machine, "describe topic", name, partial(self._described, name))

        async def ask(backend: EmbeddedBackend) -> Any:
            return await backend.describe_topic(name)

        self._calls.ask(call, ask)

    def _described(self, name: str, call: Call) -> None:
        if isinstance(call.answer, TopicDescription):
            # What a node knows is answered at once; only that a topic is unknown needs the leader.
            self._audits.topic(name, call, Read(), topic_state(call.answer), stale=True)
        elif isinstance(call.answer, UnknownTopic):
            self._audits.topic(name, call, Read(), None)

    def _list(self, client: _Client, machine: Machine) -> None:
        call = self._begin(client, machine, "list topics", "", self._listed)

        async def ask(backend: EmbeddedBackend) -> Any:
            return await backend.list_topics()

        self._calls.ask(call, ask)

    def _listed(self, call: Call) -> None:
        if call.outcome is not Outcome.OK:
            return
        found = {topic.name: topic_state(topic) for topic in call.answer}
        for name in self._habits.topics:
            self._audits.topic(name, call, Read(), found.get(name))

    def _missing(self, call: Call, partition: TopicPartition) -> bool:
        """True if a call was refused because there is no such partition; judged here."""
        if isinstance(call.answer, UnknownPartition | UnknownTopic):
            # A node that is behind may have taken the call for a topic that is deleted: it says so.
            stale = str(call.answer).endswith("was deleted")
            self._audits.topic(partition.topic, call, Use(partition.partition), "unknown", stale=stale)
            return True
        return False

    # --- records ----------------------------------------------------------------------------------

    def _append(self, client: _Client, machine: Machine) -> None:
        partition = self._partition(client)
        if partition is not None:
            self._append_to(client, machine, partition)

    def _append_to(self, client: _Client, machine: Machine, partition: TopicPartition) -> None:
        rng = self._rng
        values = tuple(
            b"%s-%d" % (client.name.encode(), next(self._names)) for _ in range(rng.choice((1, 1, 1, 2, 4)))
        )
        filling = b" " * rng.choice(self._habits.sizes)
        send = Send(values, self._calls.position, (machine.number, machine.lives))
        self._audits.sent_to(partition).add(send)
        call = self._begin(
            client, machine, "append", (partition, values), partial(self._appended, partition, send)
        )
        call.life.run(self._append_there, call, partition, [value + filling for value in values])

    def _append_there(self, call: Call, partition: TopicPartition, values: Sequence[bytes]) -> None:
        """Runs in the process, which may have been paused since the call began."""
        node = call.machine.node
        if call.outcome is not Outcome.OPEN or call.machine.process is None or node is None:
            return
        # As the producer's buffer does.
        wall_ms = node.time.wall_ms()
        batch = build_batch([NewRecord(None, value, (), wall_ms) for value in values])

        def done(offset: int, error: PixyError | None) -> None:
            self._calls.answered(call, offset if error is None else error)

        try:
            call.machine.process.backend.append(partition, batch, len(values), done)
        except PixyError as error:
            self._calls.answered(call, error)

    def _appended(self, partition: TopicPartition, send: Send, call: Call) -> None:
        self._missing(call, partition)
        if call.outcome is Outcome.OK and partition.topic in self._habits.passing_topics:
            self._audits.topic(partition.topic, call, Use(partition.partition), ACKNOWLEDGED)
        self._audits.appended(partition, send, call)

    def _fetch(self, client: _Client, machine: Machine) -> None:
        rng, partition = self._rng, self._partition(client)
        if partition is None:
            return
        offset = client.position.get(partition, 0)
        choice = rng.random()
        if choice < 0.15:
            offset = max(0, offset - rng.randrange(20))
        elif choice < 0.2:
            offset += rng.choice((1, 5))
        max_bytes, max_wait = rng.choice((1, 700, 20_000)), rng.choice((0, 0, 0.2, 2.0))
        judge = partial(self._fetched, client, partition, offset)
        call = self._begin(client, machine, "fetch", (partition, offset), judge)

        async def ask(backend: EmbeddedBackend) -> Any:
            return await backend.fetch(partition, offset, max_bytes=max_bytes, max_wait=max_wait)

        self._calls.ask(call, ask)

    def _fetched(self, client: _Client, partition: TopicPartition, offset: int, call: Call) -> None:
        if self._missing(call, partition):
            client.position.pop(partition, None)
            return
        audit = self._audits.log(partition)
        if isinstance(call.answer, OffsetOutOfRange):
            client.position[partition] = call.answer.begin
            if audit is not None:
                audit.refused(offset, call.answer, call.begin)
        elif call.outcome is Outcome.OK:
            result = call.answer
            records = records_of(result, offset)
            client.position[partition] = result.next_offset
            self._scene.counts["records fetched"] += len(records)
            if audit is None:
                sent = self._audits.sent_to(partition)
                strange = [record for record in records if record.value not in sent.by_value]
                require(not strange, f"{partition}: phantom: {strange}")
            else:
                audit.fetched(offset, records, result, call.end)

    def _ranges(self, client: _Client, machine: Machine) -> None:
        self._ask_ranges(client, machine, self._topic())

    def _ask_ranges(self, client: _Client, machine: Machine, name: str) -> None:
        call = self._begin(client, machine, "offset ranges", name, partial(self._ranged, name))

        async def ask(backend: EmbeddedBackend) -> Any:
            return await backend.offset_ranges(name)

        self._calls.ask(call, ask)

    def _ranged(self, name: str, call: Call) -> None:
        if self._missing(call, TopicPartition(name, 0)) or call.outcome is not Outcome.OK:
            return
        for number, (begin, end) in call.answer.items():
            audit = self._audits.log(TopicPartition(name, number))
            if audit is not None:
                audit.ranged(begin, end, call.begin, call.end)

    def _search(self, client: _Client, machine: Machine) -> None:
        partition = self._partition(client)
        if partition is None:
            return
        timestamp_ms = machine.clock.true_ms() - self._rng.randrange(4000)
        judge = partial(self._searched, partition, timestamp_ms)
        call = self._begin(client, machine, "search", (partition, timestamp_ms), judge)

        async def ask(backend: EmbeddedBackend) -> Any:
            return await backend.offset_for_timestamp(partition, timestamp_ms)

        self._calls.ask(call, ask)

    def _searched(self, partition: TopicPartition, timestamp_ms: int, call: Call) -> None:
        if not self._missing(call, partition) and call.outcome is Outcome.OK:
            audit = self._audits.log(partition)
            if audit is not None:
                self._audits.searched(audit, timestamp_ms, call.answer, call.begin)

    # --- consumer groups --------------------------------------------------------------------------

    def _join(self, client: _Client, machine: Machine) -> None:
        group, topics = self._group(), list(self._habits.stable_topics)
        call = self._begin(client, machine, "join group", group, self._joined)

        async def ask(backend: EmbeddedBackend) -> Any:
            return await backend.join_consumer_group(group, client.name, topics, lambda _: None)

        self._calls.ask(call, ask)

    def _joined(self, call: Call) -> None:
        if call.outcome is Outcome.OK:
            self._scene.loop.outside(self._rng.choice((0.1, 1.0, 5.0)), self._leave, call)

    def _leave(self, joined: Call) -> None:
        if joined.life.alive and not self._stopped:
            call = self._calls.begin(
                joined.client, joined.machine, "leave group", joined.input, 5.0, lambda _: None
            )
            self._calls.ask(call, lambda _: joined.answer.leave())

    # --- committed offsets ------------------------------------------------------------------------

    def _commit(self, client: _Client, machine: Machine) -> None:
        name = self._rng.choice(self._habits.stable_topics)
        if name in self._audits.topics_seen:
            self._commit_to(client, machine, self._group(), name)

    def _commit_to(self, client: _Client, machine: Machine, group: str, name: str) -> None:
        rng, count = self._rng, self._audits.topics_seen[name]
        numbers = rng.sample(range(count), rng.randint(1, count))
        offsets = {
            number: OffsetCommit(rng.randrange(1000), f"m{next(self._names)}") for number in sorted(numbers)
        }
        input = Commit(tuple(offsets.items()))
        judge = partial(self._committed, group, name, input)
        call = self._begin(client, machine, "commit", (group, name, input), judge)
        commits: Mapping[TopicPartition, OffsetCommit] = {
            TopicPartition(name, number): commit for number, commit in offsets.items()
        }

        # Others than the owner of all partitions are refused, unless they set offsets.
        sets = rng.random() < _SETS

        async def ask(backend: EmbeddedBackend) -> Any:
            if sets:
                await backend.committed_offsets(group, name)
            return await backend.commit_offsets(group, commits, set=sets)

        self._calls.ask(call, ask)

    def _group(self) -> str:
        return self._rng.choice(self._habits.groups)

    def _committed(self, group: str, name: str, input: Commit, call: Call) -> None:
        if not self._missing(call, TopicPartition(name, max(dict(input.offsets)))):
            self._audits.offsets(group, name, call, input, "")

    def _committed_offsets(self, client: _Client, machine: Machine) -> None:
        self._read_offsets(client, machine, self._group(), self._rng.choice(self._habits.stable_topics))

    def _read_offsets(self, client: _Client, machine: Machine, group: str, name: str) -> None:
        judge = partial(self._offsets_read, group, name)
        call = self._begin(client, machine, "offsets", (group, name), judge)

        async def ask(backend: EmbeddedBackend) -> Any:
            return await backend.committed_offsets(group, name)

        self._calls.ask(call, ask)

    def _offsets_read(self, group: str, name: str, call: Call) -> None:
        if call.outcome is Outcome.OK:
            self._audits.offsets(group, name, call, Read(), tuple(sorted(call.answer.items())))


def topic_state(topic: TopicDescription) -> TopicState:
    """A description as the model has it."""
    return TopicState(
        topic.topic_id, topic.version, len(topic.partitions), tuple(sorted(topic.config.items()))
    )


def records_of(result: FetchResult, offset: int) -> list[Record]:
    """Records of a fetch from its offset on."""
    records: list[Record] = []
    for batch in result.batches:
        for record in read_records(batch):
            require(record.value is not None, f"a record without a value at {record.offset}")
            if record.offset >= offset:
                records.append(Record(record.offset, message_id(record.value or b""), record.timestamp))
    return records
