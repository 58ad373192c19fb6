"""A node of a raft group: the driver's interface.

    while (work := node.work()) is not None:
        ...     # `work.append` is stored, and acknowledged by `stored`; see `pixy.raft.work`
        ...     # `work.committed_entries` are applied, and acknowledged by `applied`

In between, the driver calls `tick`, `step` with received messages, `propose` and the other methods.
A group at rest needs no calls at all, not even ticks: see `ask_to_rest`, and docs/raft.md for the
limitations of such a group.
"""

from collections.abc import Sequence

from pixy.entry_ids import LogPosition, ProposalId
from pixy.raft.config import RaftConfig, RandomSource
from pixy.raft.configuration import apply_conf_change
from pixy.raft.election import resume_campaign
from pixy.raft.errors import StepLocalMessage, StepPeerNotFound
from pixy.raft.follower import abandon_snapshot, awaits_snapshot, complete_snapshot
from pixy.raft.idle_heartbeats import take_idle_heartbeat
from pixy.raft.leader import maybe_leave_joint, propose_payloads
from pixy.raft.messages import (
    NONE,
    ConfChange,
    ConfChangeV2,
    ConfState,
    Entry,
    Message,
    MessageType,
    RaftEntryType,
    Snapshot,
    StateType,
)
from pixy.raft.proposals import NotAppended
from pixy.raft.raft import Raft
from pixy.raft.replication import broadcast_append, pass_commit_on, resume_sending
from pixy.raft.responses import own_entries_stored
from pixy.raft.rest import all_agree, may_ask, stop_asking, wake
from pixy.raft.roles import propose
from pixy.raft.storage import Storage
from pixy.raft.trace import NULL_TRACE, Trace
from pixy.raft.wire import encode_conf_change
from pixy.raft.work import StorageAppend, Work

_LOCAL = (
    MessageType.HUP,
    MessageType.BEAT,
    MessageType.UNREACHABLE,
    MessageType.SNAP_STATUS,
    MessageType.CHECK_QUORUM,
    MessageType.STORAGE_APPEND,
    MessageType.STORAGE_APPEND_RESP,
    MessageType.STORAGE_APPLY,
    MessageType.STORAGE_APPLY_RESP,
)
_RESPONSES = (
    MessageType.APP_RESP,
    MessageType.VOTE_RESP,
    MessageType.HEARTBEAT_RESP,
    MessageType.UNREACHABLE,
    MessageType.READ_INDEX_RESP,
    MessageType.PRE_VOTE_RESP,
)
# Members of enumerations are found slowly.
_NORMAL = RaftEntryType.NORMAL
_LEADER = StateType.LEADER
_IS_LOCAL = tuple([kind in _LOCAL for kind in MessageType])
_IS_RESPONSE = tuple([kind in _RESPONSES for kind in MessageType])


def is_local_message(kind: MessageType) -> bool:
    """True for messages that only the node itself may send."""
    return _IS_LOCAL[kind]


class RaftNode:
    """One replica of one raft group.

    Args:
        node_id: its id, not 0.
        storage: stable state; written by the driver, read by the core.
        config: options; may be shared by many groups.
        random: source of randomness for election timeouts; may be shared by many groups.
        applied: index up to which the application has applied the entries in the storage. They
            count as committed, whatever commit index is stored.
        trace: trace sink.

    Attributes:
        raft: the state machine, for inspection.

    Raises:
        RaftConfigError: the id is reserved.
        RaftBug: the storage contradicts itself.
    """

    __slots__ = (
        "_announced_snapshot",
        "_previous_hard_state",
        "_previous_soft_state",
        "raft",
    )

    def __init__(
        self,
        node_id: int,
        storage: Storage,
        config: RaftConfig,
        random: RandomSource,
        *,
        applied: int = 0,
        trace: Trace = NULL_TRACE,
    ) -> None:
        self.raft = Raft(node_id, storage, config, random, trace, applied)
        # The awaited snapshot that a `Work` has reported.
        self._announced_snapshot: Message | None = None
        self._previous_soft_state = self.raft.soft_state()
        self._previous_hard_state = self.raft.hard_state()

    # --- inputs -----------------------------------------------------------------------------------

    def tick(self) -> bool:
        """Advance the logical clock by one tick, whose duration the driver defines; False if no
        timeout has passed, so that there is no new work.
        """
        return self.raft.tick()

    def step(self, message: Message) -> None:
        """Process a message from a peer.

        Raises:
            StepLocalMessage: only the node itself may send this message.
            StepPeerNotFound: a response from a node that is not a member.
            ProposalDropped: a forwarded proposal was dropped.
        """
        kind = message.type
        if _IS_LOCAL[kind]:
            raise StepLocalMessage
        if _IS_RESPONSE[kind] and message.sender not in self.raft.tracker.progress:
            raise StepPeerNotFound
        self.raft.step(message)

    def take_idle_heartbeat(self, message: Message) -> Sequence[Message] | None:
        """The short way of a heartbeat, or its answer, that changes nothing but timers: the
        messages to send. None: it is to be checked and stepped.

        Only while all work was taken.
        """
        return take_idle_heartbeat(self.raft, message)

    def report_snapshot(self, node_id: int, *, failed: bool) -> None:
        """Report that a snapshot for this node was delivered, or has failed.

        Without this report, or a response from that node, nothing more is sent to it.
        """
        self.raft.step(Message(MessageType.SNAP_STATUS, self.raft.id, node_id, reject=failed))

    def snapshot_arrived(self, snapshot: Snapshot) -> bool:
        """Report that the data of the awaited snapshot is in place: the node continues from it.

        Args:
            snapshot: from the message in `Work.awaited_snapshot`.

        Returns:
            False if the snapshot is no longer needed, because the node has a later one, is the
            leader, or received the entries instead. The data may be deleted.
        """
        return complete_snapshot(self.raft, snapshot)

    def report_active(self, node_id: int) -> None:
        """Report a sign of life of a follower other than a message: it counts for check-quorum."""
        progress = self.raft.tracker.progress.get(node_id)
        if progress is not None:
            progress.recently_active = True

    def awaits_snapshot(self, snapshot: Snapshot) -> bool:
        """True while the data of this snapshot is awaited, and the node cannot do without."""
        return awaits_snapshot(self.raft, snapshot)

    def snapshot_failed(self, snapshot: Snapshot, *, silently: bool = False) -> None:
        """Report that the data of the awaited snapshot cannot be fetched: the leader sends another
        one later.

        Args:
            snapshot: from the message in `Work.awaited_snapshot`.
            silently: the leader is told only what this node has: it sends another one when its
                driver reports this one as failed.
        """
        abandon_snapshot(self.raft, snapshot, silently=silently)

    def snapshot_ready(self) -> None:
        """Report that `Storage.snapshot` has one after `SnapshotTemporarilyUnavailable`: it is sent
        at once, not after the next heartbeat.
        """
        resume_sending(self.raft)

    def entries_loaded(self) -> None:
        """Report that entries are loaded that the storage did not have in memory
        (`EntriesNotLoaded`): everything that waits for entries asks again.

        They must stay in memory until the next `work`, or be reported again.
        """
        self.raft.log.entries_loaded()
        resume_sending(self.raft)
        resume_campaign(self.raft)

    def ask_to_rest(self) -> bool:
        """Ask the followers to rest, with the next heartbeats; False if there is something to do.
        See `pixy.raft.rest`.
        """
        raft = self.raft
        if not may_ask(raft):
            return False
        raft.rest_index, raft.rest_answers = raft.log.last_index(), None
        return True

    def stop_asking(self) -> None:
        """Ask no more, unless this node rests."""
        if not self.raft.resting:
            stop_asking(self.raft)

    def may_rest(self) -> bool:
        """True for a leader whose followers all rest."""
        return all_agree(self.raft)

    def rest(self) -> None:
        """Rest, as a leader that may."""
        assert self.may_rest()
        raft = self.raft
        raft.rest_answers = None
        raft.resting = True
        raft.election_elapsed = raft.heartbeat_elapsed = 0
        for progress in raft.tracker.progress.values():
            progress.recently_active = True

    def report_silence(self, ticks: int) -> None:
        """Report for how many ticks nothing has proven the leader of this node, if that rests as a
        follower: so much of its timeout has passed.
        """
        if self.raft.resting and self.raft.state is StateType.FOLLOWER:
            self.raft.election_elapsed = ticks

    def wake(self, silent: int = NONE) -> None:
        """End the rest of this node, unless it is awake.

        Args:
            silent: node that does not count as active for check-quorum.
        """
        raft = self.raft
        if raft.resting:
            wake(raft)
        progress = raft.tracker.progress.get(silent)
        if progress is not None:
            progress.recently_active = False

    # --- requests of the application --------------------------------------------------------------

    def propose(
        self, *payloads: bytes | bytearray, kind: int = 0, proposal: ProposalId | None = None
    ) -> LogPosition | NotAppended:
        """Propose to append these payloads to the log, adjacent to each other.

        They may be lost without notice if the leader that appended them is deposed. Payloads are
        referenced, never copied.

        Args:
            payloads: one entry each, at least one. All of them are appended, or none.
            kind: kind of each payload, see `Entry`.
            proposal: identity of each payload's proposal, see `Entry`.

        Returns:
            Position of the first entry if this node leads: the others follow it in the same term.
            The proposal is committed if the entry that is applied at its index has its term, and
            lost if it has another. Else the reason why nothing was appended.
        """
        raft = self.raft
        if raft.state is StateType.LEADER and payloads:
            return propose_payloads(raft, payloads, kind, proposal)
        return propose(raft, [Entry(data=payload, kind=kind, proposal=proposal) for payload in payloads])

    def propose_conf_change(self, change: ConfChange | ConfChangeV2) -> LogPosition | NotAppended:
        """Propose a configuration change. It takes effect when the driver applies it with
        `apply_conf_change`.

        A change that is invalid in the current configuration is appended as an empty entry.

        Returns:
            As `propose`.
        """
        kind = RaftEntryType.CONF_CHANGE if isinstance(change, ConfChange) else RaftEntryType.CONF_CHANGE_V2
        return propose(self.raft, [Entry(type=kind, data=encode_conf_change(change))])

    def apply_conf_change(self, change: ConfChange | ConfChangeV2, index: int) -> ConfState:
        """Apply a committed configuration change; required for every such entry.

        An application that rejects a change passes one without effect: node id 0.

        Args:
            change: content of the entry.
            index: index of the entry. A change that the current configuration already includes has
                no effect: entries are applied again after a restart, and a snapshot may have
                overtaken them.

        Returns:
            The new configuration, to be stored with the next snapshot.

        Raises:
            ConfChangeError: the change is invalid in this configuration, which stays as it is: the
                entry has no effect, on any node.
        """
        return apply_conf_change(
            self.raft, change.as_v2() if isinstance(change, ConfChange) else change, index
        )

    @property
    def restoring(self) -> bool:
        """True if a snapshot was received that is not stored yet.

        Entries being applied meanwhile are outdated.
        """
        return self.raft.log.unstable.snapshot is not None

    def read_index(self, context: bytes) -> None:
        """Request the index that must be applied before a read may be served; it arrives in a
        `Work`, or never.

        Args:
            context: identifies the read in its `ReadState`.
        """
        self.raft.step(Message(MessageType.READ_INDEX, self.raft.id, entries=[Entry(data=context)]))

    def campaign(self) -> None:
        """Campaign without waiting for the election timeout."""
        self.raft.step(Message(MessageType.HUP, self.raft.id))

    def transfer_leader(self, node_id: int) -> None:
        """Ask the leader to transfer its leadership to this node.

        The soft state shows the outcome.
        """
        self.raft.step(Message(MessageType.TRANSFER_LEADER, self.raft.id, node_id))

    def forget_leader(self) -> None:
        """Report that the leader is gone: votes may be granted at once."""
        self.raft.step(Message(MessageType.FORGET_LEADER, self.raft.id))

    # --- work for the driver ----------------------------------------------------------------------

    def work(self) -> Work | None:
        """Take the pending work, None if there is none. It now belongs to the driver, and is not
        returned again.
        """
        raft = self.raft
        unstable = raft.log.unstable
        term, vote, _ = self._previous_hard_state
        append = None
        if (
            unstable.offset + len(unstable.entries) > unstable.offset_in_progress
            or raft.messages_after_append
            or raft.term != term
            or raft.vote != vote
            or (unstable.snapshot is not None and not unstable.snapshot_in_progress)
        ):
            append = self._take_append()
        log, messages, read_states = raft.log, raft.messages, raft.read_states
        committed = log.take_stable_committed() if log.committed > log.applying else []
        lead, state = self._previous_soft_state
        soft_state = awaited = None
        if raft.state is not state or raft.lead != lead:
            self._previous_soft_state = soft_state = raft.soft_state()
        if raft.awaited_snapshot is not self._announced_snapshot:
            self._announced_snapshot = awaited = raft.awaited_snapshot
        if not (append or committed or messages or soft_state or read_states or awaited):
            return None
        if messages:
            raft.messages = []
        if read_states:
            raft.read_states = []
        return Work(append, committed, messages, soft_state, read_states, awaited)

    def _take_append(self) -> StorageAppend:
        raft = self.raft
        unstable = raft.log.unstable
        hard_state = None
        if (raft.term, raft.vote) != self._previous_hard_state[:2]:
            self._previous_hard_state = hard_state = raft.hard_state()
        responses: Sequence[Message] = ()
        if raft.messages_after_append:
            responses, raft.messages_after_append = raft.messages_after_append, []
        entries: list[Entry] = []
        last = None
        if unstable.entries:
            newest = unstable.entries[-1]
            last = LogPosition(newest.term, newest.index)
            # A list of its own: the log goes on while these are written.
            entries = unstable.next_entries()
        append = StorageAppend(raft.term, entries, hard_state, unstable.next_snapshot(), last, responses)
        unstable.accept_in_progress()
        return append

    def stored(self, append: StorageAppend) -> Sequence[Message]:
        """Acknowledge that a write of `work` is durable, after all earlier ones.

        Returns:
            Messages to send to other nodes, promises that the write has made true.
        """
        raft = self.raft
        others: Sequence[Message] = ()
        if append.responses:
            others = [message for message in append.responses if message.to != raft.id]
            for message in append.responses:
                # It may have been removed meanwhile.
                if message.to == raft.id and raft.id in raft.tracker.progress:
                    raft.step(message)
        last = append.last
        if append.term != raft.term:
            # Other entries of the same indexes may have replaced these: a write of the current term
            # tells.
            if last is not None:
                raft.trace.info(
                    "%x [term: %d] ignored entry appends from a MsgStorageAppendResp message with lower term "
                    "[term: %d]",
                    raft.id,
                    raft.term,
                    append.term,
                )
        elif last is not None:
            raft.log.unstable.stable_to(last)
        if append.snapshot is not None:
            # A snapshot has committed state: no later term contradicts it.
            index = append.snapshot.index
            raft.log.unstable.stable_snapshot_to(index)
            self._applied_to(index)
        if last is not None and append.term == raft.term and raft.state is _LEADER:
            own_entries_stored(raft, last.index)
        return others

    def append_payload(self, payload: bytes | bytearray, kind: int, proposal: ProposalId | None) -> Entry:
        """Append a payload as the leader that takes proposals, and hand the entry out to be stored.

        The short way of a proposal: as `propose` with one payload and `work`, for a driver that
        knows that this node leads, is a member, and transfers its leadership to nobody. The entry
        is to be stored behind everything handed out before, and acknowledged by `own_stored`.
        Messages to other nodes are in the next `work`.
        """
        raft = self.raft
        unstable = raft.log.unstable
        index = unstable.offset + len(unstable.entries)
        assert raft.first_own_index, "only a leader appends"
        assert raft.lead_transferee == NONE, "the leadership is being transferred"
        assert unstable.offset_in_progress == index, "an earlier entry was not handed out"
        if raft.resting:
            wake(raft)
        entry = Entry(raft.term, index, _NORMAL, payload, kind, proposal)
        unstable.entries.append(entry)
        unstable.offset_in_progress = index + 1
        if len(raft.tracker.progress) > 1:
            broadcast_append(raft)
        return entry

    def own_stored(self, entry: Entry) -> list[Entry]:
        """Acknowledge that an entry of `append_payload` is durable, after all earlier writes.

        Returns:
            Entries to apply, acknowledged by `applied`; none if the leadership was lost meanwhile.
        """
        raft = self.raft
        log, index = raft.log, entry.index
        if entry.term != raft.term or not raft.first_own_index:
            return []
        unstable = log.unstable
        entries = unstable.entries
        if entries[-1] is entry:
            unstable.entries = []
        else:
            del entries[: index + 1 - unstable.offset]
        unstable.offset = index + 1
        own_entries_stored(raft, index)
        if log.committed <= log.applying:
            return []
        if log.committed == index == log.applying + 1 and not log.applying_awaits_entries:
            # What was stored last is what comes next, as with a single voter.
            log.applying = index
            return [entry]
        return log.take_stable_committed()

    def pass_commit_on(self) -> None:
        """Tell the followers of the commit index that do not know it, as the leader; for
        `defer_commit_messages`.
        """
        raft = self.raft
        raft.commit_message_due = False
        if raft.state is StateType.LEADER:
            for node_id, progress in raft.tracker.progress.items():
                if node_id != raft.id and progress.can_bump_commit(raft.log.committed):
                    pass_commit_on(raft, node_id)

    def applied(self, entries: Sequence[Entry]) -> None:
        """Acknowledge that committed entries of `work` are applied."""
        raft, index = self.raft, entries[-1].index
        log = raft.log
        if raft.tracker.config.auto_leave:
            self._applied_to(index)
        elif index > log.applied:
            assert index <= log.committed, str(log)
            log.applied = index

    def _applied_to(self, index: int) -> None:
        log = self.raft.log
        log.applied_to(max(index, log.applied))
        maybe_leave_joint(self.raft)
