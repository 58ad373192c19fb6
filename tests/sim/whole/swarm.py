"""The swarm: what a seed chooses of sizes, speeds, clients and faults. No two runs are alike, and
each run leaves out some of what others have.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from pixy.config import ConsumerConfig, JournalConfig, StorageConfig
from pixy.storage import WriterPace
from tests.sim.whole.faults import FaultKind
from tests.sim.whole.network import Weather


@dataclass(frozen=True, slots=True)
class Formation:
    """Formation of the cluster.

    Attributes:
        listed: machines of the join list; one of them alone: a lone node, which others join.
        late_s: largest delay of a first start.
        joins: nodes that join soon after the beginning.
        anew: the cluster is made anew, on empty disks, while a node of the one before is there.
    """

    listed: int
    late_s: float
    joins: int
    anew: bool


@dataclass(frozen=True, slots=True)
class Sizes:
    """Options of a node.

    Attributes:
        interleaves: jobs of worker threads pause at calls on the disk.
        queue_bytes: unsent bytes of a connection to a peer.
    """

    journal: JournalConfig
    storage: StorageConfig
    pace: WriterPace
    interleaves: bool
    queue_bytes: int


@dataclass(frozen=True, slots=True)
class Habits:
    """Actions of clients.

    Attributes:
        clients: number of clients.
        open_max: calls that a client has open at a time.
        think_s: mean time between two calls of a client.
        moves: probability that a client changes its node before a call.
        patience_s: times after which a client gives up.
        kinds: kinds of calls, with their weights.
        stable_topics: topics that are never deleted.
        passing_topics: topics that may be.
        groups: consumer groups.
        sizes: bytes of filling in a record.
        busy_s, quiet_s: after so long nobody calls for a while, again and again; partitions come to
            rest then.
    """

    clients: int
    open_max: int
    think_s: float
    moves: float
    patience_s: Sequence[float]
    kinds: dict[str, int]
    stable_topics: Sequence[str]
    passing_topics: Sequence[str]
    groups: Sequence[str]
    sizes: Sequence[int]
    busy_s: float = 1.0
    quiet_s: float = 0.0

    def quiet_left(self, now: float) -> float:
        """Seconds until clients call again, 0 while they do."""
        within = now % (self.busy_s + self.quiet_s)
        return self.busy_s + self.quiet_s - within if within >= self.busy_s and self.quiet_s else 0.0

    @property
    def topics(self) -> Sequence[str]:
        """All topics."""
        return [*self.stable_topics, *self.passing_topics]


@dataclass(frozen=True, slots=True)
class Consuming:
    """Actions of clients of consumer groups.

    Attributes:
        clients: number of clients.
        groups: consumer groups, of which only these clients set offsets.
        topics: what they consume.
        think_s: mean time between two calls of a client.
        moves: probability that a client changes its node before a call.
        acks: probability that a client that has records acks one.
        riding: probability that a consume request has an ack.
        auto_acks: share of the consume requests with auto ack.
        forgets: share of the records that nobody acks.
        sets: share of the calls that set offsets.
        rests: probability that a client that has records of all topics asks for nothing until its
            subscriptions may end, and acks all of them at once then.
        shows_s: mean time between two requests for the offsets that are shown, 0 for none.
        drain_s: time for acks at an orderly stop, and of partitions that go.
        options: of every node.
    """

    clients: int = 0
    groups: Sequence[str] = ()
    topics: Sequence[str] = ()
    think_s: float = 0.1
    moves: float = 0.0
    acks: float = 0.5
    riding: float = 0.0
    auto_acks: float = 0.5
    forgets: float = 0.0
    sets: float = 0.0
    rests: float = 0.0
    shows_s: float = 0.0
    drain_s: float = 1.0
    options: ConsumerConfig = field(default_factory=ConsumerConfig)


@dataclass(frozen=True, slots=True)
class Writing:
    """Actions of sinks.

    Attributes:
        sinks: number of sinks.
        think_s: mean time between two calls of a sink.
        moves: probability that a sink changes its node before a call.
        patience_s: times after which a call is repeated.
    """

    sinks: int = 0
    think_s: float = 0.1
    moves: float = 0.5
    patience_s: Sequence[float] = (0.5, 3.0)


@dataclass(frozen=True, slots=True)
class Producing:
    """Actions of idempotent producers.

    Attributes:
        producers: number of producers.
        think_s: mean time between two calls of a producer.
        moves: probability that a producer changes its node before a call.
        again: share of the calls that send one of the last batches again, answered or not.
        patience_s: times after which a batch is sent again.
    """

    producers: int = 0
    think_s: float = 0.05
    moves: float = 0.3
    again: float = 0.1
    patience_s: Sequence[float] = (0.2, 1.0, 3.0)


@dataclass(frozen=True, slots=True)
class Swarm:
    """Choices of one seed.

    Attributes:
        weather: of the network while nothing particular happens.
        secret: shared by all nodes, empty for none.
        clocks_apart_ms: largest error of a wall clock.
        days_off: the machine whose wall clock is days off at first, 0 for none. Faults may set
            another one wrong instead: a majority is always right.
        retention_check_s: interval of looks at what is old enough to go. Nothing is, before
            everything is judged: everything that expires does so after a day or more.
        faults: kinds that may happen, with their weights.
        faults_count: number of faults.
        faults_from_s: time of the first one once the cluster is formed, 0 for faults before that.
        duration_s: virtual time from there on before everything is healed.
        moving: partitions move, also by themselves.
        heals_all: everything is healed; else a minority stays as it is, for good.
        consuming: of consumer groups.
        writing: of sinks.
        producing: of idempotent producers.
        own_sizes: those of machines that have other options than `sizes`, by number.
    """

    formation: Formation
    sizes: Sizes
    habits: Habits
    weather: Weather
    secret: bytes
    clocks_apart_ms: int
    faults: dict[FaultKind, int]
    faults_count: int
    faults_from_s: float
    duration_s: float
    heals_all: bool
    consuming: Consuming = field(default_factory=Consuming)
    writing: Writing = field(default_factory=Writing)
    producing: Producing = field(default_factory=Producing)
    own_sizes: Mapping[int, Sizes] = field(default_factory=dict)
    days_off: int = 0
    retention_check_s: float = StorageConfig().retention_check
    moving: bool = False

    def sizes_of(self, machine: int) -> Sizes:
        """Options of the node of a machine."""
        sizes = self.own_sizes.get(machine, self.sizes)
        return replace(sizes, storage=replace(sizes.storage, retention_check=self.retention_check_s))

    @property
    def clock_errors_ms(self) -> Sequence[int]:
        """Errors of a wall clock that is days off. A node that is alone at first has only its own:
        what it stamps must not be too old when others come.
        """
        return _CLOCK_ERRORS_MS if self.formation.listed > 1 else _SMALL_CLOCK_ERRORS_MS


MACHINES_MAX = 5
"""Machines that a cluster may have; copies of machines may be added to them."""
COMMIT_INTERVAL_S = 0.5
DAY_MS = 86_400_000
_SMALL_CLOCK_ERRORS_MS = (-DAY_MS // 2, DAY_MS, 3 * DAY_MS)
_CLOCK_ERRORS_MS = (
    *_SMALL_CLOCK_ERRORS_MS,
    -40 * DAY_MS,
    -8 * DAY_MS,
    -3 * DAY_MS,
    10 * DAY_MS,
    400 * DAY_MS,
)

Focus = Callable[[Swarm], Swarm]
"""Changes what a seed has chosen."""

_MOVES = (
    FaultKind.MOVE,
    FaultKind.DRAIN,
    FaultKind.REBALANCE,
    FaultKind.CANCEL,
    FaultKind.REPLICATION,
    FaultKind.LATE_METADATA,
    FaultKind.LATE_ENDS,
)
_DRAWN_LAST = (FaultKind.DRIFT, FaultKind.CRASH_STARTS, FaultKind.JUMP, *_MOVES)
"""Kinds whose choice changes no other one. All clocks jump for a rule only, and an operator moves
partitions in the seeds of `moving` only.
"""
_MORE_FAULTS = 8
_SHOWING, _SHOWS_S = 0.1, 0.1
_PRODUCING = 0.3

_KINDS = {
    "append": 45,
    "fetch": 20,
    "ranges": 5,
    "search": 2,
    "commit": 8,
    "committed_offsets": 8,
    "create": 3,
    "alter": 2,
    "delete": 1,
    "join": 2,
    "describe": 4,
    "list": 2,
}


def draw_swarm(rng: Random) -> Swarm:
    """Choose everything."""
    kinds: dict[FaultKind, int] = {
        kind: kind.weight for kind in FaultKind if kind not in _DRAWN_LAST and rng.random() < 0.5
    }
    formation, sizes, habits = _draw_formation(rng), _draw_sizes(rng), _draw_habits(rng)
    swarm = Swarm(
        formation,
        sizes,
        habits,
        _draw_weather(rng),
        rng.choice((b"", b"a secret of enough bytes")),
        rng.choice((0, 0, 500, 30_000, 3_600_000)),
        kinds or {FaultKind.CRASH: 1},
        rng.randint(2, 9),
        rng.choice((0.0, 0.0, 2.0, 4.0)),
        rng.choice((8.0, 8.0, 12.0)),
        rng.random() < 0.8,
        _draw_consuming(rng, habits.stable_topics),
        _draw_writing(rng, formation),
    )
    # At last, so that what is drawn before does not depend on it.
    swarm = replace(
        swarm,
        own_sizes=_draw_own_sizes(rng, sizes),
        days_off=rng.choice((0, 0, rng.randint(1, MACHINES_MAX))),
    )
    drift = {FaultKind.DRIFT: FaultKind.DRIFT.weight} if rng.random() < 0.5 else {}
    swarm = replace(
        swarm,
        faults=swarm.faults | drift,
        retention_check_s=rng.choice((0.2, 1.0, swarm.retention_check_s)),
    )
    starts = {FaultKind.CRASH_STARTS: FaultKind.CRASH_STARTS.weight} if rng.random() < 0.06 else {}
    rests = 0.2 if rng.random() < 0.06 else 0.0
    swarm = replace(swarm, faults=swarm.faults | starts, consuming=replace(swarm.consuming, rests=rests))
    swarm = quiet(swarm) if rng.random() < 0.06 else swarm
    shows_s = _SHOWS_S if rng.random() < _SHOWING else 0.0
    swarm = replace(swarm, consuming=replace(swarm.consuming, shows_s=shows_s))
    producers = rng.choice((1, 2, 4)) if rng.random() < _PRODUCING else 0
    return replace(swarm, producing=Producing(producers, moves=rng.choice((0.0, 0.05, 0.5))))


def still(swarm: Swarm) -> Swarm:
    """As it was drawn: partitions move where nodes are removed, or for want of replicas."""
    return swarm


def moving(swarm: Swarm) -> Swarm:
    """Partitions move among four machines or five."""
    formation, machines = swarm.formation, 4 + swarm.faults_count % 2
    joins = max(formation.joins, machines - formation.listed - formation.anew)
    return replace(
        swarm,
        formation=replace(formation, joins=joins),
        faults=swarm.faults | {kind: kind.weight for kind in _MOVES},
        faults_count=swarm.faults_count + _MORE_FAULTS,
        moving=True,
    )


def quiet(swarm: Swarm) -> Swarm:
    """Nobody writes for most of the time: partitions rest while faults happen."""
    habits = replace(swarm.habits, busy_s=1.0, quiet_s=6.0)
    return replace(swarm, habits=habits, writing=Writing(), duration_s=24.0)


def _draw_formation(rng: Random) -> Formation:
    listed = rng.choice((1, 1, 2, 3, 3, 3, 3, 3, 4))
    joins = rng.choice((0, 1, 2, 2)) if listed == 1 else rng.choice((0, 0, 0, 1))
    return Formation(listed, rng.choice((0.0, 0.1, 1.0)), joins, listed > 1 and rng.random() < 0.04)


def _draw_sizes(rng: Random) -> Sizes:
    journal = JournalConfig(
        file_bytes=rng.choice((3000, 6000, 20_000)),
        max_unapplied_bytes=rng.choice((3000, 10_000, 1 << 20)),
        retain_bytes=rng.choice((0, 0, 3000, 1 << 20)),
    )
    storage = StorageConfig(
        segment_bytes=rng.choice((1000, 4000, 50_000)),
        tail_cache_bytes=rng.choice((0, 1000, 1 << 20)),
        checkpoint_entries=rng.choice((3, 10, 30, 1000)),
        reserve_bytes=0,
    )
    pace = WriterPace(gather_s=rng.choice((0.02, 0.1)), sync_after_s=rng.choice((0.1, 0.5, 2.0)))
    return Sizes(journal, storage, pace, rng.random() < 0.15, rng.choice((20_000, 32 << 20)))


def _draw_small_sizes(rng: Random, sizes: Sizes) -> Sizes:
    """Files, back-pressure and checkpoints at which everything happens often."""
    journal = JournalConfig(
        file_bytes=rng.choice((3000, 6000)),
        max_unapplied_bytes=rng.choice((3000, 6000)),
        retain_bytes=rng.choice((0, 3000, 12_000, 1 << 20)),
    )
    storage = replace(sizes.storage, segment_bytes=rng.choice((1000, 4000)), checkpoint_entries=20)
    return replace(sizes, journal=journal, storage=storage)


def _draw_own_sizes(rng: Random, sizes: Sizes) -> dict[int, Sizes]:
    """Small sizes for all nodes, or each node other ones, or the same for all."""
    small = _draw_small_sizes(rng, sizes)
    machines = range(1, MACHINES_MAX + 1)
    match rng.choice(("small", "mixed", "mixed", "same")):
        case "small":
            return dict.fromkeys(machines, small)
        case "mixed":
            drawn = {
                each: rng.choice((_draw_small_sizes, _draw_other_sizes))(rng, sizes) for each in machines
            }
            return {each: drawn[each] for each in machines if rng.random() < 0.8}
        case _:
            return {}


def _draw_other_sizes(rng: Random, sizes: Sizes) -> Sizes:
    return replace(_draw_sizes(rng), interleaves=sizes.interleaves)


def _draw_habits(rng: Random) -> Habits:
    kinds = {
        kind: weight for kind, weight in _KINDS.items() if kind in ("append", "create") or rng.random() < 0.8
    }
    return Habits(
        clients=rng.choice((2, 3, 3, 5)),
        open_max=rng.choice((1, 1, 4)),
        think_s=rng.choice((0.05, 0.1, 0.2)),
        moves=rng.choice((0.0, 0.05, 0.5)),
        patience_s=rng.choice(((5.0,), (1.0, 5.0), (0.2, 2.0, 10.0))),
        kinds=kinds,
        stable_topics=("a", "b")[: rng.choice((1, 2))],
        passing_topics=("c", "d")[: rng.choice((0, 1, 2))],
        groups=("g", "h", "i")[: rng.choice((1, 2, 3))],
        sizes=rng.choice(((1, 20), (1, 20, 200, 600), (1, 3000))),
    )


def _draw_weather(rng: Random) -> Weather:
    return Weather(
        rng.choice(((0.0001, 0.001), (0.0005, 0.01), (0.001, 0.05))),
        lost=rng.choice((0.0, 0.0, 0.01, 0.05)),
        window_bytes=rng.choice((4000, 1 << 16, 1 << 18)),
    )


def _draw_consuming(rng: Random, topics: Sequence[str]) -> Consuming:
    options = ConsumerConfig(
        ack_timeout=rng.choice((1.0, 3.0)),
        fetch_max_bytes=rng.choice((2000, 1 << 20)),
        long_polling_timeout=rng.choice((0.5, 3.0)),
        max_pending_messages=rng.choice((5, 300)),
        offsets_commit_interval=COMMIT_INTERVAL_S,
        subscription_timeout=rng.choice((1.0, 3.0, 15.0)),
        initial_offset="oldest",
    )
    return Consuming(
        clients=rng.choice((0, 1, 2, 4)),
        groups=("x", "y")[: rng.choice((1, 1, 2))],
        topics=topics,
        think_s=rng.choice((0.03, 0.1)),
        moves=rng.choice((0.0, 0.05, 0.5)),
        acks=rng.choice((0.3, 0.5, 0.8)),
        riding=rng.choice((0.0, 0.5)),
        auto_acks=rng.choice((0.0, 0.3, 1.0)),
        forgets=rng.choice((0.0, 0.1)),
        sets=rng.choice((0.0, 0.0, 0.02)),
        drain_s=rng.choice((0.5, 3.0)),
        options=options,
    )


def _draw_writing(rng: Random, formation: Formation) -> Writing:
    sinks, think_s, moves = rng.choice((0, 0, 1, 2)), rng.choice((0.03, 0.2)), rng.choice((0.05, 0.5))
    # Stages that a lone node has begun stay there.
    return Writing(sinks if formation.listed > 1 else 0, think_s, moves)
