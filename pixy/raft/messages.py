"""The values that Raft speaks in: entries, messages, snapshots, configuration changes.

Names, numbers and meanings are those of etcd's raftpb; one field is renamed because `from` is a keyword of Python:
`Message.sender`. Nothing here has behaviour. Bytes are made of these values in `pixy.raft.wire` alone, and text in
`pixy.raft.text`.

All of them are immutable by convention: once constructed, nobody assigns to a field. `Entry` and `Message` are made
for every proposal, and are therefore plain slotted classes: a frozen dataclass of fourteen fields takes 1.3 us to
construct, a `NamedTuple` 0.39 us, this one 0.34 us, and its fields are read twice as fast as a tuple's. An entry's
payload is never copied: all entries and messages that speak of it refer to the same `bytes`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

__all__ = [
    "APPEND_THREAD",
    "APPLY_THREAD",
    "CAMPAIGN_TRANSFER",
    "NONE",
    "ConfChange",
    "ConfChangeSingle",
    "ConfChangeTransition",
    "ConfChangeType",
    "ConfChangeV2",
    "ConfState",
    "Entry",
    "EntryType",
    "HardState",
    "LogPosition",
    "Message",
    "MessageType",
    "ReadState",
    "Snapshot",
    "SoftState",
    "StateType",
    "is_local_thread",
]

NONE = 0
"""The id of nobody: no leader, no vote."""
APPEND_THREAD = 2**64 - 1
"""Who writes entries, hard states and snapshots: the target of `STORAGE_APPEND`."""
APPLY_THREAD = 2**64 - 2
"""Who applies committed entries: the target of `STORAGE_APPLY`."""

CAMPAIGN_TRANSFER = b"CampaignTransfer"
"""The context of a vote request that the leader itself asked for: it is heard although there is a leader."""


def is_local_thread(node_id: int) -> bool:
    """Whether the id names one of a node's own storage threads and no node."""
    return node_id >= APPLY_THREAD


class MessageType(IntEnum):
    """What a message is; who sends which, and when, is told where it is handled."""

    HUP = 0
    BEAT = 1
    PROP = 2
    APP = 3
    APP_RESP = 4
    VOTE = 5
    VOTE_RESP = 6
    SNAP = 7
    HEARTBEAT = 8
    HEARTBEAT_RESP = 9
    UNREACHABLE = 10
    SNAP_STATUS = 11
    CHECK_QUORUM = 12
    TRANSFER_LEADER = 13
    TIMEOUT_NOW = 14
    READ_INDEX = 15
    READ_INDEX_RESP = 16
    PRE_VOTE = 17
    PRE_VOTE_RESP = 18
    STORAGE_APPEND = 19
    STORAGE_APPEND_RESP = 20
    STORAGE_APPLY = 21
    STORAGE_APPLY_RESP = 22
    FORGET_LEADER = 23


class EntryType(IntEnum):
    """What an entry's data is: the application's, or a configuration change in one of two encodings."""

    NORMAL = 0
    CONF_CHANGE = 1
    CONF_CHANGE_V2 = 2


class StateType(IntEnum):
    """The role of a node (Raft §5.1, and the pre-candidate of the thesis, §9.6)."""

    FOLLOWER = 0
    CANDIDATE = 1
    LEADER = 2
    PRE_CANDIDATE = 3


class LogPosition(NamedTuple):
    """Names an entry. Positions compare as logs do: the later term is more up to date, then the larger index (Raft §5.4.1)."""

    term: int
    index: int  # type: ignore[assignment]  # it hides tuple.index, which a pair has no use for


@dataclass(slots=True)
class Entry:
    """One entry of the log. Index and term of a proposal are assigned by the leader."""

    term: int = 0
    index: int = 0
    type: EntryType = EntryType.NORMAL
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class ConfState:
    """A configuration as it is stored: sorted ids of nodes.

    Args:
        voters: the voters, in a joint configuration those of the incoming half.
        learners: who receives the log and is not counted.
        voters_outgoing: the outgoing half of a joint configuration, else empty.
        learners_next: voters of the outgoing half that become learners when it is left.
        auto_leave: the leader leaves the joint configuration by itself.
    """

    voters: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()
    voters_outgoing: tuple[int, ...] = ()
    learners_next: tuple[int, ...] = ()
    auto_leave: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state up to and with the entry at (term, index), and the configuration in force there.

    What `data` is, is the application's business; the core passes it on. A snapshot of index 0 is none.
    """

    index: int = 0
    term: int = 0
    conf_state: ConfState = ConfState()
    data: bytes = b""


@dataclass(slots=True)
class Message:
    """What nodes, and a node's own threads, say to each other.

    Args:
        type: what is said.
        to: the node, or storage thread, that it is for.
        sender: who says it.
        term: the sender's term; 0 in local messages, proposals and read requests.
        log_term: the term of the entry at `index`.
        index: of the entry before `entries` in APP; what is acknowledged or refused in APP_RESP; elsewhere as told there.
        entries: to be appended, proposed, applied; in READ_INDEX one, whose data is the request.
        commit: up to where the receiver may commit.
        vote: in STORAGE_APPEND the vote to be stored.
        snapshot: of SNAP, STORAGE_APPEND and its answer.
        reject: the answer is no.
        reject_hint: where the follower's log may match, in a rejecting APP_RESP.
        context: echoed by heartbeats; "CampaignTransfer" in a vote request that a leader asked for.
        responses: what a storage thread sends when its work is done.
    """

    type: MessageType
    to: int
    sender: int = NONE
    term: int = 0
    log_term: int = 0
    index: int = 0
    entries: Sequence[Entry] = ()
    commit: int = 0
    vote: int = NONE
    snapshot: Snapshot | None = None
    reject: bool = False
    reject_hint: int = 0
    context: bytes = b""
    responses: Sequence["Message"] = ()


class HardState(NamedTuple):
    """What must be durable before anything that depends on it is said (Raft figure 2, persistent state)."""

    term: int = 0
    vote: int = NONE
    commit: int = 0


class SoftState(NamedTuple):
    """What is worth knowing and need not be stored."""

    lead: int = NONE
    state: StateType = StateType.FOLLOWER


class ReadState(NamedTuple):
    """A read request may be served as soon as the entry at `read_index` is applied."""

    read_index: int
    context: bytes


class ConfChangeTransition(IntEnum):
    """How a configuration change passes through a joint configuration, if at all."""

    AUTO = 0
    JOINT_IMPLICIT = 1
    JOINT_EXPLICIT = 2


class ConfChangeType(IntEnum):
    """What happens to one node. An update changes nothing here, it is the application's."""

    ADD_NODE = 0
    REMOVE_NODE = 1
    UPDATE_NODE = 2
    ADD_LEARNER_NODE = 3


class ConfChangeSingle(NamedTuple):
    """One step of a configuration change."""

    type: ConfChangeType
    node_id: int


@dataclass(frozen=True, slots=True)
class ConfChangeV2:
    """A configuration change of any number of steps (thesis §4.3); with none and AUTO it leaves the joint configuration."""

    changes: tuple[ConfChangeSingle, ...] = ()
    transition: ConfChangeTransition = ConfChangeTransition.AUTO
    context: bytes = b""

    def leaves_joint(self) -> bool:
        """Whether this is the second half of a joint change."""
        return not self.changes and self.transition == ConfChangeTransition.AUTO

    def enters_joint(self) -> bool:
        """Whether this needs, or asks for, a joint configuration."""
        return len(self.changes) > 1 or self.transition != ConfChangeTransition.AUTO

    def auto_leave(self) -> bool:
        """Whether the leader leaves the joint configuration by itself, if one is entered."""
        return self.transition != ConfChangeTransition.JOINT_EXPLICIT


@dataclass(frozen=True, slots=True)
class ConfChange:
    """A configuration change of one step, in the older encoding.

    `change_id` is raftpb's `id`: the proposer's own number for it.
    """

    type: ConfChangeType
    node_id: int
    context: bytes = b""
    change_id: int = 0

    def as_v2(self) -> ConfChangeV2:
        """The same in the newer form."""
        return ConfChangeV2((ConfChangeSingle(self.type, self.node_id),), context=self.context)
