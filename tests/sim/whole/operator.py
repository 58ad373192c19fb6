"""The operator of the simulated cluster: adds machines, replaces disks, and has nodes forgotten or
removed.

At most one machine of a run is damaged for good, and only once every raft group has the members to
do without it: so whatever goes wrong then is the fault of the nodes.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from pixy.backend import EmbeddedBackend
from pixy.errors import NotFound
from tests.sim.disk import SimulatedDisk
from tests.sim.kit.durable import DurableJournal
from tests.sim.whole.calls import Call, Outcome
from tests.sim.whole.cluster import Cluster
from tests.sim.whole.machine import Machine
from tests.sim.whole.swarm import MACHINES_MAX
from tests.sim.whole.watches import groups_of

_PATIENCE_S = 8.0
_ADMITTED_S = 6.0
"""Time after which a node that is not admitted is an older self, or a copy."""
_VOTERS = 3
_FOR_GOOD_S = 1e6
_DOUBT_S = 30.0
_STAYS_S_MAX = 10.0
"""Longest time for which a removed node runs; half of them end at once."""


class Operator:
    """Actions on one cluster.

    Args:
        cluster: see `Cluster`.

    Attributes:
        damaged: the machine that was damaged for good; None: there may be one yet.
        has_lowered: topics may have fewer than three replicas: no machine is damaged for good.
        in_doubt: nodes whose removal has no known outcome: it may take effect yet, so it is asked
            for until it has, or cannot any more; each with the time of the last such call.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._scene = cluster.scene
        self.damaged: Machine | None = None
        self.has_lowered = False
        self.in_doubt: dict[int, float] = {}

    # --- machines ---------------------------------------------------------------------------------

    def add(self) -> None:
        """Start a new node."""
        number = max(self._cluster.machines) + 1
        if number <= MACHINES_MAX:
            self._cluster.switch_on(self._cluster.add(number))

    def spare(self, rng: Random) -> Machine | None:
        """A machine that may be damaged for good, None if there is none."""
        if self.damaged is not None or self.has_lowered or self._scene.healed:
            return None
        chosen = rng.choice(list(self._cluster.ordinary()))
        if not chosen.ready or not self._can_do_without(chosen):
            return None
        self.damaged = chosen
        return chosen

    def _can_do_without(self, machine: Machine) -> bool:
        """True if every raft group with a member there has three voters, and no other machine is
        down.
        """
        cluster = self._cluster
        if not all(each.ready for each in cluster.ordinary()):
            return False
        assert machine.node is not None
        node_id = machine.node.node_id
        for raft_group in cluster.raft_groups():
            leader = cluster.leader(raft_group)
            if leader is None:
                return False
            state = groups_of(leader)[raft_group].storage.conf_state
            if node_id in (*state.voters, *state.learners) and len(state.voters) < _VOTERS:
                return False
        topics = [
            topic for each in cluster.ordinary() if each.node for topic in each.node.metadata.topics.values()
        ]
        return all(
            len(replicas) >= _VOTERS for topic in topics for replicas in topic.replicas if node_id in replicas
        )

    def break_one(self) -> Machine | None:
        """Have a machine stay deaf, mute, slow, paused or down for good; None if all are needed."""
        rng = self._scene.random("broken for good")
        machine = self.damaged = self.damaged or rng.choice(list(self._cluster.ordinary()))
        if self.has_lowered or machine.suspect or not machine.ready or not self._can_do_without(machine):
            return None
        machine.broken = True
        others = [each.host for each in self._cluster.ordinary() if each is not machine]
        to, back = [(machine.host, other) for other in others], [(other, machine.host) for other in others]
        how = rng.choice(("deaf", "mute", "slow", "paused", "down"))
        self._scene.note(f"{machine.number} is {how} for good")
        self._scene.counts[f"{how} for good"] += 1
        match how:
            case "deaf":
                self._cluster.network.cut(back, _FOR_GOOD_S)
            case "mute":
                self._cluster.network.cut(to, _FOR_GOOD_S)
            case "slow":
                machine.slow_s = 20.0
            case "paused":
                machine.pause(_FOR_GOOD_S)
            case _:
                machine.end(power=rng.random() < 0.5)
        return machine

    # --- disks ------------------------------------------------------------------------------------

    def lose_disk(self, machine: Machine) -> None:
        """A machine gets an empty disk; its node is forgotten, and a new one joins."""
        identity = machine.identity
        self.empty(machine)
        self._scene.loop.outside(1.0, self._cluster.switch_on, machine)
        if identity is not None and identity.node_id:
            self.forget(identity.node_id)

    def empty(self, machine: Machine) -> None:
        """Give a machine an empty disk."""
        machine.end(power=True)
        rng = self._scene.random(f"disk of {machine.number}, {machine.lives}")
        machine.put_back(SimulatedDisk(Random(rng.random())), None)
        machine.suspect, machine.emptied, machine.noted_ms = False, True, None
        self._scene.note(f"{machine.number} has an empty disk")

    def put_back(self, machine: Machine, disk: SimulatedDisk, durable: DurableJournal | None) -> None:
        """A machine gets an older copy of its disk, while the nodes reach each other: those that
        have not heard of its newest flushes would take it for what it was, and might be a majority
        with it.
        """
        if self._scene.healed or not self._all_reached():
            return
        machine.end(power=True)
        machine.put_back(disk, durable)
        self._scene.note(f"{machine.number} is put back from a copy")
        self.look_after(machine)
        self._cluster.switch_on(machine)

    def look_after(self, machine: Machine) -> None:
        """Give a machine an empty disk unless its node is admitted soon. Until then it may refuse
        to start.
        """
        machine.suspect = True
        self._scene.loop.outside(_ADMITTED_S, self._replace_unless_admitted, machine)

    def _replace_unless_admitted(self, machine: Machine) -> None:
        if machine.ready:
            machine.suspect = False
            self._scene.counts["copies admitted"] += 1
        elif self._cluster.leader() in (None, machine):
            self.look_after(machine)
        else:
            self._scene.counts["copies refused"] += 1
            self.lose_disk(machine)

    def twin(self, machine: Machine, disk: SimulatedDisk) -> None:
        """Start a copy of a machine's disk on another one, while the nodes reach each other: those
        that do not reach the first one would take the copy for it, and might be a majority with it.
        """
        if self._scene.healed or not self._all_reached():
            return
        number = max(self._cluster.machines) + 1
        copy = self._cluster.add(number)
        copy.put_back(disk, None)
        copy.suspect = True
        self._cluster.switch_on(copy)
        end = partial(self._end_twin, copy, machine)
        self._cluster.network.on_cut.append(end)
        self._scene.loop.outside(_ADMITTED_S, end)

    def _end_twin(self, copy: Machine, machine: Machine) -> None:
        if copy.retired or machine.retired:
            return
        if copy.ready:  # it was admitted, while the other one could not be reached
            copy, machine = machine, copy
        copy.retired = True
        copy.end(power=True)
        self.look_after(machine)

    def _all_reached(self) -> bool:
        """Each node is connected to every other one."""
        machines = [each for each in self._cluster.machines.values() if not each.retired]
        if self._cluster.network.has_cuts or not all(each.ready for each in machines):
            return False
        nodes = [each.node for each in machines if each.node is not None and not each.stranger]
        reached = [node.peers.members.is_up for node in nodes if node.peers is not None]
        return all(reaches(node.node_id) for reaches in reached for node in nodes)

    # --- calls ------------------------------------------------------------------------------------

    def forget(self, node_id: int) -> None:
        """Have a lost node forgotten, tried again until it is."""
        self._call("forget node", node_id, lambda backend: backend.forget_node(node_id))

    def remove(self, machine: Machine) -> None:
        """Have a node removed, and its machine retired once it is."""
        assert machine.node is not None
        node_id = machine.node.node_id

        def removed() -> None:
            machine.retired = True
            stays_s = max(0.0, self._scene.random(f"remove {node_id}").uniform(-_STAYS_S_MAX, _STAYS_S_MAX))
            self._scene.loop.outside(stays_s, partial(machine.end, power=False))

        self._call("remove node", node_id, lambda backend: backend.remove_node(node_id), removed)

    def least_replication(self) -> int:
        """Replicas that a topic may be lowered to: a machine that is damaged for good needs three,
        and none is damaged from then on.
        """
        if self.damaged is not None or self._scene.healed:
            return _VOTERS
        self.has_lowered = True
        return 1

    def drain(self, node_id: int, duration_s: float) -> None:
        """Have a node give its replicas away, and take some again later."""
        self._set_draining(node_id, draining=True)
        self._scene.loop.outside(duration_s, partial(self._set_draining, node_id, draining=False))

    def _set_draining(self, node_id: int, *, draining: bool) -> None:
        ready = [each for each in self._cluster.ordinary() if each.ready]

        def ended(call: Call) -> None:
            is_over = call.outcome is Outcome.OK or isinstance(call.answer, NotFound)
            if not draining and not is_over:
                self._scene.loop.outside(1.0, partial(self._set_draining, node_id, draining=False))

        if not ready:
            self._scene.loop.outside(1.0, partial(self._set_draining, node_id, draining=False))
            return
        machine = ready[self._scene.random(f"drain {self._scene.now}").randrange(len(ready))]
        call = self._cluster.calls.begin(
            "operator", machine, "drain" if draining else "undrain", node_id, _PATIENCE_S, ended
        )
        self._cluster.calls.ask(
            call, lambda backend: backend._node.commands.drain_node(node_id, draining=draining)
        )

    def _call(
        self,
        what: str,
        node_id: int,
        ask: Callable[[EmbeddedBackend], Any],
        done: Callable[[], None] = lambda: None,
    ) -> None:
        def ended(call: Call) -> None:
            if call.outcome is Outcome.OK or isinstance(call.answer, NotFound):
                self.in_doubt.pop(node_id, None)
                done()
                return
            doubted = self.in_doubt.get(node_id)
            if what == "remove node" and call.outcome is Outcome.UNKNOWN:
                self.in_doubt[node_id] = self._scene.now
            elif doubted is not None and not self._scene.healed:
                self.in_doubt[node_id] = self._scene.now  # it may be with a process that is paused
            elif doubted is not None and self._scene.now > doubted + _DOUBT_S:
                # None takes effect any more. Later ones may be refused for good, while clocks are
                # wrong, or a replica waits for a copy.
                del self.in_doubt[node_id]
            if what == "forget node" or node_id in self.in_doubt:
                self._scene.loop.outside(1.0, again)

        def again() -> None:
            ready = [each for each in self._cluster.ordinary() if each.ready]
            others = [each for each in ready if each.node is not None and each.node.node_id != node_id]
            if not others:
                self._scene.loop.outside(1.0, again)
                return
            machine = others[self._scene.random(f"operator {self._scene.now}").randrange(len(others))]
            call = self._cluster.calls.begin("operator", machine, what, node_id, _PATIENCE_S, ended)
            self._cluster.calls.ask(call, ask)

        again()
