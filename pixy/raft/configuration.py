"""Changes of the configuration in force (Raft §6, thesis chapter 4).

`pixy.raft.conf_change` computes them; here a node switches, and acts on it as a leader.
"""

from pixy.raft import conf_change, replication
from pixy.raft.messages import NONE, ConfChangeV2, ConfState, StateType
from pixy.raft.progress import Progress
from pixy.raft.state import RaftState


def apply_conf_change(raft: RaftState, change: ConfChangeV2, index: int) -> ConfState:
    """Apply the committed configuration change at `index`; returns the configuration.

    Raises:
        ConfChangeError: it is invalid in this configuration; nothing has changed.

    A change that the configuration already includes has no effect: entries are applied again
    after a restart, and a snapshot may overtake entries that wait to be applied.
    """
    if index <= raft.conf_index:
        return raft.tracker.config
    changer = conf_change.Changer(raft.tracker.config, raft.tracker.progress, raft.new_progress)
    config, progress = changer.change(change)
    return switch_to_config(raft, config, progress, index)


def switch_to_config(
    raft: RaftState, config: ConfState, progress: dict[int, Progress], index: int
) -> ConfState:
    """Switch to the configuration as of `index`, and act on it as a leader."""
    raft.tracker.switch(config, progress)
    raft.conf_index = index
    raft.config_switched()
    if raft.state is not StateType.LEADER:
        return config
    if raft.id not in progress or raft.is_learner:
        # Thesis §4.2.2: a leader that is not a member continues to lead, without counting
        # itself, until another node is elected.
        if raft.config.step_down_on_removal:
            raft.become_follower(raft.term, NONE)
        return config
    if not config.voters:
        return config
    if raft.maybe_commit():
        # A smaller quorum may have committed entries.
        replication.broadcast_append(raft)
    else:
        for node_id in progress:
            if node_id != raft.id:
                replication.maybe_send_append(raft, node_id, send_if_empty=False)
    if raft.lead_transferee not in raft.tracker.voters:
        raft.lead_transferee = NONE
    return config
