"""Linearizable reads at the leader (Raft §8, thesis §6.4).

For their confirmation see `pixy.raft.read_only`.
"""

from pixy.raft import replication
from pixy.raft.config import ReadOnlyOption
from pixy.raft.messages import NONE, Message, MessageType, ReadState
from pixy.raft.state import RaftState


def read_index(raft: RaftState, m: Message) -> None:
    """READ_INDEX: determine an index such that any node that has applied it may answer the read."""
    if raft.committed_in_own_term():
        _serve(raft, m)
    else:
        # Raft §8: before that, a leader does not know the commit index. This holds for a single
        # voter too, which may have lost its commit index in a crash. (etcd answers such a read at
        # once.)
        raft.pending_reads.append(m)


def release_pending_reads(raft: RaftState) -> None:
    """Process the reads that waited for the first commit of this term."""
    if not raft.pending_reads:
        return
    if not raft.committed_in_own_term():
        raft.trace.error("pending MsgReadIndex should be released only after first commit in current term")
        return
    requests, raft.pending_reads = raft.pending_reads, []
    for m in requests:
        _serve(raft, m)


def _serve(raft: RaftState, m: Message) -> None:
    index = raft.log.last_index() if raft.config.reads_cover_log else raft.log.committed
    # No other node can be elected if this node is the only voter. A voter count of one is not
    # sufficient: a leader that has removed itself continues to lead while the remaining voter may
    # have been elected. (etcd does not check which node it is.)
    alone = raft.tracker.is_only_voter(raft.id)
    if alone or raft.config.read_only is ReadOnlyOption.LEASE_BASED:
        _answer_read(raft, m, index)
        return
    raft.read_only.add(m, index)
    raft.read_only.acknowledge(raft.id, raft.read_only.context())
    replication.broadcast_heartbeat(raft)


def handle_read_confirmation(raft: RaftState, m: Message) -> None:
    """Context of a HEARTBEAT_RESP: answer the reads that a quorum has confirmed."""
    if raft.config.read_only is ReadOnlyOption.LEASE_BASED:
        return
    raft.read_only.acknowledge(m.sender, m.context)
    for request, index in raft.read_only.confirmed(raft.tracker.config):
        _answer_read(raft, request, index)


def _answer_read(raft: RaftState, m: Message, index: int) -> None:
    if m.sender in (NONE, raft.id):
        raft.read_states.append(ReadState(index, bytes(m.entries[0].data)))
    else:
        raft.send(Message(MessageType.READ_INDEX_RESP, m.sender, index=index, entries=m.entries))
