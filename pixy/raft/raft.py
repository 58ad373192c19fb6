"""State machine of one node of one raft group: a message, or a tick, goes to the role that the node
has.

    raft.py            inputs: `step` and `tick`
    roles.py           dispatch of messages, for each role
    terms.py           messages of another term (§5.1)
    election.py        campaigns and votes (§5.2, §5.4.1; thesis §9.6)
    responses.py       the leader's handling of responses, and of its own writes
    reads.py           linearizable reads (§8)
    leader.py          proposals, configuration changes (§6), leadership transfer (thesis §3.10)
    follower.py        the follower's counterpart of all that
    configuration.py   changes of the configuration in force (§6)
    replication.py     the leader's appends (§5.3), snapshots (§7) and heartbeats
    rest.py            groups without ticks
    state.py           state, roles (§5.1), sending

Each imports only what is below it. A handler is a function of state and message.
"""

from pixy.raft import leader, rest
from pixy.raft.messages import NONE, Message, MessageType, StateType
from pixy.raft.roles import HANDLERS
from pixy.raft.state import RaftState
from pixy.raft.terms import reconcile_terms


class Raft(RaftState):
    """One node."""

    __slots__ = ()

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
                leader.abort_transfer(self)
        if self.state is StateType.LEADER and self.heartbeat_elapsed >= self.config.heartbeat_tick:
            self.heartbeat_elapsed = 0
            self.step(Message(MessageType.BEAT, self.id, self.id))

    def step(self, message: Message) -> None:
        """Process a message. `pixy.raft.node` has checked its sender.

        Raises:
            ProposalDropped: the message is a forwarded proposal and was dropped.
        """
        if self.resting and not rest.is_of_rest(self, message):
            rest.wake(self, message)
        if message.term != self.term and message.term and not reconcile_terms(self, message):
            return
        HANDLERS[self.state][message.type](self, message)
