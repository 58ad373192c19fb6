"""Membership changes: transitions between configurations (thesis chapter 4).

A *simple* change adds or removes at most one voter, so any majority of the old configuration
overlaps with any majority of the new one (§4.1). Every other change goes through a *joint*
configuration (§4.3): entering it keeps the voters as the outgoing half and applies the changes to
the incoming half; leaving it drops the outgoing half. A voter of the outgoing half that is to
become a learner is kept in `learners_next`, because no node is voter and learner at once.

Nothing is modified in place: each function returns the next configuration and the matching
progress, or raises `ConfChangeError`. An empty configuration may become any other by simple
changes, which is how a group is bootstrapped.
"""

from collections.abc import Callable, Iterable, Mapping

from pixy.raft.errors import ConfChangeError, MalformedMessage
from pixy.raft.messages import NODE_ID_MAX, ConfChangeSingle, ConfChangeType, ConfChangeV2, ConfState
from pixy.raft.progress import Inflights, Progress
from pixy.raft.text import describe_conf_state

_SHOWN_MAX = 200

NewProgress = Callable[[bool], Progress]
"""Creates the progress of a new member; the argument tells whether it is a learner."""


class Changer:
    """Computes one configuration change.

    Args:
        config: current configuration.
        progress: progress of its nodes. Progress of remaining members is passed on unchanged,
            except for nodes that become learners or cease to be learners.
        new_progress: creates the progress of a new member.

    Raises:
        ConfChangeError: configuration and progress are inconsistent.
    """

    def __init__(
        self, config: ConfState, progress: Mapping[int, Progress], new_progress: NewProgress
    ) -> None:
        _check(config, progress)
        self._config = config
        self._progress = dict(progress)
        self._new_progress = new_progress
        self._incoming = set(config.voters)
        self._outgoing = set(config.voters_outgoing)
        self._learners = set(config.learners)
        self._learners_next = set(config.learners_next)

    def change(self, change: ConfChangeV2) -> tuple[ConfState, dict[int, Progress]]:
        """Apply a change, simple or joint as it demands.

        Raises:
            ConfChangeError: the change is invalid in this configuration.
        """
        if change.leaves_joint():
            return self.leave_joint()
        if change.enters_joint():
            return self.enter_joint(change.auto_leave(), change.changes)
        return self.simple(change.changes)

    def simple(self, changes: Iterable[ConfChangeSingle]) -> tuple[ConfState, dict[int, Progress]]:
        """Apply changes to at most one voter and to any number of learners."""
        if self._outgoing:
            raise ConfChangeError("can't apply simple config change in joint config")
        self._apply(changes)
        if len(self._incoming.symmetric_difference(self._config.voters)) > 1:
            raise ConfChangeError("more than one voter changed without entering joint config")
        return self._result(auto_leave=False)

    def enter_joint(
        self, auto_leave: bool, changes: Iterable[ConfChangeSingle]
    ) -> tuple[ConfState, dict[int, Progress]]:
        """Transition from C_old to C_new,old."""
        if self._outgoing:
            raise ConfChangeError("config is already joint")
        if not self._incoming:
            raise ConfChangeError("can't make a zero-voter config joint")
        self._outgoing = set(self._incoming)
        self._apply(changes)
        return self._result(auto_leave)

    def leave_joint(self) -> tuple[ConfState, dict[int, Progress]]:
        """Transition from C_new,old to C_new."""
        if not self._outgoing:
            raise ConfChangeError("can't leave a non-joint config")
        for node_id in self._learners_next:
            self._learners.add(node_id)
            self._set_learner(node_id, True)
        for node_id in self._outgoing - self._incoming - self._learners:
            del self._progress[node_id]
        self._learners_next = set()
        self._outgoing = set()
        return self._result(auto_leave=False)

    def _apply(self, changes: Iterable[ConfChangeSingle]) -> None:
        for kind, node_id in changes:
            if node_id == 0:
                # A driver voids a committed change by replacing its node id by 0.
                continue
            if kind == ConfChangeType.ADD_NODE:
                self._make_voter(node_id)
            elif kind == ConfChangeType.ADD_LEARNER_NODE:
                self._make_learner(node_id)
            elif kind == ConfChangeType.REMOVE_NODE:
                self._remove(node_id)
            elif kind != ConfChangeType.UPDATE_NODE:
                raise ConfChangeError(f"unexpected conf type {kind}")
        if not self._incoming:
            raise ConfChangeError("removed all voters")

    def _make_voter(self, node_id: int) -> None:
        if node_id not in self._progress:
            self._progress[node_id] = self._new_progress(False)
        self._set_learner(node_id, False)
        self._learners.discard(node_id)
        self._learners_next.discard(node_id)
        self._incoming.add(node_id)

    def _make_learner(self, node_id: int) -> None:
        if node_id not in self._progress:
            self._progress[node_id] = self._new_progress(True)
            self._learners.add(node_id)
        elif not self._progress[node_id].learner:
            self._incoming.discard(node_id)
            if node_id in self._outgoing:
                self._learners_next.add(node_id)
            else:
                self._learners.add(node_id)
                self._set_learner(node_id, True)

    def _remove(self, node_id: int) -> None:
        if node_id not in self._progress:
            return
        self._incoming.discard(node_id)
        self._learners.discard(node_id)
        self._learners_next.discard(node_id)
        if node_id not in self._outgoing:
            del self._progress[node_id]

    def _set_learner(self, node_id: int, learner: bool) -> None:
        pr = self._progress[node_id]
        if pr.learner != learner:
            # A copy, so that a change that proves invalid has no effect.
            self._progress[node_id] = pr.copy(learner)

    def _result(self, auto_leave: bool) -> tuple[ConfState, dict[int, Progress]]:
        config = ConfState(
            tuple(sorted(self._incoming)),
            tuple(sorted(self._learners)),
            tuple(sorted(self._outgoing)),
            tuple(sorted(self._learners_next)),
            auto_leave,
        )
        progress = dict(sorted(self._progress.items()))
        _check(config, progress)
        return config, progress


def restore(state: ConfState, new_progress: NewProgress) -> tuple[ConfState, dict[int, Progress]]:
    """Restore a stored configuration, with initial progress.

    Raises:
        ConfChangeError: no sequence of changes leads to this configuration.
    """
    config = ConfState(
        tuple(sorted(state.voters)),
        tuple(sorted(state.learners)),
        tuple(sorted(state.voters_outgoing)),
        tuple(sorted(state.learners_next)),
        state.auto_leave,
    )
    learners = set(config.learners)
    ids = sorted({*config.voters, *config.voters_outgoing, *learners})
    progress = {node_id: new_progress(node_id in learners) for node_id in ids}
    _check(config, progress)
    return config, progress


def check_configuration(state: ConfState) -> None:
    """Check a configuration of another node.

    Raises:
        MalformedMessage: no group has this configuration.
    """
    halves = (state.voters, state.learners, state.voters_outgoing, state.learners_next)
    if not state.voters or any(len(set(ids)) < len(ids) for ids in halves):
        raise MalformedMessage(f"no voters, or a node twice, in {_shown(state)}")
    if not all(0 < node_id <= NODE_ID_MAX for ids in halves for node_id in ids):
        raise MalformedMessage(f"a node id that is not 1 to {NODE_ID_MAX} in {_shown(state)}")
    try:
        restore(state, lambda learner: Progress(1, Inflights(1), learner=learner))
    except ConfChangeError as error:
        raise MalformedMessage(f"{error}: {_shown(state)}") from error


def _shown(state: ConfState) -> str:
    """A configuration in a message about it, which may have any number of nodes."""
    text = describe_conf_state(state)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


def _check(config: ConfState, progress: Mapping[int, Progress]) -> None:
    for node_id in (*config.voters, *config.voters_outgoing, *config.learners, *config.learners_next):
        if node_id not in progress:
            raise ConfChangeError(f"no progress for {node_id}")
    for node_id in config.learners_next:
        if node_id not in config.voters_outgoing:
            raise ConfChangeError(f"{node_id} is in LearnersNext, but not Voters[1]")
        if progress[node_id].learner:
            raise ConfChangeError(f"{node_id} is in LearnersNext, but is already marked as learner")
    for node_id in config.learners:
        if node_id in config.voters_outgoing:
            raise ConfChangeError(f"{node_id} is in Learners and Voters[1]")
        if node_id in config.voters:
            raise ConfChangeError(f"{node_id} is in Learners and Voters[0]")
        if not progress[node_id].learner:
            raise ConfChangeError(f"{node_id} is in Learners, but is not marked as learner")
    if not config.voters_outgoing:
        if config.learners_next:
            raise ConfChangeError("cfg.LearnersNext must be nil when not joint")
        if config.auto_leave:
            raise ConfChangeError("AutoLeave must be false when not joint")
