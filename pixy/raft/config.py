"""The options of a node, shared by all its groups."""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from pixy.raft.errors import RaftConfigError
from pixy.raft.messages import NONE, is_local_thread
from pixy.raft.sizes import NO_LIMIT

__all__ = ["RaftConfig", "RandomSource", "ReadOnlyOption", "check_node_id"]


class RandomSource(Protocol):
    """Where election timeouts come from; `random.Random` is one. One source serves all groups of a node."""

    def randrange(self, stop: int, /) -> int:
        """A number from 0 to before `stop`, each as likely."""


class ReadOnlyOption(Enum):
    """How a read is made linearizable."""

    SAFE = "safe"
    """A quorum confirms the leader for each round of reads (Raft §8, thesis §6.4)."""
    LEASE_BASED = "lease-based"
    """The leader trusts that nobody was elected within an election timeout: wrong if clocks drift (thesis §6.4.1)."""


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """How a node behaves. Sizes are bytes, ticks are calls of `tick`.

    Args:
        election_tick: after how many ticks without a leader a follower campaigns; it waits up to twice as long, by chance.
        heartbeat_tick: after how many ticks a leader sends heartbeats.
        max_inflight_messages: appends under way to one follower.
        max_inflight_bytes: payload under way to one follower, 0 for no limit; the append that crosses it is sent.
        max_size_per_message: encoded entries in one append, 0 for one entry each.
        max_committed_size_per_ready: encoded entries handed out and not yet acknowledged as applied, 0 for `max_size_per_message`.
        max_uncommitted_size: payload in the leader's log that is not applied yet, 0 for no limit; more is dropped.
        pre_vote: ask whether an election could be won before raising the term (thesis §9.6).
        check_quorum: a leader that hears of no quorum steps down, and votes are refused while a leader is heard (thesis §6.2, §4.2.3).
        read_only: how reads are made linearizable.
        async_storage_writes: storage work is handed out as messages, and acknowledged by messages.
        hold_vote_requests: with asynchronous writes, ask for votes only when the own term and vote are stored. etcd asks at once; a
            candidate that crashes then may ask again in the same term, with a shorter log, and count what it was granted before.
        hold_snapshots: a snapshot that a leader sends is restored when the driver says that its data is there (`snapshot_arrived`), and
            not at once. Until then the node keeps its log, and may vote and campaign.
        disable_proposal_forwarding: a follower drops proposals instead of passing them to the leader.
        disable_conf_change_validation: a leader takes any configuration change; one that does not fit is a bug when it is applied.
        step_down_on_removal: a leader that removed itself, or became a learner, follows at once.

    Raises:
        RaftConfigError: the options contradict each other.
    """

    election_tick: int = 10
    heartbeat_tick: int = 1
    max_inflight_messages: int = 256
    max_inflight_bytes: int = 0
    max_size_per_message: int = NO_LIMIT
    max_committed_size_per_ready: int = 0
    max_uncommitted_size: int = 0
    pre_vote: bool = False
    check_quorum: bool = False
    read_only: ReadOnlyOption = ReadOnlyOption.SAFE
    async_storage_writes: bool = False
    defer_vote_requests: bool = True
    defer_snapshots: bool = False
    disable_proposal_forwarding: bool = False
    disable_conf_change_validation: bool = False
    step_down_on_removal: bool = False

    def __post_init__(self) -> None:
        if self.heartbeat_tick <= 0:
            raise RaftConfigError("heartbeat tick must be greater than 0")
        if self.election_tick <= self.heartbeat_tick:
            raise RaftConfigError("election tick must be greater than heartbeat tick")
        if self.max_inflight_messages <= 0:
            raise RaftConfigError("max inflight messages must be greater than 0")
        if 0 < self.max_inflight_bytes < self.max_size_per_message:
            raise RaftConfigError("max inflight bytes must be >= max message size")
        if self.read_only is ReadOnlyOption.LEASE_BASED and not self.check_quorum:
            raise RaftConfigError("CheckQuorum must be enabled when ReadOnlyOption is ReadOnlyLeaseBased")

    @property
    def max_applying_size(self) -> int:
        """`max_committed_size_per_ready` with its default filled in; at least 1, since nothing may ever be larger than 0."""
        return max(self.max_committed_size_per_ready or self.max_size_per_message, 1)


def check_node_id(node_id: int) -> None:
    """Raises RaftConfigError if no node can have this id."""
    if node_id == NONE:
        raise RaftConfigError("cannot use none as id")
    if is_local_thread(node_id):
        raise RaftConfigError("cannot use local target as id")
