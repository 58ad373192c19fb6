"""A group of one to seven nodes under faults; first it must be safe, then, healed, it must make progress.

Time is virtual and counted in units; a tick is ten of them. Everything that happens is an event in one queue, and everything that is
left to chance comes from the seed. A run has three parts: nodes are elected, proposals and reads come in and faults happen, until there
were two hundred proposals and all faults; then everything is repaired, removed nodes are switched off, and every member must apply
a new proposal within a bounded time.
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from random import Random
from typing import NamedTuple

from pixy.raft import (
    ConfChangeSingle,
    ConfChangeTransition,
    ConfChangeType,
    ConfChangeV2,
    Config,
    ConfState,
    LogPosition,
    Message,
    MessageType,
    RaftError,
    RaftNode,
    Snapshot,
)
from pixy.raft.quorum import VoteResult, joint_vote_result
from pixy.raft.text import describe_message
from tests.sim.raft.checks import Checks, RaftFailure
from tests.sim.raft.faults import Fault, FaultKind, Profile, draw_faults
from tests.sim.raft.replica import Replica

__all__ = ["Outcome", "Simulation"]

TICK = 10
ELECTION_TICK = 10
PROPOSALS = 200
DURATION = 3000
"""When the last fault happens, at the latest."""
_COUNTS = {
    Profile.MIXED: [1, 2, 3, 3, 3, 3, 4, 5, 5, 5, 6, 7],
    Profile.ELECTIONS: [3, 5, 5, 6, 7],
    Profile.LEADERS: [3, 5, 5, 5],
    Profile.MEMBERSHIP: [3, 5, 5, 6, 7],
}
PATIENCE = 60 * ELECTION_TICK * TICK
"""How long the healed group may take to apply a proposal everywhere."""


class Outcome(NamedTuple):
    """What happened in a run, by kind."""

    seed: int
    counts: Counter[str]


class Simulation:
    """One run.

    Args:
        seed: everything follows from it.
        skipped: numbers of faults that are left out.
        profile: what the run is about; follows from the seed if not given.
    """

    def __init__(self, seed: int, skipped: Collection[int] = (), profile: Profile | None = None) -> None:
        self.seed = seed
        self.now = 0
        self.counts: Counter[str] = Counter()
        self._random = Random(f"{seed} work")
        chosen = self._random.choice([Profile.MIXED, *Profile])
        self.profile = profile or chosen
        faults = draw_faults(Random(f"{seed} faults"), self.profile, DURATION)
        self.faults = [fault for fault in faults if fault.number not in skipped]
        self._network = Random(f"{seed} network")
        self._delay = self._network.choice(
            [5, 12, 30] if self.profile in (Profile.ELECTIONS, Profile.LEADERS) else [3, 5, 5, 12]
        )
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self._transcript: deque[tuple[int, str | Message]] = deque(maxlen=120)
        self._checks = Checks()
        self._blocked: set[tuple[int, int]] = set()
        self._lossy = 0
        self._slow_disks: Counter[int] = Counter()
        self._pumping: set[tuple[int, int]] = set()
        self._payloads = 0
        self._healed = False
        self._replicas = self._make_replicas()

    def _make_replicas(self) -> dict[int, Replica]:
        random = self._random
        mixed = self.profile is Profile.MIXED
        count = random.choice(_COUNTS[self.profile])
        # What keeps elections rare, and who is cut off quiet, is left out where the run is about them.
        calm = 0.5 if mixed else 0.1
        check_quorum = random.random() < calm
        limit = random.choice(
            [2**64 - 1, 2**64 - 1, 0, 60, 300] if self.profile is not Profile.LEADERS else [0, 0, 60]
        )
        config = Config(
            election_tick=ELECTION_TICK,
            heartbeat_tick=random.choice([1, 2, 3]),
            max_inflight_messages=random.choice([1, 2, 4, 64]),
            max_inflight_bytes=random.choice([0, 0, 400]) if limit <= 400 else 0,
            max_size_per_message=limit,
            max_committed_size_per_ready=random.choice([0, 0, 50, 300]),
            max_uncommitted_size=random.choice([0, 0, 0, 500]),
            pre_vote=random.random() < calm,
            check_quorum=check_quorum,
            async_storage_writes=random.random() < 0.6,
            disable_proposal_forwarding=random.random() < 0.2,
            step_down_on_removal=random.random() < 0.5,
        )
        compact_after = random.choice([15, 40, 100])
        replicas = {
            node_id: Replica(
                node_id, config, Random(f"{self.seed} {node_id}"), self._checks, self._send, compact_after
            )
            for node_id in range(1, count + 1)
        }
        voters = random.randrange(max(1, count - 2), count + 1)
        if self.profile is Profile.LEADERS:
            voters = count
        elif self.profile is Profile.MEMBERSHIP:
            voters = random.randrange(2, 4)
        state = ConfState(tuple(range(1, voters + 1)))
        first = Snapshot(2, 1, state)
        self._checks.bootstrap(LogPosition(1, 2))
        for replica in replicas.values():
            if replica.id <= voters:
                replica.storage.write(None, first, [])
                replica.storage.sync()
        return replicas

    # --- events ---------------------------------------------------------------------------------------------------

    def _after(self, delay: int, event: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now + delay, self._number, event))

    def _note(self, what: str) -> None:
        self._transcript.append((self.now, what))

    def run(self) -> Outcome:
        """Runs to the end.

        Raises:
            RaftFailure: a promise was broken; the message is for a reader.
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
        """Whether all faults are over, and there was enough to do; or nothing can be done any more."""
        if self.now <= DURATION:
            return False
        quiet = self.now > DURATION + 1000 and len(self._running()) == len(self._replicas)
        return self.counts["proposals"] >= PROPOSALS or (quiet and self._stuck())

    def _run_until(self, done: Callable[[], bool], patience: int, what: str) -> None:
        deadline = self.now + patience
        while not done():
            self.now, _, event = heapq.heappop(self._events)
            if self.now > deadline:
                raise RaftFailure(f"liveness: no {what} within {patience} units; {self._summary()}")
            event()

    def _summary(self) -> str:
        parts = []
        for replica in self._replicas.values():
            if replica.node is None:
                parts.append(f"{replica.id} is down")
            else:
                raft = replica.node.raft
                parts.append(
                    f"{replica.id}: {raft.state.name} term {raft.term} lead {raft.lead} {raft.tracker.config} [{raft.log}] "
                    + " ".join(
                        [
                            f"{node_id}:({pr})"
                            for node_id, pr in raft.tracker.progress.items()
                            if replica.leads
                        ]
                    )
                )
        return "\n  ".join(parts)

    def transcript(self) -> str:
        """The last events, a line for each."""
        lines = [
            f"{at:6d} {what if isinstance(what, str) else describe_message(what)}"
            for at, what in self._transcript
        ]
        return "\n".join(lines)

    # --- nodes ----------------------------------------------------------------------------------------------------

    def _start(self, replica: Replica) -> None:
        if replica.node is None:
            self._note(f"{replica.id} starts")
            replica.start()
            self._pump_soon(replica)

    def _crash(self, replica: Replica) -> None:
        if replica.node is not None:
            self._note(f"{replica.id} crashes")
            self.counts["crashes"] += 1
            replica.crash()

    def _restart_later(self, replica: Replica, random: Random) -> None:
        def restart() -> None:
            self.counts["restarts"] += 1
            self._start(replica)

        self._after(random.randrange(5, 60 if self.profile is Profile.ELECTIONS else 400), restart)

    def _tick(self, replica: Replica) -> None:
        if replica.node is not None:
            replica.node.tick()
            self._stepped(replica, replica.node)
        self._after(TICK + self._random.randrange(-1, 2), lambda: self._tick(replica))

    def _stepped(self, replica: Replica, node: RaftNode) -> None:
        self._checks.stepped(node)
        self._pump_soon(replica)

    def _pump_soon(self, replica: Replica) -> None:
        key = (replica.id, replica.life)
        if key not in self._pumping and replica.node is not None and replica.node.has_ready():
            self._pumping.add(key)
            self._after(self._random.randrange(3), lambda: self._pump(replica, key))

    def _pump(self, replica: Replica, key: tuple[int, int]) -> None:
        self._pumping.discard(key)
        if replica.life == key[1] and replica.pump():
            self._work_soon(replica)
            self._pump_soon(replica)

    def _work_soon(self, replica: Replica) -> None:
        """The storage threads take up what is new. One after the other, each at its own pace."""
        for queue, finish in (
            (replica.appends, replica.finish_appends),
            (replica.applies, replica.finish_apply),
        ):
            key = (-replica.id if queue is replica.appends else -100 - replica.id, replica.life)
            if queue and key not in self._pumping:
                self._pumping.add(key)
                slow = self._slow_disks[replica.id] > 0
                delay = self._random.randrange(250) if slow else self._random.randrange(4)
                self._after(delay, lambda key=key, finish=finish: self._work(replica, key, finish))  # type: ignore[misc]  # as above

    def _work(self, replica: Replica, key: tuple[int, int], finish: Callable[[], None]) -> None:
        self._pumping.discard(key)
        if replica.life == key[1]:
            finish()
            self._work_soon(replica)
            self._pump_soon(replica)

    # --- network --------------------------------------------------------------------------------------------------

    def _send(self, message: Message) -> None:
        self._checks.sent(message)
        random = self._network
        copies = 1
        if self._lossy:
            chance = random.random()
            copies = 0 if chance < 0.2 else 2 if chance < 0.4 else 1
        elif not self._healed and random.random() < 0.01:
            copies = random.choice([0, 2])
        for _ in range(copies):
            delay = (
                random.randrange(1, 120) if self._lossy and random.random() < 0.3 else random.randrange(1, 5)
            )
            self._after(delay, lambda: self._deliver(message))
        if copies == 0:
            self._lost(message)

    def _deliver(self, message: Message) -> None:
        replica = self._replicas.get(message.to)
        if replica is None or replica.node is None or (message.sender, message.to) in self._blocked:
            self._lost(message)
            return
        self._transcript.append((self.now, message))
        self.counts["messages"] += 1
        try:
            replica.node.step(message)
        except RaftError:
            self.counts["refused messages"] += 1
        if message.type is MessageType.SNAP:
            self.counts["snapshots"] += 1
            self._report_snapshot(message, failed=False)
        self._stepped(replica, replica.node)

    def _lost(self, message: Message) -> None:
        self.counts["lost messages"] += 1
        if message.type is MessageType.SNAP:
            self._report_snapshot(message, failed=True)

    def _report_snapshot(self, message: Message, *, failed: bool) -> None:
        """A driver knows what became of a snapshot, if it lives that long."""
        sender = self._replicas[message.sender]
        life = sender.life

        def report() -> None:
            if sender.life == life and sender.node is not None:
                sender.node.report_snapshot(message.to, failed=failed)
                self._stepped(sender, sender.node)

        self._after(self._network.randrange(5, 60), report)

    # --- clients --------------------------------------------------------------------------------------------------

    def _running(self) -> list[Replica]:
        return [replica for replica in self._replicas.values() if replica.node is not None]

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

    def _propose(self, replica: Replica) -> None:
        payloads = []
        for _ in range(self._random.choice([1, 1, 1, 2, 5])):
            self._payloads += 1
            payloads.append(b"%d " % self._payloads + b"." * self._random.randrange(60))
        if replica.node is not None:
            try:
                replica.node.propose(*payloads)
                self.counts["proposals"] += len(payloads)
            except RaftError:
                self.counts["dropped proposals"] += len(payloads)
            self._stepped(replica, replica.node)

    def _hand_over(self) -> None:
        """A leader that removed itself takes no proposals, and others hear of it: its driver must make it hand over."""
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

    def _change(self, replica: Replica, change: ConfChangeV2) -> None:
        assert replica.node is not None
        try:
            replica.node.propose_conf_change(change)
            self.counts["membership changes"] += 1
        except RaftError:
            self.counts["dropped membership changes"] += 1
        self._stepped(replica, replica.node)

    # --- faults ---------------------------------------------------------------------------------------------------

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
                replica.pump(crash_before_sending=True)
            self._crash(replica)
            self._restart_later(replica, random)

    def _race(self, running: list[Replica], random: Random) -> None:
        """Several campaign at the same time; somebody else crashes meanwhile and is back at once."""

        def crash(replica: Replica) -> None:
            self._crash(replica)
            self._after(random.randrange(1, 8), lambda: self._start(replica))

        for replica in random.sample(running, min(len(running), random.randrange(2, 4))):
            self._after(random.randrange(6), lambda replica=replica: self._campaign(replica))  # type: ignore[misc]  # as above
        if running and random.random() < 0.7:
            unlucky = random.choice(running)
            self._after(random.randrange(12), lambda: crash(unlucky))

    def _campaign(self, replica: Replica) -> None:
        if replica.node is not None:
            replica.node.campaign()
            self._stepped(replica, replica.node)

    def _depose(self, leaders: list[Replica], random: Random) -> None:
        """Raft figure 8: entries that are on a minority survive their leader, or not."""
        others = [replica for replica in self._running() if not replica.leads]
        if not leaders or not others:
            return
        leader, follower = random.choice(leaders), random.choice(others)
        self._cut_off({leader.id, follower.id}, random.randrange(40, 120))
        if random.random() < 0.6:
            # Then the follower still writes what it got when other entries come in its place.
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
        """Raft figure 8: an entry of an old term reaches a majority under a newer leader, and is still not safe."""
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
        """Raft §6: old and new members must not decide without each other while both configurations are in force."""
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
        """Goes on with a story as soon as what it waits for has happened; gives up after a while."""
        waits_for = next(story, None)

        def look(left: int) -> None:
            if waits_for is None or left == 0:
                return
            if waits_for():
                self._play(story)
            else:
                self._after(1, lambda: look(left - 1))

        look(patience)

    def _cut_off(self, side: set[int], duration: int, *, one_way: bool = False) -> None:
        ids = list(self._replicas)
        cut = {(one, other) for one in ids for other in ids if (one in side) != (other in side)}
        if one_way:
            cut = {(one, other) for one, other in cut if one in side}
        self._note(f"    {sorted(side)} cut off")
        self._blocked |= cut
        self._after(duration, lambda: self._blocked.difference_update(cut))

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
                # A group cannot lose its last voter; a driver does not ask for it.
                changes.append(ConfChangeSingle(ConfChangeType.ADD_NODE, replica.id))
            self._change(replica, ConfChangeV2(tuple(changes), random.choice(list(ConfChangeTransition))))

    def _operate(
        self, kind: FaultKind, running: list[Replica], leaders: list[Replica], random: Random
    ) -> None:
        chosen = leaders if kind in (FaultKind.TRANSFER, FaultKind.UNREACHABLE) else running
        if not chosen:
            return
        replica = random.choice(chosen)
        other = random.choice(list(self._replicas))
        assert replica.node is not None
        if kind is FaultKind.TRANSFER:
            replica.node.transfer_leader(other)
        elif kind is FaultKind.UNREACHABLE:
            replica.node.report_unreachable(other)
        elif kind is FaultKind.CAMPAIGN:
            replica.node.campaign()
        else:
            replica.node.forget_leader()
        self._stepped(replica, replica.node)

    # --- healing --------------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        self._note("*** everything is repaired")
        self._healed = True
        self._blocked.clear()
        self._lossy = 0
        self._slow_disks.clear()
        for replica in self._replicas.values():
            config = replica.config
            if not config.pre_vote and not config.check_quorum:
                # Without either, a node that raised its term in an outdated configuration may never follow again.
                self._crash(replica)
                replica.config = replace(config, pre_vote=True, check_quorum=True)
            self._start(replica)

    def _newest(self) -> Replica:
        """Who knows best who the members are."""
        return max(self._replicas.values(), key=lambda replica: replica.machine.index)

    def _members(self) -> list[Replica]:
        state = self._newest().machine.conf_state
        return [
            self._replicas[node_id]
            for node_id in sorted({*state.voters, *state.voters_outgoing, *state.learners})
        ]

    def _recovered(self, marker: int) -> bool:
        """Whether all members have applied something that was proposed after the repair; removed nodes are switched off."""
        members = self._members()
        for replica in members:
            self._start(replica)  # It may have been switched off and then taken in again.
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
        """Whether no node can be elected although all are there.

        A configuration is in force when it is applied. A leader that removes itself may apply that, and be gone, before the others
        know that it is committed. They still need its vote if the old configuration has no majority without it; and it does not give
        it to a log that is behind its own. etcd's raft is stuck there as well.
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
