"""Driver of all raft groups of one node: between the Raft core, the journal and the applications.

    propose -> core -> journal (one write and sync for all groups) -> core -> committed -> applied

A group with one voter takes the same way as one with three. The driver takes the core's `Work`: it
gives a write to the journal as one unit, which a crash keeps or loses as a whole; tells the core
when it is durable, and only then sends what it promises; applies committed entries at once, on the
event loop. Messages to one peer are gathered and leave once per iteration of the loop.

A node with the only vote of a group campaigns when something is asked of the group, or when a start
finds entries that are not applied; nobody can depose it, so its groups need no ticks.

What stalls is a group, before it proposes: while the entries that are not applied or not in
segments are too many bytes (`DriverHooks.room`), and while it has no leader. Nothing that was
proposed stalls: votes and hard states must pass.

An error of the journal, or an exception in an application, is a fault of the node: its disk and its
answers may then differ.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from pixy.cluster.driver_options import DriverHooks, DriverOptions
from pixy.cluster.entry_cache import EntryCache
from pixy.cluster.group_clock import GroupClock
from pixy.cluster.group_states import hard_state_record, reset_record
from pixy.cluster.linearizable_reads import LinearizableReads
from pixy.cluster.metadata import FIRST_PARTITION_GROUP
from pixy.cluster.outbox import Outbox
from pixy.cluster.proposals import NEVER, Done, Proposals, Proposer, judge
from pixy.cluster.proposer_rows import Novelty
from pixy.cluster.raft_group import Application, Apply, RaftGroup
from pixy.cluster.raft_storage import RaftStorage
from pixy.errors import PixyError
from pixy.futures import reject, resolve
from pixy.proposal_id import ProposalId
from pixy.raft import (
    NO_LIMIT,
    NONE,
    ConfState,
    Entry,
    Message,
    MessageType,
    RaftEntryType,
    RaftNode,
    Snapshot,
    SoftState,
    StateType,
    StepPeerNotFound,
    StorageAppend,
    Work,
)
from pixy.raft.sizes import payload_size
from pixy.raft.wire import decode_conf_change
from pixy.storage import EntryType, Journal, RecordKind, UnitRecord

__all__ = ["Driver"]

_ENTRY = RecordKind.ENTRY
_ENTRY_TYPES = {
    RaftEntryType.CONF_CHANGE: EntryType.CONF_CHANGE,
    RaftEntryType.CONF_CHANGE_V2: EntryType.CONF_CHANGE_V2,
}

_ROOM_BYTES = 64 << 10
"""Bytes that are proposed, by all groups, for one question whether there is room."""


class Driver:
    """Drives all raft groups of one node.

    Args:
        journal: the node's journal; its durable tokens go to `durable`.
        hooks: see `DriverHooks`.
        options: see `DriverOptions`.

    Attributes:
        node_id: this node.
        groups: the raft groups by id.
        unapplied_bytes: payload of the entries that are not applied.
    """

    def __init__(self, journal: Journal, hooks: DriverHooks, options: DriverOptions) -> None:
        self._journal = journal
        self._hooks = hooks
        self.node_id = options.node_id
        self._incarnation = options.incarnation
        self._config = options.config
        self._random = options.random
        self._proposer = Proposer(
            options.node_id, options.incarnation, self._has_room, self._append, hooks.forward
        )
        self._cache = EntryCache(options.cache_bytes)
        self._loop = asyncio.get_running_loop()
        self._reads = LinearizableReads()
        self._caught_up: asyncio.Future[None] | None = None
        self._outbox = Outbox(hooks.send)
        # Groups whose proposals wait for room, oldest first.
        self._stalled: dict[RaftGroup, None] = {}
        self._clock = GroupClock(self, journal, options)
        self._stopped = False
        self.groups: dict[int, RaftGroup] = {}
        self.unapplied_bytes = 0
        # Bytes that may be proposed before the node is asked for room again.
        self._room = 0

    # --- groups -----------------------------------------------------------------------------------

    def group(self, raft_group: int, conf_state: ConfState) -> RaftGroup:
        """A group, made with this configuration if the node has nothing of it."""
        group = self.groups.get(raft_group)
        if group is None:
            group = self.groups[raft_group] = RaftGroup(raft_group, RaftStorage(conf_state))
        return group

    def add(self, group: RaftGroup) -> None:
        """Add a group that a start has found in the journal."""
        self.groups[group.raft_group] = group
        self.unapplied_bytes += group.storage.memory_bytes(group.applied_index)
        if group.has_peers:
            self.open(group)

    def bind(self, group: RaftGroup, application: Application, apply: Apply) -> None:
        """Tell whose entries they are: from here on they are applied."""
        group.application, group.apply, group.stamp = application, apply, application.stamp
        held, group.held = group.held, None
        if held:
            self._apply(group, held)
        if group.node is not None:
            self._look_at_role(group)
            self._drive(group)

    def remove(self, group: RaftGroup, error: PixyError) -> None:
        """Remove a group for good; its proposals are answered with an error."""
        del self.groups[group.raft_group]
        self._stalled.pop(group, None)
        self.unapplied_bytes -= group.storage.memory_bytes(group.applied_index)
        group.leads, group.removed = False, error
        group.node = group.application = None
        if group.proposals is not None:
            group.proposals.fail(error)
        self._maybe_resume()

    def open(self, group: RaftGroup) -> RaftNode:
        """The Raft core of a group."""
        node = group.node
        if node is None:
            node = group.node = RaftNode(
                self.node_id, group.storage, self._config, self._random, applied=group.applied_index
            )
        return node

    def stop(self, fault: BaseException | None = None) -> None:
        """Propose and send nothing more.

        Args:
            fault: nothing becomes durable any more.
        """
        self._stopped = True
        self._outbox.stop()
        if fault is not None and self._caught_up is not None:
            reject(self._caught_up, fault)

    # --- proposals --------------------------------------------------------------------------------

    def propose(
        self,
        group: RaftGroup,
        kind: EntryType,
        payload: bytes | bytearray,
        done: Done,
        deadline: float = NEVER,
    ) -> None:
        """Propose an entry.

        Args:
            payload: from here on the driver's; a record batch gets its offset in place.
            done: gets the result once the entry is committed and applied here.
            deadline: loop time at which the answer is `DeadlineExceeded`, whatever comes of it.
        """
        if group.removed is not None:
            done(group.removed)
            return
        if group.proposals is None:
            group.proposals = Proposals(group, self._proposer)
        group.proposals.submit(kind, payload, done, deadline)
        if not group.leads:
            self.seek_leader(group)
        elif group.has_work:
            self._drive(group)

    def propose_for(
        self, group: RaftGroup, kind: EntryType, payload: bytes | bytearray, proposal: ProposalId
    ) -> bool:
        """Propose an entry for another node, which learns of its result by applying it.

        Returns:
            False if this node cannot; the other one tries again.
        """
        if not group.leads:
            return False
        if kind in (EntryType.RECORD_BATCH, EntryType.RECORD_BATCHES) and not self._has_room(
            group, len(payload)
        ):
            return False
        known = judge(group.rows, group.tail_ids, proposal)
        if known is Novelty.NEW:
            group.tail_ids = {*group.tail_ids, proposal}
            self._append(group, kind, group.stamp(kind, bytearray(payload), group.term), proposal)
            self._drive(group)
        return True

    def seek_leader(self, group: RaftGroup) -> None:
        """Campaign if this node has the only vote."""
        raft = self.open(group).raft
        if (
            raft.state is StateType.FOLLOWER
            and raft.tracker.is_only_voter(self.node_id)
            and group.node is not None
        ):
            group.node.campaign()
            self._drive(group)

    def _maybe_resume(self) -> None:
        if self._stalled and self._hooks.room() >= 0:
            self.resume()

    def resume(self) -> None:
        """There is room again: propose what waits for it."""
        stalled, self._stalled = self._stalled, {}
        for group in stalled:
            if group.proposals is not None:
                group.proposals.pump()
                self._drive(group)

    def _has_room(self, group: RaftGroup, size: int) -> bool:
        self._room -= size
        if self._room >= 0:
            return True
        room = self._hooks.room()
        if room < 0:
            self._stalled[group] = None
            return False
        self._room = min(room, _ROOM_BYTES) - size
        return True

    def _append(
        self, group: RaftGroup, kind: EntryType, payload: bytes | bytearray, proposal: ProposalId
    ) -> None:
        node = group.node
        assert node is not None
        entry = node.append_payload(payload, kind, proposal)
        self.unapplied_bytes += len(payload)
        group.writing += 1
        record = (
            _ENTRY,
            kind,
            group.raft_group,
            entry.index,
            entry.term,
            node.raft.log.committed,
            proposal,
            payload,
        )
        self._journal.append((record,), (group, entry))
        if group.has_peers:
            group.has_work = True

    # --- reads ------------------------------------------------------------------------------------

    def read(self, group: RaftGroup, done: Callable[[], None]) -> None:
        """Call back once everything that was committed before is applied here.

        Only when the leader has proven that: without a leader, when there is one.
        """
        if not group.leads:
            self.seek_leader(group)
        self._reads.add(group, done)
        self._drive(group)

    async def catch_up(self, groups: Iterable[RaftGroup]) -> None:
        """Wait until groups have applied everything that was committed before.

        Raises:
            BaseException: the fault that `stop` was given.
        """
        behind = dict.fromkeys(groups)
        if not behind:
            return
        caught_up = self._caught_up = self._loop.create_future()

        def applied(group: RaftGroup) -> None:
            behind.pop(group, None)
            if not behind:
                resolve(caught_up, None)

        for group in list(behind):
            self.read(group, partial(applied, group))
        await caught_up

    # --- the core's work --------------------------------------------------------------------------

    def _drive(self, group: RaftGroup) -> None:
        """Work off what the core has to do.

        Also called by what that work calls back: then the outer call goes on with it.
        """
        group.has_work = True
        if group.driving:
            return
        group.driving = True
        try:
            while group.has_work:
                group.has_work = False
                node = group.node
                work = None if node is None else node.work()
                if node is not None and work is not None:
                    self._work_off(group, node, work)
        except BaseException as bug:
            self._hooks.fault(bug)
            raise
        finally:
            group.driving = False
        if group.storage.wanted is not None and not group.loading:
            group.loading = True
            self._hooks.load(group, group.storage.wanted, self.loaded)

    def _work_off(self, group: RaftGroup, node: RaftNode, work: Work) -> None:
        if work.append is not None:
            self._store(group, node, work.append)
        if work.messages:
            self._outbox.post(group.raft_group, work.messages)
        if work.soft_state is not None:
            self._role_changed(group, work.soft_state)
        if work.committed_entries:
            self._apply(group, work.committed_entries)
        if work.read_states:
            self._reads.confirmed(group, work.read_states)
        if work.awaited_snapshot is not None:
            self._hooks.fetch(group, work.awaited_snapshot)
        if group.reads:
            self._reads.end(group)

    def _store(self, group: RaftGroup, node: RaftNode, append: StorageAppend) -> None:
        """Give a write to the journal, in one unit."""
        if append.is_empty and not group.writing:
            # Everything before it is durable.
            self._outbox.post(group.raft_group, node.stored(append))
            group.has_work = True
            return
        raft_group, commit = group.raft_group, node.raft.log.committed
        records: list[UnitRecord] = []
        if append.hard_state is not None or append.snapshot is not None:
            records = self._state_records(group, append)
        for entry in append.entries:
            entry_type = _ENTRY_TYPES[entry.type] if entry.type else entry.kind
            payload = entry.data
            self.unapplied_bytes += len(payload)
            records.append(
                (_ENTRY, entry_type, raft_group, entry.index, entry.term, commit, entry.proposal, payload)
            )
        group.writing += 1
        self._journal.append(records, (group, append))

    def _state_records(self, group: RaftGroup, append: StorageAppend) -> list[UnitRecord]:
        """Records of the state beside the entries."""
        storage, records = group.storage, []
        if append.snapshot is not None:
            storage.conf_state, storage.conf_index = append.snapshot.conf_state, append.snapshot.index
            group.look_at_members()
            records.append(reset_record(group.raft_group, append.snapshot))
        if append.hard_state is not None:
            storage.hard_state = append.hard_state
        records.append(hard_state_record(group.raft_group, storage))
        return records

    def durable(self, tokens: Sequence[Any]) -> None:
        """Writes of the journal are durable, in their order: those of groups, and callbacks."""
        for token in tokens:
            if type(token) is tuple:
                group, append = token
                group.writing -= 1
                if type(append) is Entry:
                    self._own_stored(group, append)
                else:
                    self._stored(group, append)
            else:
                token()
        self._maybe_resume()

    def _stored(self, group: RaftGroup, append: StorageAppend) -> None:
        node, entries = group.node, append.entries
        if node is None:
            self.unapplied_bytes -= payload_size(entries)
            return  # removed meanwhile
        if append.hard_state is not None or append.snapshot is not None:
            group.hard_state_file = self._journal.files[-1].number
            if append.snapshot is not None:
                self._restored(group, append.snapshot)
        if entries:
            self.unapplied_bytes -= group.storage.append(entries)
        messages = node.stored(append)
        if messages:
            self._outbox.post(group.raft_group, messages)
        self._drive(group)

    def _own_stored(self, group: RaftGroup, entry: Entry) -> None:
        """An entry that this node has appended as the leader is durable."""
        node = group.node
        if node is None:
            self.unapplied_bytes -= len(entry.data)
            return
        group.storage.append_next(entry)
        committed = node.own_stored(entry)
        if committed:
            self._apply(group, committed)
        if group.has_work or group.has_peers:
            self._drive(group)

    def _apply(self, group: RaftGroup, entries: list[Entry]) -> None:
        application = group.application
        if application is None:
            group.held = [*(group.held or ()), *entries]
            return
        apply, rows = group.apply, application.rows
        size = 0
        for entry in entries:
            payload, proposal = entry.data, entry.proposal
            size += len(payload)
            if entry.type:
                self._apply_conf_change(group, entry)
            group.applied_index, group.applied_term = entry.index, entry.term
            result = apply(application, entry)
            if proposal is not None:
                rows.record(proposal, result)
                if group.tail_ids:
                    group.tail_ids.discard(proposal)
                if proposal[0] == self.node_id and proposal[1] == self._incarnation:
                    self._answer(group, proposal[2], result)
        self.unapplied_bytes -= size
        node = group.node
        if node is None:
            return  # an entry has removed the group
        node.applied(entries)
        if group.has_peers or group.reads:
            group.has_work = True
        if group.has_peers:
            self._cache.add(group, size)
        else:
            group.storage.release(group.applied_index)

    def _answer(self, group: RaftGroup, sequence: int, result: Any) -> None:
        if group.proposals is not None:
            group.proposals.applied(sequence, result)

    def _apply_conf_change(self, group: RaftGroup, entry: Entry) -> None:
        assert group.node is not None
        storage = group.storage
        storage.conf_state = group.node.apply_conf_change(decode_conf_change(entry), entry.index)
        storage.conf_index = group.node.raft.conf_index
        group.look_at_members()
        self.write_hard_state(group)

    def write_hard_state(self, group: RaftGroup) -> None:
        """Write the hard state of a group to the journal, with its configuration."""

        def durable() -> None:
            group.hard_state_file = self._journal.files[-1].number

        self._journal.append((hard_state_record(group.raft_group, group.storage),), durable)

    # --- roles ------------------------------------------------------------------------------------

    def _role_changed(self, group: RaftGroup, state: SoftState) -> None:
        if state.state is not StateType.LEADER:
            group.leads = False
        self._look_at_role(group)
        self._reads.request_again(group)
        if group.proposals is not None and not group.leads and state.lead != NONE:
            group.proposals.propose_again()

    def _look_at_role(self, group: RaftGroup) -> None:
        """Begin or end to take proposals."""
        if group.node is None:
            return
        raft = group.node.raft
        can_propose = (
            raft.state is StateType.LEADER
            and raft.lead_transferee == NONE
            and raft.id in raft.tracker.progress
            and group.application is not None
        )
        if can_propose and not (group.leads and group.term == raft.term):
            self._lead(group)
        elif not can_propose:
            group.leads = False

    def _lead(self, group: RaftGroup) -> None:
        """Propose from here on. The state of what is proposed is that of the applied entries and of
        those behind them, which may yet be committed.
        """
        assert group.node is not None
        assert group.application is not None
        raft = group.node.raft
        first, last = group.applied_index + 1, raft.log.last_index()
        tail = raft.log.slice(first, last + 1, NO_LIMIT)
        assert len(tail) == last + 1 - first, (
            f"raft group {group.raft_group}: unapplied entries not in memory"
        )
        group.leads, group.term = True, raft.term
        group.tail_ids = {entry.proposal for entry in tail if entry.proposal is not None}
        group.application.lead(tail)
        if group.proposals is not None:
            group.proposals.propose_again()

    def transfer(self, group: RaftGroup, node_id: int) -> None:
        """Hand the leadership over to another node; proposals wait meanwhile."""
        if group.node is not None and group.leads:
            group.node.transfer_leader(node_id)
            self._look_at_role(group)
            self._drive(group)

    # --- entries and snapshots for followers ------------------------------------------------------

    def loaded(self, group: RaftGroup, entries: list[Entry] | None) -> None:
        """The entries that were asked for; None if they cannot be read any more, so that followers
        need a snapshot.
        """
        group.loading = False
        storage, node = group.storage, group.node
        wanted, storage.wanted = storage.wanted, None
        if node is None or wanted is None:
            return
        if entries is None:
            storage.compact(min(wanted[1] - 1, group.applied_index))
        storage.load(entries)
        node.entries_loaded()
        self._drive(group)
        storage.load(None)

    def snapshot_ready(self, group: RaftGroup) -> None:
        """There is a snapshot of a group for the followers that wait for one."""
        if group.node is not None:
            group.node.snapshot_ready()
            self._drive(group)

    def report_snapshot(self, group: RaftGroup, peer: int, *, failed: bool) -> None:
        """A follower has fetched the data of a snapshot, or could not."""
        if group.node is not None:
            group.node.report_snapshot(peer, failed=failed)
            self._drive(group)

    def snapshot_arrived(self, group: RaftGroup, snapshot: Snapshot) -> bool:
        """The data of an awaited snapshot is in its place: the log begins anew behind it; False if
        it is not needed any more.
        """
        if group.node is None:
            return False
        needed = group.node.snapshot_arrived(snapshot)
        self._drive(group)
        return needed

    def snapshot_failed(self, group: RaftGroup, snapshot: Snapshot) -> None:
        """The data of an awaited snapshot cannot be fetched."""
        if group.node is not None:
            group.node.snapshot_failed(snapshot)
            self._drive(group)

    def _restored(self, group: RaftGroup, snapshot: Snapshot) -> None:
        """A log reset is durable: continue from the snapshot, whose data is in its place."""
        self.unapplied_bytes -= group.storage.memory_bytes(group.applied_index)
        group.applied_index, group.applied_term = snapshot.index, snapshot.term
        group.storage.reset(group.applied)
        group.reset_file = self._journal.files[-1].number
        group.durable_index = max(group.durable_index, snapshot.index)
        group.held = None
        self._hooks.restore(group, snapshot)
        if group.proposals is not None:
            group.proposals.overtaken()

    def finish_install(self, group: RaftGroup) -> None:
        """A start has found the data of a snapshot, ahead of the journal: write the log reset."""
        storage = group.storage
        snapshot = Snapshot(group.applied_index, group.applied_term, storage.conf_state)

        def durable() -> None:
            group.hard_state_file = group.reset_file = self._journal.files[-1].number

        records = (reset_record(group.raft_group, snapshot), hard_state_record(group.raft_group, storage))
        self._journal.append(records, durable)

    # --- peers ------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Advance the clock of every group with peers by one tick."""
        self._clock.tick(list(self.groups.values()))

    def ticked(self, group: RaftGroup, *, timed_out: bool) -> None:
        """The clock of a group was advanced; `timed_out` once in an election timeout."""
        self._drive(group)
        self._look_at_role(group)
        if timed_out:
            # Requests and answers may be lost.
            self._reads.request_again(group)
            if group.proposals is not None and not group.leads:
                group.proposals.propose_again()
            self._drive(group)

    def step(self, raft_group: int, message: Message) -> None:
        """Process a message from a peer."""
        group = self.groups.get(raft_group)
        if group is None or self._stopped:
            return
        if message.type is MessageType.APP and message.entries and not self._takes_appends(group):
            return
        with suppress(StepPeerNotFound):
            self.open(group).step(message)
        self._drive(group)

    def _takes_appends(self, group: RaftGroup) -> bool:
        return group.raft_group < FIRST_PARTITION_GROUP or self._hooks.room() >= 0
