"""The short way of heartbeats at rest: of a leader that has nothing new, and of its followers that
have everything.

They are nearly all messages of thousands of idle groups. What they change is when each side was
last heard of, so they take neither the handlers nor the search for work. Whatever else there might
be to do goes the long way, and so does all that a message says that no correct node would.
"""

from collections.abc import Sequence

from pixy.raft.messages import Message, MessageType, StateType
from pixy.raft.progress import ProgressState
from pixy.raft.state import RaftState

_HEARTBEAT, _HEARTBEAT_RESP = MessageType.HEARTBEAT, MessageType.HEARTBEAT_RESP
_FOLLOWER, _LEADER, _REPLICATE = StateType.FOLLOWER, StateType.LEADER, ProgressState.REPLICATE
_NOTHING: Sequence[Message] = ()


def take_idle_heartbeat(raft: RaftState, m: Message) -> Sequence[Message] | None:
    """Process a HEARTBEAT or HEARTBEAT_RESP that changes nothing but timers.

    The driver has taken all work that there was before.

    Returns:
        the messages to send; None: it was not processed, and is to be stepped.
    """
    tracker, sender = raft.tracker, m.sender
    pr = tracker.progress.get(sender)
    if (
        m.term != raft.term
        or m.context
        or m.index
        or raft.resting
        or raft.rest_answers is not None  # else nobody has been asked
        or raft.commit_message_due
        or pr is None
        or sender == raft.id
        or len(tracker.voters) == 1
    ):
        return None
    if m.type is _HEARTBEAT:
        if (
            raft.state is not _FOLLOWER
            or raft.lead != sender
            or m.commit > raft.log.committed
            or raft.awaiting_campaign is not None
        ):
            return None
        raft.election_elapsed = 0
        return (Message(_HEARTBEAT_RESP, sender, raft.id, raft.term),)
    if raft.state is not _LEADER or pr.state is not _REPLICATE or pr.match < raft.log.last_index():
        return None
    pr.recently_active = True
    pr.paused = False
    return _NOTHING
