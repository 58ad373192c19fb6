"""One replica: a process that may crash, its storage, its storage threads and its state machine."""

import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from pixy.entry_ids import ProposalId
from pixy.raft import (
    ConfState,
    Entry,
    HardState,
    Message,
    RaftConfig,
    RaftEntryType,
    RaftNode,
    Snapshot,
    SnapshotTemporarilyUnavailable,
    StateType,
    StorageAppend,
    Work,
)
from pixy.raft.wire import decode_conf_change
from tests.sim.raft.checks import Checks
from tests.sim.raft.disk import SimulatedStorage


@dataclass(slots=True)
class _Machine:
    """The state: a digest of everything applied, and the configuration."""

    index: int = 0
    term: int = 0
    digest: int = 0
    conf_state: ConfState = field(default_factory=ConfState)

    def apply(self, entry: Entry) -> None:
        self.index, self.term = entry.index, entry.term
        self.digest = zlib.crc32(b"%d %d " % (entry.term, entry.index) + entry.data, self.digest)

    def dump(self) -> bytes:
        return self.digest.to_bytes(4, "little")


@dataclass(frozen=True, slots=True)
class ReplicaOptions:
    """Options of a simulated node.

    Args:
        config: options of its Raft node.
        short_way: append single payloads by `RaftNode.append_payload`.
        compact_after: number of applied entries after which a snapshot is created.
        stores_conf_state: store each configuration when it is applied, so that a restart applies
            changes again.
        cold: source of randomness of a storage that has few entries in memory; None if it has all.
    """

    config: RaftConfig
    short_way: bool
    compact_after: int
    stores_conf_state: bool
    cold: Random | None


class Replica:
    """One node of the group.

    Args:
        node_id: its id.
        options: see `ReplicaOptions`.
        random: source of randomness for election timeouts and for the outcome of a crash.
        checks: the invariants to check.
        send: sends messages to other nodes.
        fetch: starts to fetch the data of an awaited snapshot.
    """

    def __init__(
        self,
        node_id: int,
        options: ReplicaOptions,
        random: Random,
        checks: Checks,
        send: Callable[[Message], None],
        fetch: Callable[["Replica", Message], None],
    ) -> None:
        self.id = node_id
        self.config = options.config
        self.node: RaftNode | None = None
        self.life = 0
        self.takes_short_way = options.short_way
        # With the commit index of the time, which is stored with the entries.
        self.appends: deque[tuple[StorageAppend | Entry, int]] = deque()
        self.applies: deque[list[Entry]] = deque()
        self.storage = SimulatedStorage(self._current, options.cold)
        self.machine = _Machine()
        self.reads: dict[bytes, int] = {}
        self._random = random
        self._checks = checks
        self._send = send
        self._compact_after = options.compact_after
        self._stores_conf_state = options.stores_conf_state
        self._fetch = fetch

    def start(self) -> None:
        """Restart from the disk."""
        assert self.node is None
        self.life += 1
        self._load(self.storage.stored_snapshot())
        self._checks.restarted(self.id)
        self.node = RaftNode(self.id, self.storage, self.config, self._random, applied=self.machine.index)
        self._checks.stepped(self.node)

    def crash(self) -> None:
        """Lose all memory and unsynced writes."""
        self.node = None
        self.life += 1
        self.appends.clear()
        self.applies.clear()
        self.reads.clear()
        self.storage.crash(self._random)

    def _load(self, snapshot: Snapshot) -> None:
        self.machine = _Machine(
            snapshot.index, snapshot.term, int.from_bytes(snapshot.data, "little"), snapshot.conf_state
        )

    def _current(self) -> Snapshot:
        """The latest state as a snapshot for a follower: a new member rejects a snapshot whose
        configuration lacks it.
        """
        if self._catches_up():
            raise SnapshotTemporarilyUnavailable
        return Snapshot(self.machine.index, self.machine.term, self.machine.conf_state, self.machine.dump())

    def _catches_up(self) -> bool:
        """True while entries below the current configuration are applied again: it is not the
        configuration of the state.
        """
        return self.node is not None and self.machine.index < self.node.raft.conf_index

    @property
    def leads(self) -> bool:
        """True if it is running and believes to be the leader."""
        return self.node is not None and self.node.raft.state is StateType.LEADER

    # --- work ------------------------------------------------------------------------------------

    def pump(self) -> bool:
        """Take the pending work; False if there was none."""
        node = self.node
        if node is None:
            return False
        node.raft.check_invariants()
        work = node.work()
        self.storage.evict()
        if work is None:
            return False
        if work.awaited_snapshot is not None:
            self._fetch(self, work.awaited_snapshot)
        for state in work.read_states:
            self._checks.read(self.id, self.reads.pop(state.context, 0), state.read_index)
        self._queue(node, work)
        return True

    def append_payload(self, payload: bytes, kind: int, proposal: ProposalId | None) -> Entry:
        """Append a payload as the leader."""
        assert self.node is not None
        entry = self.node.append_payload(payload, kind, proposal)
        self._checks.appended(self.node, [entry])
        self.appends.append((entry, self.node.raft.log.committed))
        return entry

    def _queue(self, node: RaftNode, work: Work) -> None:
        if work.append is not None:
            self._checks.appended(node, work.append.entries)
            self.appends.append((work.append, node.raft.log.committed))
        if work.committed_entries:
            self.applies.append(work.committed_entries)
        for message in work.messages:
            self._send(message)

    # --- storage threads -------------------------------------------------------------------------

    def finish_appends(self) -> None:
        """Complete some of the append thread's work, with one sync for all of it."""
        done = self._random.choice([0, self._random.randrange(len(self.appends))])
        for _ in range(done + 1):
            self._finish_append()

    def write(self) -> None:
        """Write all that was handed out, of which nobody is told: a crash follows."""
        for append, commit in self.appends:
            self._write(append, commit)

    def _finish_append(self) -> None:
        node, (append, commit) = self.node, self.appends.popleft()
        assert node is not None
        self._write(append, commit)
        self.storage.sync()
        if isinstance(append, Entry):
            entries = node.own_stored(append)
            if entries:
                self.applies.append(entries)
        else:
            for response in append.responses:
                if response.to == self.id:
                    # A node's messages to itself are never lost, so its vote for itself counts as
                    # sent.
                    self._checks.sent(response)
            for message in node.stored(append):
                self._send(message)
        self._checks.stepped(node)

    def _write(self, append: StorageAppend | Entry, commit: int) -> None:
        if isinstance(append, Entry):
            self._store(self._with_commit(None, commit), None, [append])
            return
        state = self._with_commit(append.hard_state, commit) if append.entries else append.hard_state
        self._store(state, append.snapshot, append.entries)

    def _with_commit(self, state: HardState | None, commit: int) -> HardState:
        """The hard state to be stored with entries that were handed out at this commit index."""
        return (state or self.storage.initial_state().hard_state)._replace(commit=commit)

    def _store(self, state: HardState | None, snapshot: Snapshot | None, entries: list[Entry]) -> None:
        stored = self.storage.initial_state().hard_state
        if state is not None:
            alone = state[:2] == stored[:2] and not entries and snapshot is None
            assert not alone, f"{self.id} stores nothing but the commit index {state.commit}"
        self.storage.write(state, snapshot, entries)
        if snapshot is not None and snapshot.index > self.machine.index:
            self._load(snapshot)

    def finish_apply(self) -> None:
        """Complete the oldest work of the apply thread."""
        node, work = self.node, self.applies.popleft()
        assert node is not None
        self._apply(node, work)
        node.applied(work)
        self._checks.stepped(node)

    # --- the state machine -----------------------------------------------------------------------

    def _apply(self, node: RaftNode, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.index <= self.machine.index:
                continue  # Overtaken by a snapshot.
            assert entry.index == self.machine.index + 1, (
                f"{self.id} applies {entry.index} after {self.machine.index}"
            )
            if entry.type is not RaftEntryType.NORMAL:
                self.machine.conf_state = node.apply_conf_change(decode_conf_change(entry), entry.index)
                if self._stores_conf_state:
                    self.storage.write_conf_state(self.machine.conf_state, node.raft.conf_index)
                self._checks.stepped(node)
            self.machine.apply(entry)
            self._checks.applied(self.id, entry.index, self.machine.digest)
        if entries and self.machine.index - self.storage.stored_snapshot().index >= self._compact_after:
            self._make_snapshot()

    def _make_snapshot(self) -> None:
        # A restart does without the commit index.
        assert self.node is not None
        if self.node.restoring or self._catches_up():
            return
        stored = self.storage.last_index()
        if self.machine.index <= stored and self.storage.term(self.machine.index) == self.node.raft.log.term(
            self.machine.index
        ):
            kept = self._random.randrange(self._compact_after)
            self.storage.compact(self.machine.index, self.machine.conf_state, self.machine.dump(), kept)
