"""A group of one to seven nodes under faults: first it must be safe, then, healed, it must make
progress.

Time is virtual and measured in units; a tick is ten of them. All events are in a single queue, and
all randomness comes from the seed. A run first elects leaders, proposes, reads and injects faults,
until there were two hundred proposals and all faults. Then everything is repaired and removed nodes
are shut down, and every member must apply a new proposal within a bounded time.
"""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from heapq import heappop
from random import Random
from typing import NamedTuple

from pixy.raft import ConfChangeV2, ConfState, RaftError
from pixy.raft.quorum import VoteResult, joint_vote_result
from tests.sim.raft.checks import RaftFailure
from tests.sim.raft.cluster import ELECTION_TICK, TICK
from tests.sim.raft.faults import Profile, draw_faults
from tests.sim.raft.replica import Replica
from tests.sim.raft.trouble import TroubledCluster

PROPOSALS = 200
DURATION = 3000
"""Latest time of a fault."""
PATIENCE = 60 * ELECTION_TICK * TICK
"""Time limit for the healed group to apply a proposal everywhere."""
EVENTS_MAX = 250_000
"""Events of a run, ten times those of a usual one: messages that provoke more and more others leave
no time to pass.
"""


class Outcome(NamedTuple):
    """Statistics of a run, by kind."""

    seed: int
    counts: Counter[str]


class Simulation(TroubledCluster):
    """One run.

    Args:
        seed: determines everything.
        skipped: numbers of faults to leave out.
        profile: focus of the run; derived from the seed if not given.
    """

    def __init__(self, seed: int, skipped: Collection[int] = (), profile: Profile | None = None) -> None:
        super().__init__(seed, profile)
        faults = draw_faults(Random(f"{seed} faults"), self.profile, DURATION)
        self.faults = [fault for fault in faults if fault.number not in skipped]
        self._events_run = 0

    def run(self) -> Outcome:
        """Run to the end.

        Raises:
            RaftFailure: a safety property was violated; the message is for a reader.
        """
        for replica in self._replicas.values():
            self._start(replica)
            self._tick(replica)
        for fault in self.faults:
            self._after(fault.at, lambda fault=fault: self._happen(fault))  # type: ignore[misc]  # mypy cannot infer the default
        self._client()
        self._reader()
        try:
            self._run_until(self._worked, 20 * DURATION, "200 proposals")
            self._heal()
            marker = self._checks.last_committed.index
            self._run_until(lambda: self._recovered(marker), PATIENCE, "progress after healing")
        except (AssertionError, RaftError) as error:
            raise RaftFailure(f"{type(error).__name__}: {error}") from error
        return Outcome(self.seed, self.counts)

    def _worked(self) -> bool:
        """True if all faults are over and enough proposals were made, or if no progress is
        possible.
        """
        if self.now <= DURATION:
            return False
        quiet = self.now > DURATION + 1000 and len(self._running()) == len(self._replicas)
        return self.counts["proposals"] >= PROPOSALS or (quiet and self._stuck())

    def _run_until(self, done: Callable[[], bool], patience: int, what: str) -> None:
        deadline = self.now + patience
        while not done():
            self.now, _, event = heappop(self._events)
            if self.now > deadline:
                raise RaftFailure(f"liveness: no {what} within {patience} units; {self._summary()}")
            self._events_run += 1
            if self._events_run > EVENTS_MAX:
                raise RaftFailure(f"liveness: no {what} within {EVENTS_MAX} events; {self._summary()}")
            event()

    # --- clients ---------------------------------------------------------------------------------

    def _client(self) -> None:
        random = self._random
        running = self._running()
        if running and (not self._healed or random.random() < 0.3):
            replica = random.choice(
                [one for one in running if one.leads] or running if random.random() < 0.7 else running
            )
            self._propose(replica)
        if self._healed:
            self._leave_joint()
        self._hand_over()
        self._after(random.randrange(2, 40), self._client)

    def _hand_over(self) -> None:
        """A leader that has removed itself accepts no proposals, and other nodes still hear from
        it: its driver must transfer the leadership.
        """
        for replica in self._running():
            assert replica.node is not None
            raft = replica.node.raft
            voters = raft.tracker.config.voters
            if (
                replica.leads
                and voters
                and replica.id not in raft.tracker.voters
                and self._random.random() < 0.2
            ):
                replica.node.transfer_leader(self._random.choice(voters))
                self._stepped(replica, replica.node)

    def _reader(self) -> None:
        running = self._running()
        if running and not self._healed:
            replica = self._random.choice(running)
            self.counts["reads"] += 1
            context = b"read %d" % self.counts["reads"]
            replica.reads[context] = self._checks.last_committed.index
            assert replica.node is not None
            replica.node.read_index(context)
            self._stepped(replica, replica.node)
        self._after(self._random.randrange(10, 120), self._reader)

    def _leave_joint(self) -> None:
        for replica in self._running():
            assert replica.node is not None
            config = replica.node.raft.tracker.config
            if replica.leads and config.voters_outgoing and not config.auto_leave:
                self._change(replica, ConfChangeV2())

    # --- healing ---------------------------------------------------------------------------------

    def _heal(self) -> None:
        self._note("*** everything is repaired")
        self._healed = True
        self._blocked.clear()
        self._lossy = 0
        self._slow_disks.clear()
        for replica in self._replicas.values():
            config = replica.config
            if not config.pre_vote and not config.check_quorum:
                # Without either option, a node that has raised its term in an outdated
                # configuration may never follow again.
                self._crash(replica)
                replica.config = replace(config, pre_vote=True, check_quorum=True)
            self._start(replica)

    def _newest(self) -> Replica:
        """The replica with the most recent configuration."""
        return max(self._replicas.values(), key=lambda replica: replica.machine.index)

    def _members(self) -> list[Replica]:
        state = self._newest().machine.conf_state
        return [
            self._replicas[node_id]
            for node_id in sorted({*state.voters, *state.voters_outgoing, *state.learners})
        ]

    def _recovered(self, marker: int) -> bool:
        """True if all members have applied an entry proposed after the repair; shuts down removed
        nodes.
        """
        members = self._members()
        for replica in members:
            self._start(replica)  # It may have been shut down and then added again.
        configs = [replica.node.raft.tracker.config for replica in members if replica.node is not None]
        for replica in self._running():
            if not any(replica.id in _named(config) for config in configs):
                self._crash(replica)
        if self._stuck():
            self.counts["elections that a removed node prevents"] += 1
            return True
        joint = any(config.voters_outgoing for config in configs)
        return not joint and all(replica.machine.index > marker for replica in members)

    def _stuck(self) -> bool:
        """True if no node can be elected although all of them are running.

        A configuration takes effect when it is applied. A leader that removes itself may apply
        that, and stop, before the others know that it is committed. They still need its vote if the
        old configuration has no majority without it, and it does not vote for a log that is behind
        its own. etcd's raft gets stuck there as well.
        """
        if any(replica.leads for replica in self._running()):
            return False
        last = {
            replica.id: replica.node.raft.log.last_position()
            for replica in self._running()
            if replica.node is not None
        }
        for replica in self._running():
            assert replica.node is not None
            tracker = replica.node.raft.tracker
            votes = {node_id: last[replica.id] >= position for node_id, position in last.items()}
            won = (
                joint_vote_result(tracker.config.voters, tracker.config.voters_outgoing, votes)
                is VoteResult.WON
            )
            if replica.id in tracker.voters and won:
                return False
        return True


def _named(config: ConfState) -> set[int]:
    return {*config.voters, *config.voters_outgoing, *config.learners}
