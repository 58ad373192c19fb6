"""Options of a driver, and the functions of its node that it calls."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pixy.entry_ids import ProposalId
from pixy.multiraft.group_rest import RestHooks
from pixy.multiraft.outbox import Send
from pixy.multiraft.raft_group import RaftGroup
from pixy.multiraft.raft_storage import WantedEntries
from pixy.raft import Entry, Message, RaftConfig, RandomSource, Snapshot
from pixy.storage import EntryType, UnitRecord

RAFT_CONFIG = RaftConfig(
    election_tick=10,
    heartbeat_tick=4,
    max_inflight_messages=64,
    max_size_per_message=1 << 20,
    max_inflight_bytes=8 << 20,
    pre_vote=True,
    check_quorum=True,
    defer_commit_messages=True,
    defer_snapshots=True,
    disable_proposal_forwarding=True,
    step_down_on_removal=True,
)
"""Proposals are not forwarded by the core: a batch is final when the leader proposes it."""

CACHE_BYTES = 64 << 20
"""Applied entries in memory, of all groups of a node."""

COMMIT_DELAY_S = 0.01
"""A sequence of calls has the next entries by then, of several groups: with 3 ms three nodes under
load spend a tenth more processor time. What it costs is that consumers on other nodes than the
leader's see the last record of a burst that much later.
"""


class Sideloads(Protocol):
    """Entries of partitions whose data is in files of its own: see `Sideloading`."""

    def admits(self, group: RaftGroup, message: Message) -> bool:
        """True if a message with entries may be taken. Else it is stepped later, or dropped."""

    def may_propose(self, group: RaftGroup, kind: EntryType, payload: bytes | bytearray) -> bool:
        """True if this node may append an entry that another one proposes. Else that one has to try
        again.
        """

    def servable(self, group: RaftGroup, entries: list[Entry]) -> list[Entry]:
        """The first of these applied entries, up to one whose data is not here any more."""


def _no_peer(*_: object) -> None:
    """A group with this node alone sends nothing, and is sent nothing."""
    raise AssertionError("a node without peers has messages for one")


@dataclass(frozen=True, slots=True)
class DriverPeers:
    """The other nodes, as a driver needs them; by default there are none.

    Attributes:
        why_not_proposable: reason why the proposal of another node is refused, by raft group, kind
            and payload; empty if it may be appended. Raises LongCheckError if that takes long.
        send: see `Send`.
        fetch: fetches the data of a snapshot, followed by `Snapshots.arrived` or
            `Snapshots.failed`.
        forward: sends a proposal to the leader of a group, for `Driver.propose_for` there.
            It may be lost. None if the node has no way to.
        leader_changed: called when a group has another leader, or none; None: nobody asks.
        rest: what groups at rest need; None: no group rests.
        sideloads: of partitions; None on a node without peers, which proposes everything itself.
    """

    why_not_proposable: Callable[[int, int, bytes | bytearray, int], str]
    send: Send = _no_peer
    fetch: Callable[[RaftGroup, Message], None] = _no_peer
    forward: Callable[[RaftGroup, EntryType, bytes | bytearray, ProposalId, int], None] | None = None
    leader_changed: Callable[[RaftGroup], None] | None = None
    rest: RestHooks | None = None
    sideloads: Sideloads | None = None


@dataclass(frozen=True, slots=True)
class DriverHooks:
    """Functions of its node that a driver calls.

    Attributes:
        room: bytes of record batches that may be proposed; below 0 not even one batch. Then
            `Driver.resume` is called when they may.
        keeps_up: False while too much is applied that is in no segment, so that a follower takes no
            further record batches. Entries that are not committed do not count: an append of the
            leader may be what commits or replaces them.
        load: loads entries from the journal; the callback is `Driver.loaded`.
        reset_records: records that belong in one unit with the log reset of a snapshot.
        restore: replaces the application by that of a snapshot whose data is in its place.
        peers: the other nodes.
        fault: called with an error after which disk and answers may differ.
    """

    room: Callable[[], int]
    keeps_up: Callable[[], bool]
    fault: Callable[[BaseException], None]
    load: Callable[[RaftGroup, WantedEntries, Callable[[RaftGroup, list[Entry] | None], None]], None]
    reset_records: Callable[[RaftGroup, Snapshot], list[UnitRecord]]
    restore: Callable[[RaftGroup, Snapshot], None]
    peers: DriverPeers


@dataclass(frozen=True, slots=True)
class DriverOptions:
    """Options of a `Driver`.

    Attributes:
        node_id: this node.
        incarnation: number of this start of it.
        random: source of randomness for election timeouts.
        cache_bytes: limit of the applied entries in memory, for followers that are close behind.
        tick_s: seconds between calls of `tick`.
        config: options of the Raft core.
        commit_delay_s: seconds until followers are told of a commit index for which none of them
            waits, if no entry does that before.
    """

    node_id: int
    incarnation: int
    random: RandomSource
    cache_bytes: int = CACHE_BYTES
    tick_s: float = 0.1
    config: RaftConfig = RAFT_CONFIG
    commit_delay_s: float = COMMIT_DELAY_S
