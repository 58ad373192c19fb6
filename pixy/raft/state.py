"""State of one node of one raft group, below its roles: terms and votes, the log, the members, the
change from role to role (Raft §5.1), and sending.

What a role does is in the modules above, as functions of this state; `pixy.raft.raft` calls them.
There is no clock and no thread, and no I/O. Outputs are `messages`, `messages_after_append` and
`read_states`, which `pixy.raft.node` collects. Messages of type VOTE_RESP, PRE_VOTE_RESP and
APP_RESP make promises about stable storage: they go to `messages_after_append` and are sent once
all earlier unstable state is stored. A candidate's vote for itself takes the same path, and so do
its vote requests: a candidate that crashes before its own write may campaign again in the same term
with a shorter log, and would count the votes that were granted before.
"""

from collections.abc import Sequence
from enum import Enum

from pixy.entry_ids import LogPosition
from pixy.raft import conf_change
from pixy.raft.config import RaftConfig, RandomSource, check_node_id
from pixy.raft.errors import panic
from pixy.raft.log import RaftLog
from pixy.raft.messages import (
    NONE,
    Entry,
    HardState,
    Message,
    MessageType,
    ReadState,
    SoftState,
    StateType,
)
from pixy.raft.progress import Inflights, Progress
from pixy.raft.read_only import ReadOnly
from pixy.raft.storage import Storage
from pixy.raft.text import describe_config, describe_peers, message_type_name
from pixy.raft.trace import Described, Trace
from pixy.raft.tracker import Tracker

VOTE_REJECTED = (
    "%x [logterm: %d, index: %d, vote: %x] rejected %s from %x [logterm: %d, index: %d] at term %d"
)

_VOTES = (MessageType.VOTE, MessageType.VOTE_RESP, MessageType.PRE_VOTE, MessageType.PRE_VOTE_RESP)
_AFTER_APPEND = (MessageType.APP_RESP, MessageType.VOTE_RESP, MessageType.PRE_VOTE_RESP, MessageType.VOTE)
_WITHOUT_TERM = (MessageType.PROP, MessageType.READ_INDEX)


class Campaign(Enum):
    """Kind of a campaign."""

    PRE_ELECTION = "pre-vote"
    ELECTION = "vote"
    TRANSFER = "vote, asked for by the leader"


class RaftState:
    """State of one node.

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
        self.log = RaftLog(storage, trace)
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
        self.awaiting_campaign: Campaign | None = None
        self.no_conf_change_to = 0
        # The first entry of this leader's term; all behind it are of that term. 0 unless it leads.
        self.first_own_index = 0
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
        self._restart(storage, applied)

    def _restart(self, storage: Storage, applied: int) -> None:
        hard_state, conf_state, conf_index = storage.initial_state()
        # Invariant: the current configuration includes every change up to this index, and none
        # above.
        self.conf_index = conf_index
        self.tracker = Tracker(*conf_change.restore(conf_state, self.new_progress))
        self.config_switched()
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

    def soft_state(self) -> SoftState:
        """Leader and role."""
        return SoftState(self.lead, self.state)

    def hard_state(self) -> HardState:
        """Term, vote and commit index."""
        return HardState(self.term, self.vote, self.log.committed)

    def promotable(self) -> bool:
        """True if this node may campaign: it is a voter and no snapshot waits to be stored."""
        return not self.is_learner and self.id in self.tracker.progress and self.log.unstable.snapshot is None

    # --- roles (Raft §5.1, figure 4) --------------------------------------------------------------

    def become_follower(self, term: int, lead: int) -> None:
        """Follow `lead`, NONE if it is unknown."""
        self._reset(term)
        self.lead = lead
        self.state = StateType.FOLLOWER
        self.trace.info("%x became follower at term %d", self.id, self.term)

    def become_candidate(self) -> None:
        """Campaign in the next term (§5.2)."""
        assert self.state is not StateType.LEADER, "invalid transition [leader -> candidate]"
        self._reset(self.term + 1)
        self.vote = self.id
        self.state = StateType.CANDIDATE
        self.trace.info("%x became candidate at term %d", self.id, self.term)

    def become_pre_candidate(self) -> None:
        """Ask for pre-votes; term and vote stay unchanged (thesis §9.6)."""
        assert self.state is not StateType.LEADER, "invalid transition [leader -> pre-candidate]"
        self.tracker.votes = None
        self.lead = NONE
        self.state = StateType.PRE_CANDIDATE
        self.trace.info("%x became pre-candidate at term %d", self.id, self.term)

    def become_leader(self) -> None:
        """Lead, and append an empty entry of the own term, which commits all earlier ones (§5.4.2,
        §8).
        """
        assert self.state is not StateType.FOLLOWER, "invalid transition [follower -> leader]"
        self._reset(self.term)
        self.lead = self.id
        self.state = StateType.LEADER
        own = self.tracker.progress[self.id]
        own.become_replicate()
        own.recently_active = True
        # There may be a configuration change among the unapplied entries: accept none until they
        # are applied.
        self.pending_conf_index = self.log.last_index()
        self.first_own_index = self.pending_conf_index + 1
        self.append_entries([Entry(self.term, self.log.last_index() + 1)])
        self.trace.info("%x became leader at term %d", self.id, self.term)

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
        self.commit_message_due = False
        self.read_only = ReadOnly()
        self.tracker.votes = None
        self.awaiting_campaign = None
        last = self.log.last_index()
        for node_id, pr in self.tracker.progress.items():
            pr.reset(last + 1, last if node_id == self.id else 0)

    def trace_vote(self, text: str, m: Message, *more: object) -> None:
        """Trace what becomes of a request for a vote: both logs, and the vote so far."""
        last = self.log.last_position()
        own = (self.id, last.term, last.index, self.vote)
        name = message_type_name(m.type)
        self.trace.info(text, *own, name, m.sender, m.log_term, m.index, self.term, *more)

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
        if kind in _AFTER_APPEND:
            self.messages_after_append.append(m)
        elif m.to == self.id:
            panic(self.trace, "message should not be self-addressed when sending %s", message_type_name(kind))
        else:
            self.messages.append(m)

    # --- the own log ------------------------------------------------------------------------------

    def append_entries(self, entries: Sequence[Entry]) -> LogPosition:
        """Append entries of this term, which follow the last one, to the leader's log (Raft §5.3);
        returns the position of the first one.

        They count once they are stored: `pixy.raft.responses`.
        """
        self.log.unstable.extend(entries)
        return LogPosition(self.term, entries[0].index)

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

    # --- configurations (Raft §6, thesis chapter 4) -----------------------------------------------

    def new_progress(self, learner: bool) -> Progress:
        """Progress of a new member.

        It starts as active, or the leader could lose its quorum before the first response.
        """
        inflights = Inflights(self.config.max_inflight_messages, self.config.max_inflight_bytes)
        return Progress(max(self.log.last_index(), 1), inflights, learner=learner, recently_active=True)

    def config_switched(self) -> None:
        """The tracker has another configuration."""
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
        assert all(m.type in _AFTER_APPEND for m in self.messages_after_append)
