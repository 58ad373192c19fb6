"""State machine of one node of one raft group: its state, terms and roles, and everything that all
roles share.

Inputs are `step`, `tick_election` and `tick_heartbeat` (`tick` calls the right one). Outputs are
`messages`, `messages_after_append` and `read_states`, which `pixy.raft.node` collects. It has no
clock and no threads, and does no I/O.

    raft.py         roles (Raft §5.1), sending, the own log, committing, configurations (§6)
    terms.py        messages of another term (§5.1)
    roles.py        dispatch of messages, for each role
    election.py     campaigns and votes (§5.2, §5.4.1; thesis §9.6)
    replication.py  the leader's appends (§5.3), snapshots (§7) and heartbeats
    responses.py    the leader's handling of responses
    leader.py       proposals, configuration changes (§6), leadership transfer (thesis §3.10)
    reads.py        linearizable reads (§8)
    follower.py     the follower's counterpart of all that
    rest.py         groups without ticks

A handler is a function of node and message. Messages of type VOTE_RESP, PRE_VOTE_RESP and APP_RESP
make promises about stable storage: they go to `messages_after_append` and are sent once all earlier
unstable state is stored. A leader's acknowledgement of its own entries and a candidate's vote for
itself take the same path, and so do its vote requests.
"""

from collections.abc import Sequence

from pixy.entry_ids import LogPosition
from pixy.raft import conf_change, election, follower, leader, reads, replication, rest
from pixy.raft.config import RaftConfig, RandomSource, check_node_id
from pixy.raft.errors import ProposalDropped, panic
from pixy.raft.log import RaftLog
from pixy.raft.messages import (
    NONE,
    ConfChangeV2,
    ConfState,
    Entry,
    HardState,
    Message,
    MessageType,
    RaftEntryType,
    ReadState,
    Snapshot,
    SoftState,
    StateType,
)
from pixy.raft.progress import Inflights, Progress
from pixy.raft.proposals import NotAppended
from pixy.raft.read_only import ReadOnly
from pixy.raft.roles import HANDLERS
from pixy.raft.sizes import payload_size
from pixy.raft.storage import Storage
from pixy.raft.terms import reconcile_terms
from pixy.raft.text import describe_config, describe_peers, message_type_name
from pixy.raft.trace import Described, Trace
from pixy.raft.tracker import Tracker

__all__ = ["Raft"]

_VOTES = (MessageType.VOTE, MessageType.VOTE_RESP, MessageType.PRE_VOTE, MessageType.PRE_VOTE_RESP)
_APP_RESP = MessageType.APP_RESP
_AFTER_APPEND = (MessageType.APP_RESP, MessageType.VOTE_RESP, MessageType.PRE_VOTE_RESP)
_WITHOUT_TERM = (MessageType.PROP, MessageType.READ_INDEX)


class Raft:
    """One node.

    Args:
        node_id: its id.
        storage: stable state, including the initial state.
        config: options.
        random: source of randomness for election timeouts.
        trace: trace sink.
        applied: index up to which the application has applied entries, which are thus committed; 0
            if unknown, in which case entries are handed out again.

    Raises:
        RaftConfigError: the id is reserved.
    """

    __slots__ = (
        "_handlers",
        "_random",
        "awaited_snapshot",
        "awaiting_campaign",
        "commit_message_due",
        "conf_index",
        "config",
        "election_elapsed",
        "first_own_index",
        "heartbeat_elapsed",
        "id",
        "is_learner",
        "lead",
        "lead_transferee",
        "log",
        "messages",
        "messages_after_append",
        "no_conf_change_to",
        "pending_conf_index",
        "pending_reads",
        "randomized_election_timeout",
        "read_only",
        "read_states",
        "rest_answers",
        "rest_index",
        "resting",
        "state",
        "term",
        "trace",
        "tracker",
        "uncommitted_size",
        "vote",
    )

    def __init__(
        self,
        node_id: int,
        storage: Storage,
        config: RaftConfig,
        random: RandomSource,
        trace: Trace,
        applied: int = 0,
    ) -> None:
        check_node_id(node_id)
        self.id = node_id
        self.config = config
        self.trace = trace
        self._random = random
        self.log = RaftLog(storage, config.max_applying_size, trace)
        # Invariant: term and vote were in a hard state before other nodes are told of them.
        self.term = 0
        self.vote = NONE
        self.state = StateType.FOLLOWER
        self.lead = NONE
        # Invariant: True if this node is a learner of the current configuration.
        self.is_learner = False
        # Snapshot message that waits for its data (`RaftConfig.defer_snapshots`). Later ones are
        # refused meanwhile.
        # Invariant: its index is above `log.committed` when it is set; later it may be overtaken.
        self.awaited_snapshot: Message | None = None
        # Followers may not know the commit index (`defer_commit_messages`).
        self.commit_message_due = False
        # Target of a leadership transfer, NONE if there is none. Proposals are dropped meanwhile.
        self.lead_transferee = NONE
        # Invariant: at or above the index of every unapplied configuration change in the log
        # (leader only).
        self.pending_conf_index = 0
        # Campaign that waits for the unapplied entries to be loaded, which may have a configuration
        # change among them; and the index up to which they were found to have none.
        self.awaiting_campaign: election.Campaign | None = None
        self.no_conf_change_to = 0
        # The first entry of this leader's term; all behind it are of that term. 0 unless it leads.
        self.first_own_index = 0
        # Payload of entries that this leader has appended and that are not applied yet.
        self.uncommitted_size = 0
        # Ticks since the last contact with a leader; at a leader, since the last quorum check.
        self.election_elapsed = 0
        self.heartbeat_elapsed = 0
        # Invariant: in [election_tick, 2 * election_tick - 1], unless set by a test.
        self.randomized_election_timeout = config.election_tick
        self.read_only = ReadOnly()
        # Reads that wait for the first commit of this leader's term.
        self.pending_reads: list[Message] = []
        self.read_states: list[ReadState] = []
        # Without ticks and heartbeats, see `pixy.raft.rest`. Invariant: False for candidates.
        self.resting = False
        # Index of the entry behind which a leader asks its followers to rest, 0 if it does not ask;
        # followers that do, None before it has asked. Invariant: 0 and None at others.
        self.rest_index = 0
        self.rest_answers: set[int] | None = None
        self.messages: list[Message] = []
        self.messages_after_append: list[Message] = []
        self._handlers = HANDLERS[StateType.FOLLOWER]
        self._restart(storage, applied)

    def _restart(self, storage: Storage, applied: int) -> None:
        hard_state, conf_state, conf_index = storage.initial_state()
        # Invariant: the current configuration includes every change up to this index, and none
        # above.
        self.conf_index = conf_index
        self.tracker = Tracker(*conf_change.restore(conf_state, self.new_progress))
        self._config_switched()
        if hard_state != HardState():
            if hard_state.commit > self.log.last_index():
                panic(
                    self.trace,
                    "%x state.commit %d is out of range [%d, %d]",
                    self.id,
                    hard_state.commit,
                    self.log.committed,
                    self.log.last_index(),
                )
            self.log.commit_to(hard_state.commit)
            self.term = hard_state.term
            self.vote = hard_state.vote
        if applied > 0:
            # The stored commit index may lag behind.
            self.log.commit_to(applied)
            self.log.applied_to(applied)
        self.become_follower(self.term, NONE)
        last = self.log.last_position()
        self.trace.info(
            "newRaft %x [peers: [%s], term: %d, commit: %d, applied: %d, lastindex: %d, lastterm: %d]",
            self.id,
            Described(describe_peers, self.tracker.voters),
            self.term,
            self.log.committed,
            self.log.applied,
            last.index,
            last.term,
        )

    # --- interface for the driver -----------------------------------------------------------------

    def soft_state(self) -> SoftState:
        """Leader and role."""
        return SoftState(self.lead, self.state)

    def hard_state(self) -> HardState:
        """Term, vote and commit index."""
        return HardState(self.term, self.vote, self.log.committed)

    def promotable(self) -> bool:
        """True if this node may campaign: it is a voter and no snapshot waits to be stored."""
        return not self.is_learner and self.id in self.tracker.progress and self.log.unstable.snapshot is None

    def tick(self) -> bool:
        """Advance the logical clock by one tick; False if no timeout has passed, or at rest."""
        if self.resting:
            return False
        self.election_elapsed += 1
        if self.state is not StateType.LEADER:
            if self.election_elapsed < self.randomized_election_timeout or not self.promotable():
                return False
            self.election_elapsed = 0
            self.step(Message(MessageType.HUP, self.id, self.id))
            return True
        self.heartbeat_elapsed += 1
        if (
            self.election_elapsed < self.config.election_tick
            and self.heartbeat_elapsed < self.config.heartbeat_tick
        ):
            return False
        self._leader_timed_out()
        return True

    def _leader_timed_out(self) -> None:
        if self.election_elapsed >= self.config.election_tick:
            self.election_elapsed = 0
            if self.config.check_quorum:
                self.step(Message(MessageType.CHECK_QUORUM, self.id, self.id))
            if self.state is StateType.LEADER and self.lead_transferee != NONE:
                # Thesis §3.10: a transfer that takes an election timeout has failed.
                self.abort_transfer()
        if self.state is StateType.LEADER and self.heartbeat_elapsed >= self.config.heartbeat_tick:
            self.heartbeat_elapsed = 0
            self.step(Message(MessageType.BEAT, self.id, self.id))

    def quiesce(self) -> None:
        """Suspend ticks.

        Aborts a leadership transfer, which only ticks could time out; timers restart with the next
        tick.
        """
        if self.lead_transferee != NONE:
            self.abort_transfer()
        self.election_elapsed = 0
        self.heartbeat_elapsed = 0

    def step(self, message: Message) -> None:
        """Process a message. `pixy.raft.node` has checked its sender.

        Raises:
            ProposalDropped: the message is a forwarded proposal and was dropped.
        """
        if self.resting and not rest.is_of_rest(self, message):
            rest.wake(self, message)
        if message.term != self.term and message.term and not reconcile_terms(self, message):
            return
        self._handlers[message.type](self, message)

    def propose(self, entries: Sequence[Entry], proposer: int = NONE) -> LogPosition | NotAppended:
        """Append all of the entries as the leader, or forward them to it.

        Args:
            entries: at least one; term and index are assigned here.
            proposer: node that has forwarded them, NONE if it is this one.

        Returns:
            Position of the first entry, which the others follow, or the reason why nothing was
            appended.
        """
        if self.state is StateType.LEADER:
            return leader.propose(self, entries)
        return follower.forward_proposal(self, entries, proposer)

    # --- roles (Raft §5.1, figure 4) --------------------------------------------------------------

    def become_follower(self, term: int, lead: int) -> None:
        """Follow `lead`, NONE if it is unknown."""
        self._reset(term)
        self.lead = lead
        self._enter(StateType.FOLLOWER)
        self.trace.info("%x became follower at term %d", self.id, self.term)

    def become_candidate(self) -> None:
        """Campaign in the next term (§5.2)."""
        assert self.state is not StateType.LEADER, "invalid transition [leader -> candidate]"
        self._reset(self.term + 1)
        self.vote = self.id
        self._enter(StateType.CANDIDATE)
        self.trace.info("%x became candidate at term %d", self.id, self.term)

    def become_pre_candidate(self) -> None:
        """Ask for pre-votes; term and vote stay unchanged (thesis §9.6)."""
        assert self.state is not StateType.LEADER, "invalid transition [leader -> pre-candidate]"
        self.tracker.votes = None
        self.lead = NONE
        self._enter(StateType.PRE_CANDIDATE)
        self.trace.info("%x became pre-candidate at term %d", self.id, self.term)

    def become_leader(self) -> None:
        """Lead, and append an empty entry of the own term, which commits all earlier ones (§5.4.2,
        §8).
        """
        assert self.state is not StateType.FOLLOWER, "invalid transition [follower -> leader]"
        self._reset(self.term)
        self.lead = self.id
        self._enter(StateType.LEADER)
        own = self.tracker.progress[self.id]
        own.become_replicate()
        own.recently_active = True
        # There may be a configuration change among the unapplied entries: accept none until they
        # are applied.
        self.pending_conf_index = self.log.last_index()
        self.first_own_index = self.pending_conf_index + 1
        if self.append_entries([Entry(self.term, self.log.last_index() + 1)]) is None:
            panic(self.trace, "empty entry was dropped")
        self.trace.info("%x became leader at term %d", self.id, self.term)

    def _enter(self, state: StateType) -> None:
        self.state = state
        self._handlers = HANDLERS[state]

    def _reset(self, term: int) -> None:
        if self.term != term:
            self.term = term
            self.vote = NONE
        self.lead = NONE
        self.lead_transferee = NONE
        self.election_elapsed = 0
        self.heartbeat_elapsed = 0
        self.resting = False
        self.rest_index, self.rest_answers = 0, None
        self.randomized_election_timeout = self.config.election_tick + self._random.randrange(
            self.config.election_tick
        )
        self.pending_conf_index = 0
        self.first_own_index = 0
        self.uncommitted_size = 0
        self.commit_message_due = False
        self.read_only = ReadOnly()
        self.tracker.votes = None
        self.awaiting_campaign = None
        last = self.log.last_index()
        for node_id, pr in self.tracker.progress.items():
            pr.reset(last + 1, last if node_id == self.id else 0)

    # --- sending ----------------------------------------------------------------------------------

    def send(self, m: Message) -> None:
        """Fill in sender and term, and queue the message to be sent now, or once all unstable state
        is stored.
        """
        kind = m.type
        if m.sender == NONE:
            m.sender = self.id
        if kind in _VOTES:
            # The term of a vote request or response may not be this node's, so the caller sets it.
            if m.term == 0:
                panic(self.trace, "term should be set when sending %s", message_type_name(kind))
        else:
            if m.term:
                panic(
                    self.trace,
                    "term should not be set when sending %s (was %d)",
                    message_type_name(kind),
                    m.term,
                )
            if kind not in _WITHOUT_TERM:
                m.term = self.term
        if kind in _AFTER_APPEND or (kind is MessageType.VOTE and self._defers_vote_requests()):
            self.messages_after_append.append(m)
        elif m.to == self.id:
            panic(self.trace, "message should not be self-addressed when sending %s", message_type_name(kind))
        else:
            self.messages.append(m)

    def _defers_vote_requests(self) -> bool:
        return self.config.async_storage_writes and self.config.defer_vote_requests

    # --- the own log ------------------------------------------------------------------------------

    def append_entries(self, entries: Sequence[Entry]) -> LogPosition | None:
        """Append entries of this term, which follow the last one, to the leader's log (Raft §5.3).

        Returns:
            Position of the first entry; None if too many entries are unapplied.
        """
        if self.config.max_uncommitted_size and not self._increase_uncommitted_size(payload_size(entries)):
            self.trace.warning(
                "%x appending new entries to log would exceed uncommitted entry size limit; dropping proposal",
                self.id,
            )
            return None
        if self.resting:
            rest.wake(self)
        self.log.unstable.extend(entries)
        own, term = self.id, self.term
        if not self.config.takes_work:
            # The leader acknowledges its own entries only after they are stored.
            self.messages_after_append.append(Message(_APP_RESP, own, own, term, 0, entries[-1].index))
        return LogPosition(term, entries[0].index)

    def own_entries_stored(self, index: int) -> None:
        """This leader's own log is stored up to `index`, in its present term."""
        log, tracker = self.log, self.tracker
        progress = tracker.progress
        own = progress.get(self.id)
        if own is None or index <= own.match:
            return
        own.match = index
        if own.next <= index:
            own.next = index + 1
        if index <= log.committed:
            return
        has_peers = len(progress) > 1
        committed = tracker.committed() if has_peers else index
        if committed <= log.committed or committed < self.first_own_index:
            return
        # Raft §5.4.2; at most the last entry, which is stored.
        log.committed = committed
        if self.pending_reads:
            reads.release_pending_reads(self)
        if has_peers:
            replication.broadcast_commit(self)

    def _increase_uncommitted_size(self, size: int) -> bool:
        limit = self.config.max_uncommitted_size
        if self.uncommitted_size > 0 and size > 0 and self.uncommitted_size + size > limit:
            # A large proposal is never refused for good, because an empty tail accepts anything.
            # Empty entries always pass: elections and leaving a joint configuration need them.
            return False
        self.uncommitted_size += size
        return True

    def maybe_commit(self) -> bool:
        """Commit entries stored by a quorum, if the last one is of the current term (Raft §5.3,
        §5.4.2).
        """
        committed, log = self.tracker.committed(), self.log
        if committed <= log.committed or committed < self.first_own_index:
            return False
        log.commit_to(committed)
        return True

    def committed_in_own_term(self) -> bool:
        """True if this leader has committed an entry of its own term, and thus knows the commit
        index (§8).
        """
        return self.log.term_or_zero(self.log.committed) == self.term

    def handle_storage_append_response(self, m: Message) -> None:
        """STORAGE_APPEND_RESP: entries or a snapshot are stored."""
        if m.index:
            self.log.unstable.stable_to(LogPosition(m.log_term, m.index))
        if m.snapshot is not None:
            self.applied_snapshot(m.snapshot)

    def handle_storage_apply_response(self, m: Message) -> None:
        """STORAGE_APPLY_RESP: entries are applied."""
        if m.entries:
            self.entries_applied(m.entries)

    def entries_applied(self, entries: Sequence[Entry]) -> None:
        """Entries are applied."""
        self.applied_to(entries[-1].index)
        if self.uncommitted_size:
            self.uncommitted_size = max(0, self.uncommitted_size - payload_size(entries))

    def applied_snapshot(self, snapshot: Snapshot) -> None:
        """The snapshot is stored and restored by the application."""
        self.log.unstable.stable_snapshot_to(snapshot.index)
        self.applied_to(snapshot.index)

    def applied_to(self, index: int) -> None:
        """Record that entries up to `index` are applied.

        The leader then leaves a joint configuration with auto_leave.
        """
        self.log.applied_to(max(index, self.log.applied))
        self._maybe_leave_joint()

    def abort_transfer(self) -> None:
        """End a leadership transfer: proposals are taken again."""
        self.lead_transferee = NONE
        self._maybe_leave_joint()

    def _maybe_leave_joint(self) -> None:
        config = self.tracker.config
        if not config.auto_leave or self.state is not StateType.LEADER:
            return
        if self.log.applied < self.pending_conf_index:
            return
        # Empty, so it never exceeds the limit of uncommitted entries.
        outcome = self.propose([Entry(type=RaftEntryType.CONF_CHANGE_V2)])
        if isinstance(outcome, NotAppended):
            # A leadership transfer is pending. Its end, or the next apply, retries.
            self.trace.debug(
                "not initiating automatic transition out of joint configuration %s: %s",
                Described(describe_config, config),
                ProposalDropped.text,
            )
        else:
            self.trace.info(
                "initiating automatic transition out of joint configuration %s",
                Described(describe_config, config),
            )

    # --- configurations (Raft §6, thesis chapter 4) -----------------------------------------------

    def new_progress(self, learner: bool) -> Progress:
        """Progress of a new member.

        It starts as active, or the leader could lose its quorum before the first response.
        """
        inflights = Inflights(self.config.max_inflight_messages, self.config.max_inflight_bytes)
        return Progress(max(self.log.last_index(), 1), inflights, learner=learner, recently_active=True)

    def apply_conf_change(self, change: ConfChangeV2, index: int) -> ConfState:
        """Apply the committed configuration change at `index`; returns the configuration.

        Raises:
            ConfChangeError: it is invalid in this configuration; nothing has changed.

        A change that the configuration already includes has no effect: entries are applied again
        after a restart, and a snapshot may overtake entries that wait to be applied.
        """
        if index <= self.conf_index:
            return self.tracker.config
        changer = conf_change.Changer(self.tracker.config, self.tracker.progress, self.new_progress)
        config, progress = changer.change(change)
        return self.switch_to_config(config, progress, index)

    def switch_to_config(self, config: ConfState, progress: dict[int, Progress], index: int) -> ConfState:
        """Switch to the configuration as of `index`, and act on it as a leader."""
        self.tracker.switch(config, progress)
        self.conf_index = index
        self._config_switched()
        if self.state is not StateType.LEADER:
            return config
        if self.id not in progress or self.is_learner:
            # Thesis §4.2.2: a leader that is not a member continues to lead, without counting
            # itself, until another node is elected.
            if self.config.step_down_on_removal:
                self.become_follower(self.term, NONE)
            return config
        if not config.voters:
            return config
        if self.maybe_commit():
            # A smaller quorum may have committed entries.
            replication.broadcast_append(self)
        else:
            for node_id in progress:
                if node_id != self.id:
                    replication.maybe_send_append(self, node_id, send_if_empty=False)
        if self.lead_transferee not in self.tracker.voters:
            self.lead_transferee = NONE
        return config

    def _config_switched(self) -> None:
        config = Described(describe_config, self.tracker.config)
        self.trace.info("%x switched to configuration %s", self.id, config)
        own = self.tracker.progress.get(self.id)
        self.is_learner = own is not None and own.learner

    def check_invariants(self) -> None:
        """Assert the documented invariants."""
        self.log.check_invariants()
        self.tracker.check_invariants()
        assert self.state is not StateType.LEADER or self.lead == self.id
        assert (self.first_own_index > 0) == (self.state is StateType.LEADER)
        assert (self.rest_answers is None and not self.rest_index) or self.state is StateType.LEADER
        assert not self.resting or self.state in (StateType.LEADER, StateType.FOLLOWER)
        assert self.state is not StateType.CANDIDATE or (self.vote == self.id and self.lead == NONE)
        assert self.state is StateType.LEADER or self.lead_transferee == NONE
        assert self.is_learner == (self.id in self.tracker.config.learners)
        assert all(m.to != self.id for m in self.messages)
        assert all(m.type in (*_AFTER_APPEND, MessageType.VOTE) for m in self.messages_after_append)
