"""The story of figure 8 of the Raft paper: what a leader has spread is not committed, until it has
spread an entry of its own term.

    one      leads, is cut off, and takes requests that nobody else hears of
    another  is elected without these, and cut off at once; the first one is back
    one      is elected again, spreads its old entries, and is cut off; the other one is back
    another  may be elected again, and then replaces them
"""

from random import Random

from tests.sim.cluster.cluster import Cluster
from tests.sim.cluster.machine import Machine

_CUT_S = 4.0


class Figure8:
    """One such story.

    Args:
        cluster: see `Cluster`.
        raft_group: its raft group.
        rng: source of its choices.
    """

    def __init__(self, cluster: Cluster, raft_group: int, rng: Random) -> None:
        self._cluster = cluster
        self._raft_group = raft_group
        self._rng = rng
        self._one: Machine
        self._another: Machine | None = None

    def begin(self) -> None:
        """Begin with the leader of the moment, if there is one."""
        leader = self._cluster.leader(self._raft_group)
        if leader is None:
            return
        self._one = leader
        self._cut_off(leader)
        requests, is_state = (
            self._cluster.requests,
            self._raft_group in self._cluster.swarm.layout.state_groups,
        )
        for _ in range(self._rng.choice((1, 3, 6))):
            (requests.command if is_state else requests.append)(leader, self._raft_group, self._rng)
        self._cluster.checks.on_leader.append(self._elected)

    def _elected(self, machine: Machine, raft_group: int) -> None:
        if raft_group != self._raft_group:
            return
        if self._another is None and machine is not self._one:
            self._another = machine
            self._cluster.network.join(self._one.id)
            self._cut_off(machine)
        elif self._another is not None:
            self._cluster.checks.on_leader.remove(self._elected)
            if machine is self._one:
                self._cluster.scene.counts["stories of figure 8"] += 1
                self._cluster.scene.loop.outside(
                    self._rng.choice((0.003, 0.02, 0.1, 0.3)) * self._rng.random(), self._change
                )

    def _change(self) -> None:
        assert self._another is not None
        self._cluster.network.join(self._another.id)
        self._cut_off(self._one)

    def _cut_off(self, machine: Machine) -> None:
        if not self._cluster.scene.healed:
            self._cluster.network.split({machine.id}, _CUT_S)
