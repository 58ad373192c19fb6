"""Current configuration, the progress of its nodes, and the votes of an election.

The configuration is a `ConfState`: stored and used in the same form. `progress` has exactly the
nodes of the configuration, in ascending order of their ids.
"""

from pixy.raft.messages import ConfState
from pixy.raft.progress import Progress, ProgressState
from pixy.raft.quorum import VoteResult, joint_committed_index, joint_vote_result


def voter_ids(config: ConfState) -> tuple[int, ...]:
    """Voters of both halves, ascending."""
    if not config.voters_outgoing:
        return config.voters
    return tuple(sorted({*config.voters, *config.voters_outgoing}))


class Tracker:
    """Members of a group."""

    __slots__ = ("config", "progress", "voters", "votes")

    def __init__(self, config: ConfState, progress: dict[int, Progress]) -> None:
        # Votes of the current election by node. Only the first vote of a node counts. None while
        # there are none.
        self.votes: dict[int, bool] | None = None
        self.switch(config, progress)

    def switch(self, config: ConfState, progress: dict[int, Progress]) -> None:
        """Switch to another configuration."""
        self.config = config
        self.progress = progress
        self.voters = voter_ids(config)

    def committed(self) -> int:
        """Highest index stored by a quorum (Raft §5.3; joint configuration: §6)."""
        progress = self.progress
        config = self.config
        if config.voters_outgoing or not config.voters:
            return joint_committed_index(config.voters, config.voters_outgoing, self._match)
        if len(config.voters) == 1:
            return progress[config.voters[0]].match
        indexes = sorted([progress[voter].match for voter in config.voters])
        return indexes[(len(indexes) - 1) // 2]

    def _match(self, node_id: int) -> int:
        return self.progress[node_id].match

    def is_only_voter(self, node_id: int) -> bool:
        """True if this node decides alone."""
        return self.voters == (node_id,)

    def quorum_active(self) -> bool:
        """True if a quorum was active since the last check (thesis §6.2)."""
        active = {node_id: pr.recently_active for node_id, pr in self.progress.items() if not pr.learner}
        return joint_vote_result(self.config.voters, self.config.voters_outgoing, active) is VoteResult.WON

    def record_vote(self, node_id: int, granted: bool) -> None:
        """Record a node's vote, unless it has voted before."""
        if self.votes is None:
            self.votes = {}
        self.votes.setdefault(node_id, granted)

    def tally(self) -> tuple[int, int, VoteResult]:
        """Number of granted and of refused votes, and the outcome."""
        votes = self.votes or {}
        cast = [
            votes[node_id] for node_id, pr in self.progress.items() if not pr.learner and node_id in votes
        ]
        granted = sum(cast)
        result = joint_vote_result(self.config.voters, self.config.voters_outgoing, votes)
        return granted, len(cast) - granted, result

    def check_invariants(self) -> None:
        """Assert the documented invariants."""
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
