"""A node of a raft group: the driver's interface.

    while node.has_ready():
        ready = node.ready()
        ...                     # the work, in the order given in `pixy.raft.ready`
        node.advance()          # not with asynchronous storage writes

In between, the driver calls `tick`, `step` with received messages, `propose` and the other methods.
An idle group needs no calls at all, not even ticks: see `quiesce`, and docs/raft.md for the
limitations of such a group.
"""

from collections.abc import Sequence

from pixy.entry_ids import LogPosition, ProposalId
from pixy.raft.config import RaftConfig, RandomSource
from pixy.raft.election import resume_campaign
from pixy.raft.errors import RaftError, StepLocalMessage, StepPeerNotFound, panic
from pixy.raft.follower import abandon_snapshot, awaits_snapshot, complete_snapshot
from pixy.raft.idle_heartbeats import take_idle_heartbeat
from pixy.raft.leader import propose_payloads
from pixy.raft.messages import (
    APPLY_THREAD,
    NONE,
    ConfChange,
    ConfChangeSingle,
    ConfChangeType,
    ConfChangeV2,
    ConfState,
    Entry,
    HardState,
    Message,
    MessageType,
    RaftEntryType,
    Snapshot,
    SoftState,
    StateType,
)
from pixy.raft.proposals import NotAppended
from pixy.raft.raft import Raft
from pixy.raft.ready import (
    Ready,
    StorageAppend,
    Work,
    append_message,
    append_response,
    apply_message,
    apply_response,
)
from pixy.raft.replication import broadcast_append, pass_commit_on, resume_sending
from pixy.raft.rest import all_agree, may_ask, stop_asking, wake
from pixy.raft.status import RaftStatus, status_of
from pixy.raft.storage import Storage
from pixy.raft.trace import NULL_TRACE, Trace
from pixy.raft.wire import encode_conf_change

__all__ = ["RaftNode", "is_local_message"]

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
    MessageType.STORAGE_APPEND_RESP,
    MessageType.STORAGE_APPLY_RESP,
)
# Members of enumerations are found slowly.
_NORMAL = RaftEntryType.NORMAL
_LEADER = StateType.LEADER
_IS_LOCAL = tuple([kind in _LOCAL for kind in MessageType])
_IS_RESPONSE = tuple([kind in _RESPONSES for kind in MessageType])


def is_local_message(kind: MessageType) -> bool:
    """True for messages that only the node itself or its storage threads may send."""
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
        "_apply_unstable",
        "_defers_commit_index",
        "_previous_hard_state",
        "_previous_soft_state",
        "_steps_on_advance",
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
        # With synchronous writes, entries are stored before they are applied. With asynchronous
        # writes, a crash might leave the application ahead of its log.
        self._apply_unstable = not config.async_storage_writes
        self._defers_commit_index = config.defer_commit_index
        # The awaited snapshot that a Ready has reported.
        self._announced_snapshot: Message | None = None
        self._previous_soft_state = self.raft.soft_state()
        self._previous_hard_state = self.raft.hard_state()
        # Messages from this node to itself once the work of the last Ready is done. None if no
        # Ready is outstanding.
        self._steps_on_advance: list[Message] | None = None

    def status(self) -> RaftStatus:
        """Status of the node."""
        return status_of(self.raft)

    # --- inputs -----------------------------------------------------------------------------------

    def tick(self) -> bool:
        """Advance the logical clock by one tick, whose duration the driver defines; False if no
        timeout has passed, so that there is no new work.
        """
        return self.raft.tick()

    def step(self, message: Message) -> None:
        """Process a message from a peer or a storage thread.

        Raises:
            StepLocalMessage: only the node itself may send this message.
            StepPeerNotFound: a response from a node that is not a member.
            ProposalDropped: a forwarded proposal was dropped.
        """
        kind, sender = message.type, message.sender
        if sender < APPLY_THREAD:
            if _IS_LOCAL[kind]:
                raise StepLocalMessage
            if _IS_RESPONSE[kind] and sender not in self.raft.tracker.progress:
                raise StepPeerNotFound
        self.raft.step(message)

    def take_idle_heartbeat(self, message: Message) -> Sequence[Message] | None:
        """The short way of a heartbeat, or its answer, that changes nothing but timers: the
        messages to send. None: it is to be checked and stepped.

        Only while all work was taken.
        """
        return take_idle_heartbeat(self.raft, message)

    def report_unreachable(self, node_id: int) -> None:
        """Report that messages to this node were lost: the leader stops pipelining until it
        answers.
        """
        self.raft.step(Message(MessageType.UNREACHABLE, self.raft.id, node_id))

    def report_snapshot(self, node_id: int, *, failed: bool) -> None:
        """Report that a snapshot for this node was delivered, or has failed.

        Without this report, or a response from that node, nothing more is sent to it.
        """
        self.raft.step(Message(MessageType.SNAP_STATUS, self.raft.id, node_id, reject=failed))

    def snapshot_arrived(self, snapshot: Snapshot) -> bool:
        """Report that the data of the awaited snapshot is in place: the node continues from it.

        Args:
            snapshot: from the message in `Ready.awaited_snapshot`.

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
            snapshot: from the message in `Ready.awaited_snapshot`.
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

        They must stay in memory until the next `ready`, or be reported again.
        """
        self.raft.log.entries_loaded()
        resume_sending(self.raft)
        resume_campaign(self.raft)

    def quiesce(self) -> None:
        """Suspend ticks until the group becomes active again.

        Aborts a leadership transfer, because proposals are dropped while one is pending and only
        ticks would time it out. Timers restart with the next tick.
        """
        self.raft.quiesce()

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
        return raft.propose([Entry(data=payload, kind=kind, proposal=proposal) for payload in payloads])

    def propose_conf_change(self, change: ConfChange | ConfChangeV2) -> LogPosition | NotAppended:
        """Propose a configuration change. It takes effect when the driver applies it with
        `apply_conf_change`.

        A change that is invalid in the current configuration is appended as an empty entry.

        Returns:
            As `propose`.
        """
        kind = RaftEntryType.CONF_CHANGE if isinstance(change, ConfChange) else RaftEntryType.CONF_CHANGE_V2
        return self.raft.propose([Entry(type=kind, data=encode_conf_change(change))])

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
        return self.raft.apply_conf_change(
            change.as_v2() if isinstance(change, ConfChange) else change, index
        )

    @property
    def restoring(self) -> bool:
        """True if a snapshot was received that is not stored yet.

        Entries being applied meanwhile are outdated.
        """
        return self.raft.log.unstable.snapshot is not None

    def read_index(self, context: bytes) -> None:
        """Request the index that must be applied before a read may be served; it arrives in a
        `Ready`, or never.

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

    def bootstrap(self, peers: Sequence[tuple[int, bytes]]) -> None:
        """Create a new group of these nodes, each with a context for its configuration change. All
        of them must do the same.

        Raises:
            RaftError: there are no peers, or this node already has a log.
        """
        if not peers:
            raise RaftError("must provide at least one peer to Bootstrap")
        raft = self.raft
        if raft.log.last_index() != 0:
            raise RaftError("can't bootstrap a nonempty Storage")
        self._previous_hard_state = HardState()
        raft.become_follower(1, NONE)
        changes = [ConfChange(ConfChangeType.ADD_NODE, node_id, context) for node_id, context in peers]
        entries = [
            Entry(1, index, RaftEntryType.CONF_CHANGE, encode_conf_change(change))
            for index, change in enumerate(changes, 1)
        ]
        raft.log.append(entries)
        # All nodes start with these entries, so they are committed. They take effect at once, or no
        # node could campaign; the application applies them again, without effect.
        raft.log.committed = len(entries)
        for index, change in enumerate(changes, 1):
            single = ConfChangeSingle(change.type, change.node_id)
            raft.apply_conf_change(ConfChangeV2((single,)), index)

    # --- work for the driver ----------------------------------------------------------------------

    def has_ready(self) -> bool:
        """True if `ready` has work."""
        raft = self.raft
        if raft.messages or raft.messages_after_append or raft.read_states:
            return True
        log = raft.log
        return (
            log.has_next_committed_entries(self._apply_unstable)
            or log.unstable.has_next()
            or self._hard_state_changed(not self._defers_commit_index)
            or self._soft_state_changed()
            or raft.awaited_snapshot is not self._announced_snapshot
        )

    def _hard_state_changed(self, commit_counts: bool) -> bool:
        term, vote, commit = self._previous_hard_state
        raft = self.raft
        return raft.term != term or raft.vote != vote or (commit_counts and raft.log.committed != commit)

    def _soft_state_changed(self) -> bool:
        lead, state = self._previous_soft_state
        return self.raft.state is not state or self.raft.lead != lead

    def work(self) -> Work | None:
        """Take the pending work in the form for a driver that stores and applies by itself, None if
        there is none. Only with `takes_work`.
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
            append = self._take_work_append()
        log, messages, read_states = raft.log, raft.messages, raft.read_states
        committed = log.take_stable_committed() if log.committed > log.applying else []
        lead, state = self._previous_soft_state
        # Guards spare a call that nearly always finds nothing.
        soft_state = None if raft.state is state and raft.lead == lead else self._take_soft_state()
        is_told = raft.awaited_snapshot is self._announced_snapshot
        awaited = None if is_told else self._take_awaited_snapshot()
        if not (append or committed or messages or soft_state or read_states or awaited):
            return None
        if messages:
            raft.messages = []
        if read_states:
            raft.read_states = []
        return Work(append, committed, messages, soft_state, read_states, awaited)

    def _take_work_append(self) -> StorageAppend:
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
        if append.term != raft.term or append.snapshot is not None:
            response = append_response(raft.id, append)
            if response is not None:
                raft.step(response)
        elif last is not None:
            raft.log.unstable.stable_to(last)
        if last is not None and append.term == raft.term and raft.state is _LEADER:
            raft.own_entries_stored(last.index)
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
        raft.own_entries_stored(index)
        if log.committed <= log.applying:
            return []
        if log.committed == index == log.applying + 1 and not log.applying_paused:
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
        if raft.uncommitted_size or log.applying_size or raft.tracker.config.auto_leave:
            raft.entries_applied(entries)
        elif index > log.applied:
            assert index <= log.committed, str(log)
            log.applied = index

    def ready(self) -> Ready:
        """Collect the pending work. It now belongs to the driver and is not returned again.

        Raises:
            RaftBug: the previous work was not acknowledged with `advance` (synchronous writes
                only).
        """
        raft = self.raft
        before = self._previous_hard_state
        append = self._take_append() or StorageAppend(raft.term, [], None, None, None, [])
        state = append.hard_state
        ready = Ready(
            self._take_soft_state(),
            state,
            raft.read_states,
            append.entries,
            append.snapshot,
            self._take_committed(),
            raft.messages,
            bool(append.entries) or (state is not None and state[:2] != before[:2]),
            self._take_awaited_snapshot(),
        )
        raft.messages = []
        if ready.read_states:
            raft.read_states = []
        if self._apply_unstable:
            self._hold_back_own_messages(ready, append)
        else:
            if append.responses or not append.is_empty:
                ready.messages.append(append_message(raft.id, append))
            if ready.committed_entries:
                ready.messages.append(apply_message(raft.id, ready.committed_entries))
        return ready

    def _take_append(self) -> StorageAppend | None:
        raft = self.raft
        unstable = raft.log.unstable
        has_next = unstable.has_next()
        hard_state = None
        if self._hard_state_changed(has_next or not self._defers_commit_index):
            self._previous_hard_state = hard_state = raft.hard_state()
        responses = raft.messages_after_append
        if not (has_next or responses or hard_state):
            return None
        raft.messages_after_append = []
        snapshot = unstable.next_snapshot()
        last = None
        if unstable.entries:
            newest = unstable.entries[-1]
            last = LogPosition(newest.term, newest.index)
        append = StorageAppend(raft.term, unstable.next_entries(), hard_state, snapshot, last, responses)
        unstable.accept_in_progress()
        return append

    def _take_committed(self) -> list[Entry]:
        entries = self.raft.log.next_committed_entries(self._apply_unstable)
        if entries:
            self.raft.log.accept_applying(entries, self._apply_unstable)
        return entries

    def _take_soft_state(self) -> SoftState | None:
        if not self._soft_state_changed():
            return None
        self._previous_soft_state = changed = self.raft.soft_state()
        return changed

    def _take_awaited_snapshot(self) -> Message | None:
        awaited = self.raft.awaited_snapshot
        if awaited is self._announced_snapshot:
            return None
        self._announced_snapshot = awaited
        return awaited

    def _hold_back_own_messages(self, ready: Ready, append: StorageAppend) -> None:
        raft = self.raft
        if self._steps_on_advance is not None:
            panic(raft.trace, "two accepted Ready structs without call to Advance")
        own: list[Message] = []
        for message in append.responses:
            (own if message.to == raft.id else ready.messages).append(message)
        stored = append_response(raft.id, append)
        if stored is not None:
            own.append(stored)
        if ready.committed_entries:
            own.append(apply_response(raft.id, ready.committed_entries))
        self._steps_on_advance = own

    def advance(self) -> None:
        """Acknowledge that the work of the last `ready` is done.

        Raises:
            RaftBug: with asynchronous writes, work is acknowledged by messages.
        """
        if self.raft.config.async_storage_writes:
            panic(self.raft.trace, "Advance must not be called when using AsyncStorageWrites")
        steps, self._steps_on_advance = self._steps_on_advance or (), None
        for message in steps:
            self.raft.step(message)
