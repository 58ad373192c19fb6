"""The configuration in force, what is known of each of its nodes, and the votes of an election.

The configuration is a `ConfState`: the form in which it is stored is also the form in which it is used. `progress` has
exactly the nodes that the configuration names, in ascending order of their ids.
"""

from pixy.raft.messages import ConfState
from pixy.raft.progress import Progress, ProgressState
from pixy.raft.quorum import VoteResult, joint_committed_index, joint_vote_result

__all__ = ["Tracker", "voter_ids"]


def voter_ids(config: ConfState) -> tuple[int, ...]:
    """The voters of both halves, ascending."""
    if not config.voters_outgoing:
        return config.voters
    return tuple(sorted({*config.voters, *config.voters_outgoing}))


class Tracker:
    """The members of a group."""

    __slots__ = ("config", "progress", "voters", "votes")

    def __init__(self, config: ConfState, progress: dict[int, Progress]) -> None:
        # Who has voted in the election under way, and how. Only a node's first vote counts. None while nobody has.
        self.votes: dict[int, bool] | None = None
        self.switch(config, progress)

    def switch(self, config: ConfState, progress: dict[int, Progress]) -> None:
        """Puts another configuration in force."""
        self.config = config
        self.progress = progress
        self.voters = voter_ids(config)

    def committed(self) -> int:
        """The largest index that is stored by a quorum (Raft §5.3, in a joint configuration §6)."""
        progress = self.progress
        config = self.config
        if config.voters_outgoing or not config.voters:
            return joint_committed_index(config.voters, config.voters_outgoing, self._match)
        indexes = sorted([progress[voter].match for voter in config.voters])
        return indexes[(len(indexes) - 1) // 2]

    def _match(self, node_id: int) -> int:
        return self.progress[node_id].match

    def is_only_voter(self, node_id: int) -> bool:
        """Whether this node decides alone."""
        return self.voters == (node_id,)

    def quorum_active(self) -> bool:
        """Whether a quorum was heard of since the last check (thesis §6.2)."""
        active = {node_id: pr.recently_active for node_id, pr in self.progress.items() if not pr.learner}
        return joint_vote_result(self.config.voters, self.config.voters_outgoing, active) is VoteResult.WON

    def record_vote(self, node_id: int, granted: bool) -> None:
        """Notes how a node voted, unless it did before."""
        if self.votes is None:
            self.votes = {}
        self.votes.setdefault(node_id, granted)

    def tally(self) -> tuple[int, int, VoteResult]:
        """How many granted, how many refused, and what that amounts to."""
        votes = self.votes or {}
        cast = [
            votes[node_id] for node_id, pr in self.progress.items() if not pr.learner and node_id in votes
        ]
        granted = sum(cast)
        result = joint_vote_result(self.config.voters, self.config.voters_outgoing, votes)
        return granted, len(cast) - granted, result

    def check_invariants(self) -> None:
        """Raises AssertionError if the fields contradict each other."""
        config = self.config
        named = {*self.voters, *config.learners, *config.learners_next}
        assert named == set(self.progress), (
            f"progress of {sorted(self.progress)}, configuration names {sorted(named)}"
        )
        assert list(self.progress) == sorted(self.progress)
        for node_id, pr in self.progress.items():
            assert pr.learner == (node_id in config.learners), f"{node_id} is a learner in one place only"
            assert pr.match < pr.next, f"match {pr.match} of {node_id} is not below next {pr.next}"
            assert (pr.pending_snapshot > 0) <= (pr.state is ProgressState.SNAPSHOT)
            assert pr.inflights.count == 0 or pr.state is ProgressState.REPLICATE
