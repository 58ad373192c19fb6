"""Nodes, their clocks, disks and threads, and the network between them, on virtual time.

Time is measured in units; a tick is about ten of them. All events are in a single queue, and all
randomness comes from the seed. Faults are in `trouble`, requirements in `simulation`.
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable
from random import Random

from pixy.entry_ids import ProposalId
from pixy.raft import (
    NONE,
    ConfChangeV2,
    ConfState,
    LogPosition,
    Message,
    MessageType,
    NotAppended,
    RaftConfig,
    RaftError,
    RaftNode,
    Snapshot,
    StateType,
)
from tests.raft.etcd.text import describe_message
from tests.sim.raft.checks import Checks
from tests.sim.raft.faults import Profile
from tests.sim.raft.replica import Replica, ReplicaOptions

TICK = 10
ELECTION_TICK = 10
_COUNTS = {
    Profile.MIXED: [1, 2, 3, 3, 3, 3, 4, 5, 5, 5, 6, 7],
    Profile.ELECTIONS: [3, 5, 5, 6, 7],
    Profile.LEADERS: [3, 5, 5, 5],
    Profile.MEMBERSHIP: [3, 5, 5, 6, 7],
}


class Cluster:
    """A group, and the operations on it.

    Args:
        seed: determines everything.
        profile: focus of the run; derived from the seed if not given.
    """

    def __init__(self, seed: int, profile: Profile | None = None) -> None:
        self.seed = seed
        self.now = 0
        self.counts: Counter[str] = Counter()
        self._random = Random(f"{seed} work")
        chosen = self._random.choice([Profile.MIXED, *Profile])
        self.profile = profile or chosen
        self._network = Random(f"{seed} network")
        self._snapshots = Random(f"{seed} snapshots")
        self._loads = Random(f"{seed} memory")
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
        # Settings that make elections rare, or isolated nodes quiet, are off in runs that focus on
        # them.
        calm = 0.5 if mixed else 0.1
        check_quorum = random.random() < calm
        limit = random.choice(
            [2**64 - 1, 2**64 - 1, 0, 60, 300] if self.profile is not Profile.LEADERS else [0, 0, 60]
        )
        config = RaftConfig(
            election_tick=ELECTION_TICK,
            heartbeat_tick=random.choice([1, 2, 3]),
            max_inflight_messages=random.choice([1, 2, 4, 64]),
            max_inflight_bytes=random.choice([0, 0, 400]) if limit <= 400 else 0,
            max_size_per_message=limit,
            pre_vote=random.random() < calm,
            check_quorum=check_quorum,
            disable_proposal_forwarding=random.random() < 0.2,
            step_down_on_removal=random.random() < 0.5,
            defer_snapshots=self._snapshots.random() < 0.5,
        )
        stores_conf_state = self._snapshots.random() < 0.5
        cold = self._loads if self._loads.random() < 0.5 else None
        short_way = Random(f"{self.seed} short way").random() < 0.5
        options = ReplicaOptions(config, short_way, random.choice([15, 40, 100]), stores_conf_state, cold)
        replicas = {
            node_id: Replica(
                node_id,
                options,
                Random(f"{self.seed} {node_id}"),
                self._checks,
                self._send,
                self._fetch,
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

    # --- events ----------------------------------------------------------------------------------

    def _after(self, delay: int, event: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now + delay, self._number, event))

    def _note(self, what: str) -> None:
        self._transcript.append((self.now, what))

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
        """The last events, one per line."""
        lines = [
            f"{at:6d} {what if isinstance(what, str) else describe_message(what)}"
            for at, what in self._transcript
        ]
        return "\n".join(lines)

    # --- nodes -----------------------------------------------------------------------------------

    def _start(self, replica: Replica) -> None:
        if replica.node is None:
            self._note(f"{replica.id} starts")
            self.counts["restarts"] += replica.life > 0
            replica.start()
            self._pump_soon(replica)

    def _crash(self, replica: Replica) -> None:
        if replica.node is not None:
            self._note(f"{replica.id} crashes")
            self.counts["crashes"] += 1
            replica.crash()

    def _restart_later(self, replica: Replica, random: Random) -> None:
        self._after(
            random.randrange(5, 60 if self.profile is Profile.ELECTIONS else 400),
            lambda: self._start(replica),
        )

    def _tick(self, replica: Replica) -> None:
        if replica.node is not None:
            replica.node.tick()
            self._stepped(replica, replica.node)
        self._after(TICK + self._random.randrange(-1, 2), lambda: self._tick(replica))

    def _stepped(self, replica: Replica, node: RaftNode) -> None:
        self._checks.stepped(node)
        self._pump_soon(replica)

    def _pump_soon(self, replica: Replica) -> None:
        self._load_soon(replica)
        key = (replica.id, replica.life)
        if key not in self._pumping and replica.node is not None:
            self._pumping.add(key)
            self._after(self._random.randrange(3), lambda: self._pump(replica, key))

    def _load_soon(self, replica: Replica) -> None:
        """Schedule the load of entries that were asked for and are not in memory, and the creation
        of a snapshot.
        """
        if replica.node is None:
            return
        life, raft = replica.life, replica.node.raft
        if replica.storage.wants_snapshot:
            replica.storage.wants_snapshot = False
            self.counts["snapshots that are not ready"] += 1
            self._after(self._loads.choice([1, 20, 100]), lambda: self._snapshot_created(replica, life))
        if not replica.storage.wanted:
            return
        peers = sum(pr.awaits_storage for pr in raft.tracker.progress.values())
        self.counts["sends that wait for entries"] += peers
        self.counts["hand-outs that wait for entries"] += raft.log.applying_awaits_entries
        self.counts["campaigns that wait for entries"] += raft.awaiting_campaign is not None

        def load(lo: int) -> None:
            if replica.life == life and replica.node is not None:
                replica.storage.load(lo)
                replica.node.entries_loaded()
                self._stepped(replica, replica.node)

        for lo in sorted(replica.storage.wanted):
            # Up to several election timeouts, if the configuration changes meanwhile.
            delay = self._loads.choice([1, 5, 20, 1000 if self.profile is Profile.MEMBERSHIP else 100])
            self._after(delay, lambda lo=lo: load(lo))  # type: ignore[misc]  # mypy cannot infer the default
        replica.storage.wanted.clear()

    def _snapshot_created(self, replica: Replica, life: int) -> None:
        if replica.life == life and replica.node is not None:
            replica.storage.create_snapshot()
            replica.node.snapshot_ready()
            self._stepped(replica, replica.node)

    def _pump(self, replica: Replica, key: tuple[int, int]) -> None:
        self._pumping.discard(key)
        if replica.life == key[1] and replica.pump():
            self._work_soon(replica)
            self._pump_soon(replica)

    def _work_soon(self, replica: Replica) -> None:
        """Schedule the storage threads for new work.

        They process it in order, each at its own pace.
        """
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

    # --- network ---------------------------------------------------------------------------------

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
            if replica.node.raft.awaited_snapshot is not message:
                self._report_snapshot(message, failed=False)
        self._stepped(replica, replica.node)

    def _lost(self, message: Message) -> None:
        self.counts["lost messages"] += 1
        if message.type is MessageType.SNAP:
            self._report_snapshot(message, failed=True)

    def _fetch(self, replica: Replica, message: Message) -> None:
        """Bring the data of an awaited snapshot to a node, or fail."""
        life, snapshot = replica.life, message.snapshot
        assert snapshot is not None
        failed = not self._healed and self._snapshots.random() < 0.3

        def end() -> None:
            alive = replica.life == life and replica.node is not None
            if alive and replica.node is not None:
                if failed:
                    self.counts["snapshots whose data does not come"] += 1
                    replica.node.snapshot_failed(snapshot)
                else:
                    self.counts["snapshots whose data comes"] += replica.node.snapshot_arrived(snapshot)
                self._stepped(replica, replica.node)
            self._report_snapshot(message, failed=failed or not alive)

        self._after(self._snapshots.randrange(1, 200), end)

    def _report_snapshot(self, message: Message, *, failed: bool) -> None:
        """Report the outcome of a snapshot to the driver, if it is still alive."""
        sender = self._replicas[message.sender]
        life = sender.life

        def report() -> None:
            if sender.life == life and sender.node is not None:
                sender.node.report_snapshot(message.to, failed=failed)
                self._stepped(sender, sender.node)

        self._after(self._network.randrange(5, 60), report)

    def _cut_off(self, side: set[int], duration: int, *, one_way: bool = False) -> None:
        ids = list(self._replicas)
        cut = {(one, other) for one in ids for other in ids if (one in side) != (other in side)}
        if one_way:
            cut = {(one, other) for one, other in cut if one in side}
        self._note(f"    {sorted(side)} cut off")
        self._blocked |= cut
        self._after(duration, lambda: self._blocked.difference_update(cut))

    # --- requests to nodes -----------------------------------------------------------------------

    def _running(self) -> list[Replica]:
        return [replica for replica in self._replicas.values() if replica.node is not None]

    def _propose(self, replica: Replica) -> None:
        payloads = []
        for _ in range(self._random.choice([1, 1, 1, 2, 5])):
            self._payloads += 1
            payloads.append(b"%d " % self._payloads + b"." * self._random.randrange(60))
        if replica.node is not None:
            mixed = self.profile is Profile.MIXED
            kind = self._payloads % 3 if mixed else 0
            proposal = ProposalId(replica.id, replica.life, self._payloads) if mixed else None
            if len(payloads) == 1 and self._may_append(replica):
                entry = replica.append_payload(payloads[0], kind, proposal)
                outcome: LogPosition | NotAppended = LogPosition(entry.term, entry.index)
            else:
                outcome = replica.node.propose(*payloads, kind=kind, proposal=proposal)
            self._checks.proposed(replica.id, payloads, kind, proposal, outcome)
            dropped = isinstance(outcome, NotAppended) and outcome is not NotAppended.FORWARDED
            self.counts["dropped proposals" if dropped else "proposals"] += len(payloads)
            if isinstance(outcome, NotAppended):
                self.counts[f"not appended: {outcome.value}"] += 1
            self._stepped(replica, replica.node)

    def _may_append(self, replica: Replica) -> bool:
        """True if a driver may append payloads at this node without asking."""
        assert replica.node is not None
        raft = replica.node.raft
        return (
            replica.takes_short_way
            and raft.log.unstable.offset_in_progress == raft.log.last_index() + 1
            and raft.state is StateType.LEADER
            and raft.lead_transferee == NONE
            and raft.id in raft.tracker.progress
        )

    def _change(self, replica: Replica, change: ConfChangeV2) -> None:
        assert replica.node is not None
        taken = isinstance(replica.node.propose_conf_change(change), LogPosition)
        self.counts["membership changes" if taken else "dropped membership changes"] += 1
        self._stepped(replica, replica.node)

    def _campaign(self, replica: Replica) -> None:
        if replica.node is not None:
            replica.node.campaign()
            self._stepped(replica, replica.node)
