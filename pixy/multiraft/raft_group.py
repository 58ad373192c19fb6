"""One raft group on this node: consensus, and what the journal has of it.

A group is opened by what the journal has of it, whether or not the node knows what the group is
for. It votes, and takes entries, from then on; its entries are applied once the driver has been
told whose they are. The Raft core itself is made at the first use: most of ten thousand groups are
idle.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from pixy.entry_ids import LogPosition, ProposalId
from pixy.errors import PixyError
from pixy.multiraft.dedup_table import DedupTable
from pixy.multiraft.proposals import Proposals, Stamp
from pixy.multiraft.raft_storage import RaftStorage
from pixy.proto.state_pb2 import AppliedPosition
from pixy.raft import NO_LIMIT, NONE, ConfState, Entry, RaftNode, StateType
from pixy.raft.progress import ProgressState
from pixy.raft.raft import Raft
from pixy.storage import EntryType

_NO_IDS: set[ProposalId] = set()
"""Shared by all groups without any: most of ten thousand. Never changed."""

FIRST_PARTITION_GROUP = 1000
"""Lowest raft group of a partition; raft groups below it are state groups."""


class Application(Protocol):
    """The state that the entries of a raft group change.

    Attributes:
        rows: results of the last proposals. Invariant: as of the last applied entry.
    """

    rows: DedupTable

    def may_have_replica(self, node_id: int) -> bool:
        """False if a node is known to have no replica, whatever the configuration of the group."""

    def lead(self, tail: Sequence[Entry]) -> None:
        """Prepare to propose behind `tail`, the entries that are not applied yet."""

    def stamp(
        self, kind: EntryType, payload: bytes | bytearray, term: int
    ) -> tuple[EntryType, bytes | bytearray]:
        """As `Stamp`."""


Apply = Callable[[Any, Entry], Any]
"""Applies a committed entry to the application of its group; returns the proposer's result."""

Prepare = Callable[[Entry], Iterator[None] | None]
"""The work ahead of an entry that takes long to apply, in steps, which changes nothing; None for
others, and once it is done.
"""


class RaftGroup:
    """One raft group.

    Args:
        raft_group: its id.
        storage: its log, hard state and configuration.
        node_id: this node.

    Attributes:
        node: the Raft core; None before the first use.
        application, apply, stamp: the state that its entries change, and its functions; None while
            it is not known.
        held: committed entries that wait for the application; None while they are applied at once.
        prepare: see `Prepare`; None if the application has no entries that take long.
        applied_index, applied_term: the last applied entry.
        has_peers: True unless this node is the only member, and votes. One without members is a
            replica that knows nothing of its group yet: see `is_blank`.
        proposals: proposals of this node; None before the first one.
        leads: True while this node leads it, and proposals are taken.
        term: term of its leadership.
        tail_ids: identities of unapplied entries that were appended in an earlier term, or for
            other nodes.
        writing: number of its writes that are not durable.
        unapplied_bytes: payload of its entries that are not applied.
        durable_index: newest entry that the journal need not keep any more, with all before it.
        hard_state_file, reset_file, position_file: numbers of the journal files that hold its
            newest hard state, log reset and applied position, 0 for none.
        reset: position of the newest log reset in the journal, None if there was none.
        position: newest applied position given to the journal, None if there is none.
        begin: the applied position that was the newest when the log was last cut, None if there is
            none. Not below the begin of the log, unless entries were lost that it is not about.
        reads: linearizable reads that have not ended, None if there are none.
        removed: answer to proposals once the group is removed for good, None before.
        driving: True while the driver works off its work.
        has_work: True if the core has to be asked for work.
        muted: True while it takes no messages and sends none: see `Driver.mute`.
        is_awaited: True if another node waits for the result of an entry that was applied since the
            followers were told of the commit index.
        loading: True while entries are being loaded for a follower.
        met: configuration and replicas of a partition that need no change by the present nodes of
            the cluster, as this node has found as the leader; None if they may.
        resting: True while it takes no ticks: see `GroupRest`. The core may be awake already, until
            it is driven.
        quiet_index, quiet_timeouts: last entry as of the last look of a leader, and number of looks
            since which nothing has happened.
        timed, timed_at: entry whose commit is timed, 0 for none, and time of its proposal.
        told: configuration that was logged, or that this node has found as a leader; None before.
    """

    __slots__ = (
        "application",
        "applied_index",
        "applied_term",
        "apply",
        "begin",
        "driving",
        "durable_index",
        "hard_state_file",
        "has_peers",
        "has_work",
        "held",
        "is_awaited",
        "leads",
        "loading",
        "met",
        "muted",
        "node",
        "node_id",
        "position",
        "position_file",
        "prepare",
        "proposals",
        "quiet_index",
        "quiet_timeouts",
        "raft_group",
        "reads",
        "removed",
        "reset",
        "reset_file",
        "resting",
        "stamp",
        "storage",
        "tail_ids",
        "term",
        "timed",
        "timed_at",
        "told",
        "unapplied_bytes",
        "writing",
    )

    def __init__(self, raft_group: int, storage: RaftStorage, node_id: int) -> None:
        self.raft_group = raft_group
        self.node_id = node_id
        self.storage = storage
        self.node: RaftNode | None = None
        self.application: Application | None = None
        self.held: list[Entry] | None = None
        self.prepare: Prepare | None = None
        self.apply: Apply
        self.stamp: Stamp
        self.applied_term, self.applied_index = storage.start
        self.has_peers = False
        self.look_at_members()
        self.proposals: Proposals[RaftGroup] | None = None
        self.leads = False
        self.term = 0
        self.tail_ids = _NO_IDS
        self.writing = 0
        self.unapplied_bytes = 0
        self.durable_index = 0
        self.hard_state_file = 0
        self.reset_file = 0
        self.reset: LogPosition | None = None
        self.position: AppliedPosition | None = None
        self.begin: AppliedPosition | None = None
        self.position_file = 0
        self.reads: list[GroupRead] | None = None
        self.removed: PixyError | None = None
        self.driving = False
        self.has_work = False
        self.muted = False
        self.is_awaited = False
        self.loading = False
        self.met: tuple[ConfState, tuple[int, ...]] | None = None
        self.told: ConfState | None = None
        self.resting = False
        self.quiet_index = self.quiet_timeouts = 0
        self.timed, self.timed_at = 0, 0.0

    def look_at_members(self) -> None:
        """The configuration in `storage` is a new one."""
        conf_state = self.storage.conf_state
        self.has_peers = conf_state.voters != (self.node_id,) or len(conf_state.members) > 1

    @property
    def is_blank(self) -> bool:
        """True if its configuration has no members: only a snapshot tells a new replica, or one
        that has departed and is back, who they are. It takes no first entries, which belong to
        members that it does not know. And it does not vote: to a node that has missed its departure
        it is a voter yet, and what it has confirmed and forgotten kept that node from an election.
        """
        return not self.storage.conf_state.members

    def compact(self, index: int) -> None:
        """Entries up to `index`, which are applied, cannot be read any more."""
        self.storage.compact(index)
        if self.begin is None or self.begin.index < self.storage.start.index:
            self.begin = self.position

    def look_at_role(self) -> None:
        """The role in the core may have changed: begin or end to take proposals."""
        if self.node is None:
            return
        raft = self.node.raft
        can_propose = (
            raft.state is StateType.LEADER
            and raft.lead_transferee == NONE
            and raft.id in raft.tracker.progress
            and self.application is not None
            and self.held is None
            and not self.muted
        )
        if not can_propose:
            self.leads = False
        elif not (self.leads and self.term == raft.term):
            self._lead(raft)

    def _lead(self, raft: Raft) -> None:
        """Propose from here on. The state of what is proposed is that of the applied entries and of
        those behind them, which may yet be committed.
        """
        assert self.application is not None
        tail = self.unapplied()
        self.leads, self.term = True, raft.term
        self.tail_ids = {entry.proposal for entry in tail if entry.proposal is not None} or _NO_IDS
        self.application.lead(tail)
        if self.proposals is not None:
            self.proposals.propose_again()

    def unapplied(self) -> list[Entry]:
        """The entries behind the last applied one, or behind a snapshot that is about to replace
        it. They may yet be committed, or replaced.
        """
        log = self.storage if self.node is None else self.node.raft.log
        first, end = max(self.applied_index + 1, log.first_index()), log.last_index() + 1
        if first == end:
            return []
        read = self.storage.entries if self.node is None else self.node.raft.log.slice
        tail = read(first, end, NO_LIMIT)
        assert len(tail) == end - first, f"raft group {self.raft_group}: unapplied entries not in memory"
        return tail

    @property
    def applied(self) -> LogPosition:
        """The last applied entry."""
        return LogPosition(self.applied_term, self.applied_index)

    @property
    def has_tail(self) -> bool:
        """True if there are entries that are not applied."""
        return self.applied_index < self.storage.last_index()

    @property
    def leader(self) -> int:
        """The leader as far as this node knows, 0 for none."""
        return NONE if self.node is None else self.node.raft.lead

    @property
    def decides(self) -> bool:
        """True if this node decides for the group: it leads, or nobody else could."""
        return self.leads or not self.has_peers

    def has_entry(self, position: LogPosition) -> bool:
        """True if an entry is in the group's log."""
        if self.node is not None:
            return self.node.raft.log.match_term(*position)
        storage = self.storage
        return storage.start.index <= position.index <= storage.last_index() and (
            storage.term(position.index) == position.term
        )

    def may_have_replica(self, node_id: int) -> bool:
        """As `Application`; True as long as there is none."""
        return self.application is None or self.application.may_have_replica(node_id)

    @property
    def rows(self) -> DedupTable:
        """Results of the last proposals."""
        assert self.application is not None
        return self.application.rows


class GroupRead:
    """A linearizable read.

    Attributes:
        done: called when it may be served from the applied state.
        context: of its request to the core; empty while there was none in this term.
        index: entry that must be applied first, 0 while unknown.
    """

    __slots__ = ("context", "done", "index")

    def __init__(self, done: Callable[[], None]) -> None:
        self.done = done
        self.context = b""
        self.index = 0


def replicas_in_sync(group: RaftGroup) -> set[int]:
    """Nodes that follow a group closely, at its leader: they get entries as these come."""
    assert group.node is not None
    raft = group.node.raft
    return {
        node_id
        for node_id, progress in raft.tracker.progress.items()
        if node_id == raft.id or progress.state is ProgressState.REPLICATE
    }
