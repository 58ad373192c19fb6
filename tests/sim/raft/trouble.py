"""Carries out the scheduled faults and operator actions."""

from collections.abc import Callable, Iterator
from random import Random

from pixy.raft import ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2
from tests.sim.raft.cluster import Cluster
from tests.sim.raft.faults import Fault, FaultKind, Profile
from tests.sim.raft.replica import Replica


class TroubledCluster(Cluster):
    """A cluster with faults."""

    def _happen(self, fault: Fault) -> None:
        random = Random(fault.seed)
        self._note(f"*** {fault.kind.value} (fault {fault.number})")
        self.counts[fault.kind.value] += 1
        self.counts["faults"] += fault.kind.breaks
        running = self._running()
        leaders = [replica for replica in running if replica.leads]
        match fault.kind:
            case FaultKind.CRASH | FaultKind.CRASH_MAJORITY | FaultKind.CRASH_IN_WRITE:
                self._crash_some(fault.kind, running, leaders, random)
            case FaultKind.PARTITION | FaultKind.ONE_WAY | FaultKind.ISOLATE_LEADER:
                self._partition(fault.kind, leaders, random)
            case FaultKind.LOSSY:
                self._lossy += 1
                self._after(random.randrange(50, 500), self._end_lossy)
            case FaultKind.SLOW_DISK:
                slow = random.choice(leaders or list(self._replicas.values())).id
                self._slow_disks[slow] += 1
                self._after(random.randrange(50, 800), lambda: self._slow_disks.subtract([slow]))
            case FaultKind.RACE:
                self._race(running, random)
            case FaultKind.DEPOSE:
                self._depose(leaders, random)
            case FaultKind.FIGURE_8:
                self._play(self._figure_8(leaders, random))
            case FaultKind.SPLIT_JOINT:
                self._play(self._split_joint(leaders, random))
            case FaultKind.MEMBERSHIP:
                self._change_membership(leaders, random)
            case _:
                self._operate(fault.kind, running, leaders, random)

    def _crash_some(
        self, kind: FaultKind, running: list[Replica], leaders: list[Replica], random: Random
    ) -> None:
        count = len(self._replicas) // 2 + 1 if kind is FaultKind.CRASH_MAJORITY else 1
        candidates = leaders if leaders and count == 1 and random.random() < 0.5 else running
        for replica in random.sample(candidates, min(count, len(candidates))):
            if kind is FaultKind.CRASH_IN_WRITE:
                replica.pump()
                replica.write()
            self._crash(replica)
            self._restart_later(replica, random)

    def _race(self, running: list[Replica], random: Random) -> None:
        """Several nodes campaign concurrently, while another one crashes and restarts."""

        def crash(replica: Replica) -> None:
            self._crash(replica)
            self._after(random.randrange(1, 8), lambda: self._start(replica))

        for replica in random.sample(running, min(len(running), random.randrange(2, 4))):
            self._after(random.randrange(6), lambda replica=replica: self._campaign(replica))  # type: ignore[misc]  # as above
        if running and random.random() < 0.7:
            unlucky = random.choice(running)
            self._after(random.randrange(12), lambda: crash(unlucky))

    def _depose(self, leaders: list[Replica], random: Random) -> None:
        """Raft figure 8: entries on a minority may or may not survive their leader."""
        others = [replica for replica in self._running() if not replica.leads]
        if not leaders or not others:
            return
        leader, follower = random.choice(leaders), random.choice(others)
        self._cut_off({leader.id, follower.id}, random.randrange(40, 120))
        if random.random() < 0.6:
            # So that the follower is still writing them when other entries replace them.
            self._slow_disks[follower.id] += 1
            self._after(300, lambda: self._slow_disks.subtract([follower.id]))
        for _ in range(random.randrange(3)):
            self._propose(leader)
        self._after(random.randrange(10, 40), lambda: self._crash(leader))
        self._after(random.randrange(40, 80), lambda: self._start(leader))
        successor = random.choice([replica for replica in others if replica is not follower] or others)
        self._after(random.randrange(15, 60), lambda: self._campaign(successor))
        if random.random() < 0.7:
            self._after(random.randrange(80, 200), lambda: self._campaign(random.choice([leader, follower])))

    def _figure_8(self, leaders: list[Replica], random: Random) -> Iterator[Callable[[], bool]]:
        """Raft figure 8: an entry of an old term reaches a majority under a newer leader, and is
        still not safe.
        """
        first = leaders[0] if leaders else None
        others = [replica for replica in self._running() if replica is not first]
        if first is None or first.node is None or len(others) < 4:
            return
        second, third, fourth, fifth = random.sample(others, 4)
        self._cut_off({first.id, second.id}, 400)
        self._propose(first)
        index = first.node.raft.log.last_index()
        yield lambda: second.node is not None and second.node.raft.log.last_index() >= index
        self._campaign(fifth)
        yield lambda: fifth.leads
        self._blocked.clear()
        self._cut_off({fifth.id}, 400)
        self._crash(first)
        self._start(first)
        self._campaign(first)
        yield lambda: first.leads
        yield lambda: first.node is not None and first.node.raft.log.committed >= index
        self._blocked.clear()
        self._cut_off({first.id, second.id}, 300)
        self._note(f"    {third.id} and {fourth.id} decide")
        self._crash(fifth)
        self._start(fifth)
        for delay in (1, 70, 140):
            self._after(delay, lambda: self._campaign(fifth))

    def _split_joint(self, leaders: list[Replica], random: Random) -> Iterator[Callable[[], bool]]:
        """Raft §6: old and new members must not decide independently while both configurations are
        in effect.
        """
        leader = leaders[0] if leaders else None
        if leader is None or leader.node is None:
            return
        config = leader.node.raft.tracker.config
        old = [node_id for node_id in config.voters if node_id != leader.id]
        new = [node_id for node_id in self._replicas if node_id not in config.voters]
        if config.voters_outgoing or len(old) < 2 or not new:
            return
        changes = [ConfChangeSingle(ConfChangeType.ADD_NODE, node_id) for node_id in new]
        changes += [ConfChangeSingle(ConfChangeType.REMOVE_NODE, node_id) for node_id in old]
        self._change(leader, ConfChangeV2(tuple(changes), ConfChangeTransition.JOINT_EXPLICIT))
        node = leader.node
        yield lambda: bool(node.raft.tracker.config.voters_outgoing)
        self._cut_off(set(old), 400)
        successor = self._replicas[random.choice(old)]
        for delay in (20, 90, 160):
            self._after(delay, lambda: self._campaign(successor))

    def _play(self, story: Iterator[Callable[[], bool]], patience: int = 300) -> None:
        """Resume a scenario once its condition is met; give up after a while."""
        waits_for = next(story, None)

        def look(left: int) -> None:
            if waits_for is None or left == 0:
                return
            if waits_for():
                self._play(story)
            else:
                self._after(1, lambda: look(left - 1))

        look(patience)

    def _partition(self, kind: FaultKind, leaders: list[Replica], random: Random) -> None:
        ids = list(self._replicas)
        side = set(random.sample(ids, random.randrange(1, len(ids) // 2 + 2)))
        if kind is FaultKind.ISOLATE_LEADER and leaders:
            side = {random.choice(leaders).id}
        self._cut_off(side, random.randrange(50, 700), one_way=kind is FaultKind.ONE_WAY)

    def _end_lossy(self) -> None:
        self._lossy = max(0, self._lossy - 1)

    def _change_membership(self, leaders: list[Replica], random: Random) -> None:
        for replica in leaders:
            assert replica.node is not None
            config = replica.node.raft.tracker.config
            if config.voters_outgoing and not config.auto_leave and random.random() < 0.7:
                self._change(replica, ConfChangeV2())
                continue
            kinds = [
                ConfChangeType.ADD_NODE,
                ConfChangeType.ADD_NODE,
                ConfChangeType.REMOVE_NODE,
                ConfChangeType.ADD_LEARNER_NODE,
            ]
            most = min(3 if self.profile is Profile.MIXED else 6, len(self._replicas))
            ids = random.sample(list(self._replicas), random.randrange(1, most + 1))
            changes = [ConfChangeSingle(random.choice(kinds), node_id) for node_id in ids]
            voters = set(config.voters) | {one for kind, one in changes if kind is ConfChangeType.ADD_NODE}
            voters -= {one for kind, one in changes if kind is not ConfChangeType.ADD_NODE}
            if not voters:
                # A group cannot lose its last voter; a driver does not propose that.
                changes.append(ConfChangeSingle(ConfChangeType.ADD_NODE, replica.id))
            self._change(replica, ConfChangeV2(tuple(changes), random.choice(list(ConfChangeTransition))))

    def _operate(
        self, kind: FaultKind, running: list[Replica], leaders: list[Replica], random: Random
    ) -> None:
        chosen = leaders if kind is FaultKind.TRANSFER else running
        if not chosen:
            return
        replica = random.choice(chosen)
        other = random.choice(list(self._replicas))
        assert replica.node is not None
        if kind is FaultKind.TRANSFER:
            replica.node.transfer_leader(other)
        elif kind is FaultKind.CAMPAIGN:
            replica.node.campaign()
        else:
            replica.node.forget_leader()
        self._stepped(replica, replica.node)
