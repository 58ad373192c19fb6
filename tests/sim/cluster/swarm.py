"""The swarm: what a seed chooses of sizes, speeds, members and faults. No two runs are alike, and
each run leaves out some of what others have.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from random import Random

from pixy.config import JournalConfig, StorageConfig
from pixy.multiraft.driver_options import RAFT_CONFIG
from pixy.multiraft.raft_group import FIRST_PARTITION_GROUP
from pixy.raft import ConfState, RaftConfig
from pixy.storage import WriterPace
from tests.sim.cluster.faults import FaultKind

TOPIC = "topic"
NODES = (1, 2, 3)
_THREE = ConfState(NODES)
_CONFIGURATIONS = (_THREE, _THREE, _THREE, _THREE, _THREE, ConfState((1, 2), (3,)), ConfState((1, 2)))


@dataclass(frozen=True, slots=True)
class Layout:
    """Raft groups of the cluster, and the configuration that they begin with.

    Attributes:
        state_groups, partitions: ids of the raft groups.
    """

    state_groups: tuple[int, ...]
    partitions: tuple[int, ...]
    conf_state: ConfState

    def name(self, raft_group: int) -> str:
        """Name of the directory of a partition."""
        return f"{TOPIC}-{self.partitions.index(raft_group)}"

    @property
    def all(self) -> tuple[int, ...]:
        """Ids of all raft groups."""
        return self.state_groups + self.partitions


@dataclass(frozen=True, slots=True)
class Sizes:
    """Options of a node.

    Attributes:
        cache_bytes: applied entries in memory.
        interleaves: jobs of worker threads pause at calls on the disk.
    """

    raft: RaftConfig
    journal: JournalConfig
    storage: StorageConfig
    pace: WriterPace
    cache_bytes: int
    interleaves: bool


@dataclass(frozen=True, slots=True)
class Weather:
    """Delays and losses of packets.

    Attributes:
        delays_s: smallest and largest delay.
        late_s: delay of a late packet, which others overtake.
        lost, twice, late: probabilities.
    """

    delays_s: tuple[float, float]
    late_s: float
    lost: float
    twice: float
    late: float


CALM = Weather((0.0002, 0.002), 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Swarm:
    """Choices of one seed.

    Attributes:
        weather: of the network while nothing particular happens.
        faults: kinds that may happen, with their weights.
        faults_count: number of faults.
        duration_s: virtual time before everything is healed.
        request_s: mean time between two requests.
        encodes: messages are encoded and decoded on their way.
        own_sizes: those of nodes that have other options than `sizes`, by id.
        quiet_from_s: time from which on the last partition gets no records any more.
        days_off: the node whose wall clock is days off, 0 for none.
        rotten: nodes on which a segment of the same partition rots at a time, fewer than all. If
            there are several, segments do so in every run, and no node is lost.
    """

    layout: Layout
    sizes: Sizes
    weather: Weather
    faults: dict[FaultKind, int]
    faults_count: int
    duration_s: float
    request_s: float
    encodes: bool
    own_sizes: Mapping[int, Sizes] = field(default_factory=dict)
    quiet_from_s: float = inf
    days_off: int = 0
    rotten: int = 1

    def sizes_of(self, node_id: int) -> Sizes:
        """Options of a node."""
        return self.own_sizes.get(node_id, self.sizes)


Focus = Callable[[Swarm], Swarm]
"""Changes what a seed has chosen."""


def draw_swarm(rng: Random) -> Swarm:
    """Choose everything."""
    states, partitions = rng.choice((1, 1, 2)), rng.choice((2, 2, 3))
    layout = Layout(
        tuple(range(1, 1 + states)),
        tuple(range(FIRST_PARTITION_GROUP, FIRST_PARTITION_GROUP + partitions)),
        rng.choice(_CONFIGURATIONS),
    )
    kinds = {kind: kind.weight for kind in FaultKind if rng.random() < 0.6}
    if layout.conf_state != _THREE:
        kinds[FaultKind.MEMBERSHIP] = 3 * FaultKind.MEMBERSHIP.weight
    if FaultKind.MEMBERSHIP in kinds:
        # The two that are left must be a quorum.
        kinds.pop(FaultKind.OLDER_SELF, None)
    swarm = Swarm(
        layout,
        _draw_sizes(rng),
        _draw_weather(rng),
        kinds or {FaultKind.CRASH: 1},
        rng.randint(4, 14),
        rng.choice((6.0, 9.0, 9.0, 14.0)),
        rng.choice((0.03, 0.07, 0.15)),
        rng.random() < 0.15,
    )
    # At last, so that what is drawn before does not depend on it.
    return replace(
        swarm,
        own_sizes=_draw_own_sizes(rng, swarm.sizes),
        quiet_from_s=rng.choice((inf, inf, 1.0, 3.0)),
        days_off=rng.choice((0, 0, *NODES)),
    )


def _draw_own_sizes(rng: Random, sizes: Sizes) -> dict[int, Sizes]:
    """Small sizes for all nodes, or each node other ones, or the same for all."""
    match rng.choice(("small", "mixed", "mixed", "same")):
        case "small":
            return dict.fromkeys(NODES, _draw_small_sizes(rng, sizes))
        case "mixed":
            draw = {each: rng.choice((_draw_small_sizes, _draw_other_sizes)) for each in NODES}
            return {each: draw[each](rng, sizes) for each in NODES if rng.random() < 0.8}
        case _:
            return {}


def _draw_small_sizes(rng: Random, sizes: Sizes) -> Sizes:
    """Files, back-pressure and checkpoints at which everything happens often."""
    journal = JournalConfig(
        file_bytes=rng.choice((1500, 3000)),
        max_unapplied_bytes=rng.choice((1500, 3000)),
        retain_bytes=rng.choice((0, 3000, 1 << 20)),
    )
    storage = replace(sizes.storage, segment_bytes=rng.choice((1000, 4000)), checkpoint_entries=20)
    return replace(sizes, journal=journal, storage=storage)


def _draw_other_sizes(rng: Random, sizes: Sizes) -> Sizes:
    return replace(_draw_sizes(rng), interleaves=sizes.interleaves)


def _draw_sizes(rng: Random) -> Sizes:
    one_each = rng.random() < 0.25
    raft = replace(
        RAFT_CONFIG,
        election_tick=rng.choice((4, 6, 10)),
        heartbeat_tick=rng.choice((1, 1, 2)),
        max_inflight_messages=rng.choice((1, 4, 64)),
        max_size_per_message=0 if one_each else rng.choice((300, 4000, 1 << 20)),
    )
    journal = JournalConfig(
        file_bytes=rng.choice((1500, 3000, 3000, 8000)),
        max_unapplied_bytes=rng.choice((1500, 4000, 1 << 20)),
        retain_bytes=rng.choice((0, 3000, 1 << 20, 1 << 20, 1 << 20)),
    )
    storage = StorageConfig(
        segment_bytes=rng.choice((1000, 4000, 50_000)),
        tail_cache_bytes=rng.choice((0, 1000, 1 << 20)),
        checkpoint_entries=rng.choice((2, 4, 10, 30)),
        reserve_bytes=0,
    )
    pace = WriterPace(gather_s=rng.choice((0.02, 0.1)), sync_after_s=rng.choice((0.1, 0.5, 2.0)))
    return Sizes(raft, journal, storage, pace, rng.choice((0, 1000, 1 << 20)), rng.random() < 0.15)


def _draw_weather(rng: Random) -> Weather:
    return Weather(
        rng.choice(((0.0002, 0.002), (0.0005, 0.01), (0.001, 0.05))),
        rng.choice((0.1, 0.5)),
        rng.choice((0.0, 0.0, 0.01, 0.05)),
        rng.choice((0.0, 0.0, 0.05)),
        rng.choice((0.0, 0.0, 0.05)),
    )
