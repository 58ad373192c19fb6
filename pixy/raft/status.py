"""Status of a node and, at a leader, of its followers."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pixy.raft.messages import ConfState, HardState, SoftState, StateType
from pixy.raft.progress import Progress
from pixy.raft.state import RaftState
from pixy.raft.text import state_name

__all__ = ["RaftStatus", "status_of"]


@dataclass(frozen=True, slots=True)
class RaftStatus:
    """Status of a node.

    Args:
        id: node id.
        hard_state: term, vote and commit index.
        soft_state: leader and role.
        applied: index up to which entries are applied.
        lead_transferee: target of a leadership transfer, else `NONE`.
        config: current configuration.
        progress: progress of each node at a leader, else empty. These are the live objects: read
            them before the next call.
    """

    id: int
    hard_state: HardState
    soft_state: SoftState
    applied: int
    lead_transferee: int
    config: ConfState
    progress: Mapping[int, Progress]

    def __str__(self) -> str:
        """JSON; ids are hexadecimal."""
        return json.dumps(
            {
                "id": f"{self.id:x}",
                "term": self.hard_state.term,
                "vote": f"{self.hard_state.vote:x}",
                "commit": self.hard_state.commit,
                "lead": f"{self.soft_state.lead:x}",
                "raftState": state_name(self.soft_state.state),
                "applied": self.applied,
                "progress": {
                    f"{node_id:x}": {"match": pr.match, "next": pr.next, "state": pr.state.value}
                    for node_id, pr in self.progress.items()
                },
                "leadtransferee": f"{self.lead_transferee:x}",
            },
            separators=(",", ":"),
        )


def status_of(raft: RaftState) -> RaftStatus:
    """Status of this node."""
    return RaftStatus(
        id=raft.id,
        hard_state=raft.hard_state(),
        soft_state=raft.soft_state(),
        applied=raft.log.applied,
        lead_transferee=raft.lead_transferee,
        config=raft.tracker.config,
        progress=dict(raft.tracker.progress) if raft.state is StateType.LEADER else {},
    )
