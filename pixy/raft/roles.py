"""Message dispatch for each role. The tables are complete: ignored messages are listed, too.

Messages of another term do not get here, see `Raft.step`.
"""

from collections.abc import Callable, Mapping, Sequence

from pixy.entry_ids import LogPosition
from pixy.raft import election, follower, leader, reads, replication, responses
from pixy.raft.errors import ProposalDropped
from pixy.raft.messages import NONE, Entry, Message, MessageType, StateType
from pixy.raft.proposals import NotAppended
from pixy.raft.state import RaftState

Handler = Callable[[RaftState, Message], None]


def _ignore(_: RaftState, __: Message) -> None:
    """The message has no meaning in this role."""


def propose(raft: RaftState, entries: Sequence[Entry], proposer: int = NONE) -> LogPosition | NotAppended:
    """Append all of the entries as the leader, or forward them to it.

    Args:
        entries: at least one; term and index are assigned here.
        proposer: node that has forwarded them, NONE if it is this one.

    Returns:
        Position of the first entry, which the others follow, or the reason why nothing was
        appended.
    """
    if raft.state is StateType.LEADER:
        return leader.propose(raft, entries)
    return follower.forward_proposal(raft, entries, proposer)


def _propose(raft: RaftState, m: Message) -> None:
    """PROP: a proposal that another node has forwarded.

    Raises:
        ProposalDropped: it was neither appended nor forwarded.
    """
    outcome = propose(raft, m.entries, m.sender)
    if isinstance(outcome, NotAppended) and outcome is not NotAppended.FORWARDED:
        raise ProposalDropped(outcome)


_ANY_ROLE: Mapping[MessageType, Handler] = {
    MessageType.HUP: election.hup,
    MessageType.PROP: _propose,
    MessageType.VOTE: election.handle_vote_request,
    MessageType.PRE_VOTE: election.handle_vote_request,
    # Of etcd's storage threads; here the driver has their work, see `pixy.raft.work`.
    MessageType.STORAGE_APPEND: _ignore,
    MessageType.STORAGE_APPEND_RESP: _ignore,
    MessageType.STORAGE_APPLY: _ignore,
    MessageType.STORAGE_APPLY_RESP: _ignore,
}

_FOLLOWER: Mapping[MessageType, Handler] = {
    MessageType.APP: follower.handle_leader_message,
    MessageType.HEARTBEAT: follower.handle_leader_message,
    MessageType.SNAP: follower.handle_leader_message,
    MessageType.TRANSFER_LEADER: follower.forward_transfer,
    MessageType.FORGET_LEADER: follower.forget_leader,
    MessageType.TIMEOUT_NOW: election.timeout_now,
    MessageType.READ_INDEX: follower.forward_read,
    MessageType.READ_INDEX_RESP: follower.handle_read_index_response,
    MessageType.BEAT: _ignore,
    MessageType.CHECK_QUORUM: _ignore,
    MessageType.APP_RESP: _ignore,
    MessageType.HEARTBEAT_RESP: _ignore,
    MessageType.VOTE_RESP: _ignore,
    MessageType.PRE_VOTE_RESP: _ignore,
    MessageType.SNAP_STATUS: _ignore,
    MessageType.UNREACHABLE: _ignore,
}

_CANDIDATE: Mapping[MessageType, Handler] = {
    MessageType.APP: election.follow_leader,
    MessageType.HEARTBEAT: election.follow_leader,
    MessageType.SNAP: election.follow_leader,
    MessageType.VOTE_RESP: election.handle_vote_response,
    MessageType.TIMEOUT_NOW: election.ignore_timeout_now,
    MessageType.PRE_VOTE_RESP: _ignore,
    MessageType.BEAT: _ignore,
    MessageType.CHECK_QUORUM: _ignore,
    MessageType.APP_RESP: _ignore,
    MessageType.HEARTBEAT_RESP: _ignore,
    MessageType.SNAP_STATUS: _ignore,
    MessageType.UNREACHABLE: _ignore,
    MessageType.TRANSFER_LEADER: _ignore,
    MessageType.FORGET_LEADER: _ignore,
    MessageType.READ_INDEX: _ignore,
    MessageType.READ_INDEX_RESP: _ignore,
}

_PRE_CANDIDATE: Mapping[MessageType, Handler] = {
    **_CANDIDATE,
    MessageType.PRE_VOTE_RESP: election.handle_pre_vote_response,
    # Responses of an election of this term that was lost before.
    MessageType.VOTE_RESP: _ignore,
}

_LEADER: Mapping[MessageType, Handler] = {
    MessageType.BEAT: replication.beat,
    MessageType.CHECK_QUORUM: leader.check_quorum,
    MessageType.READ_INDEX: reads.read_index,
    MessageType.APP_RESP: responses.handle_append_response,
    MessageType.HEARTBEAT_RESP: responses.handle_heartbeat_response,
    MessageType.SNAP_STATUS: responses.handle_snapshot_status,
    MessageType.UNREACHABLE: _ignore,
    MessageType.TRANSFER_LEADER: leader.transfer_leader,
    MessageType.FORGET_LEADER: _ignore,
    MessageType.APP: leader.ignore_from_member,
    MessageType.HEARTBEAT: leader.ignore_from_member,
    MessageType.SNAP: leader.ignore_from_member,
    MessageType.VOTE_RESP: leader.ignore_from_member,
    MessageType.PRE_VOTE_RESP: leader.ignore_from_member,
    MessageType.TIMEOUT_NOW: leader.ignore_from_member,
    MessageType.READ_INDEX_RESP: leader.ignore_from_member,
}


def _table(handlers: Mapping[MessageType, Handler]) -> tuple[Handler, ...]:
    """Handlers by message type number. An incomplete role fails at import."""
    return tuple([{**_ANY_ROLE, **handlers}[kind] for kind in MessageType])


HANDLERS: Mapping[StateType, tuple[Handler, ...]] = {
    StateType.FOLLOWER: _table(_FOLLOWER),
    StateType.CANDIDATE: _table(_CANDIDATE),
    StateType.PRE_CANDIDATE: _table(_PRE_CANDIDATE),
    StateType.LEADER: _table(_LEADER),
}
