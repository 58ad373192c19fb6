"""Configuration changes that leave one node as the only member of a raft group. Pure."""

from collections.abc import Iterable

from pixy.raft import ConfChange, ConfChangeSingle, ConfChangeType, ConfChangeV2, ConfState
from pixy.raft.conf_change import Changer, restore
from pixy.raft.progress import Inflights, Progress


def configuration_after(conf: ConfState, changes: Iterable[ConfChange | ConfChangeV2]) -> ConfState:
    """The configuration behind changes of it.

    Raises:
        ConfChangeError: a change is invalid there.
    """
    for change in changes:
        config, progress = restore(conf, _new_progress)
        conf, _ = Changer(config, progress, _new_progress).change(
            change.as_v2() if isinstance(change, ConfChange) else change
        )
    return conf


def changes_to_sole_voter(conf: ConfState, node_id: int) -> list[ConfChangeV2]:
    """Changes that lead to a configuration with this voter alone, each valid behind those before.

    None of them enters a joint configuration.
    """
    changes = [ConfChangeV2()] if conf.voters_outgoing else []
    if node_id not in conf.voters:
        changes.append(_single(ConfChangeType.ADD_NODE, node_id))
    members = {*conf.voters, *conf.learners, *conf.learners_next} - {node_id}
    return changes + [_single(ConfChangeType.REMOVE_NODE, member) for member in sorted(members)]


def _single(kind: ConfChangeType, node_id: int) -> ConfChangeV2:
    return ConfChangeV2((ConfChangeSingle(kind, node_id),))


def _new_progress(learner: bool) -> Progress:
    return Progress(1, Inflights(1), learner=learner)
