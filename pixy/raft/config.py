"""Options of a node, shared by all of its groups."""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from pixy.raft.errors import RaftConfigError
from pixy.raft.messages import NODE_ID_MAX, NONE
from pixy.raft.sizes import NO_LIMIT


class RandomSource(Protocol):
    """Source of randomness for election timeouts, for example `random.Random`.

    All groups of a node share one.
    """

    def randrange(self, stop: int, /) -> int:
        """A uniformly distributed integer in [0, stop)."""


class ReadOnlyOption(Enum):
    """Method that makes reads linearizable."""

    SAFE = "safe"
    """A quorum confirms the leader for each round of reads (Raft §8, thesis §6.4)."""
    LEASE_BASED = "lease-based"
    """The leader assumes that no other leader was elected within an election timeout, which is
    wrong if clocks drift (thesis §6.4.1).
    """


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """Options of a node. Sizes are in bytes, durations in ticks, which are calls of `tick`.

    Args:
        election_tick: ticks without a leader after which a follower campaigns; the actual timeout
            is random, up to twice as long.
        heartbeat_tick: ticks between heartbeats of a leader.
        max_inflight_messages: in-flight appends per follower.
        max_inflight_bytes: in-flight payload per follower, 0 for no limit; the append that exceeds
            it is still sent.
        max_size_per_message: size of the encoded entries in an append, 0 for one entry each.
        pre_vote: ask whether an election could be won before incrementing the term (thesis §9.6).
        check_quorum: a leader without contact to a quorum steps down, and nodes in contact with a
            leader refuse votes (thesis §6.2, §4.2.3).
        read_only: method that makes reads linearizable.
        reads_cover_log: a read waits for everything that the leader had appended, not only for what
            was committed (etcd): who has read knows what was being decided.
        defer_commit_messages: tell followers of a new commit index with the next entries or with
            `RaftNode.pass_commit_on`, not by a message of its own.
        defer_snapshots: restore a leader's snapshot only after the driver has reported its data
            (`snapshot_arrived`, or `snapshot_failed`), not at once. Until then the node keeps its
            log, and may vote and campaign.
        disable_proposal_forwarding: followers drop proposals instead of forwarding them to the
            leader.
        disable_conf_change_validation: a leader accepts any configuration change; applying an
            invalid one is then a bug.
        step_down_on_removal: a leader that has removed itself or become a learner steps down at
            once.

    Raises:
        RaftConfigError: the options contradict each other.
    """

    election_tick: int = 10
    heartbeat_tick: int = 1
    max_inflight_messages: int = 256
    max_inflight_bytes: int = 0
    max_size_per_message: int = NO_LIMIT
    pre_vote: bool = False
    check_quorum: bool = False
    read_only: ReadOnlyOption = ReadOnlyOption.SAFE
    reads_cover_log: bool = False
    defer_commit_messages: bool = False
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


def check_node_id(node_id: int) -> None:
    """Raise RaftConfigError if the id is reserved."""
    if node_id == NONE:
        raise RaftConfigError("cannot use none as id")
    if node_id > NODE_ID_MAX:
        raise RaftConfigError(f"node {node_id}, at most {NODE_ID_MAX} is possible")
