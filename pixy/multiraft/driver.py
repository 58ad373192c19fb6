"""Driver of all raft groups of one node: between the Raft core, the journal and the applications.

    propose -> core -> journal (one write and sync for all groups) -> core -> committed -> applied

A group with one voter takes the same path as one with three. The driver takes the core's `Work`: it
gives a write to the journal as one unit, which a crash keeps or loses as a whole; tells the core
when it is durable, and only then sends what it promises; applies committed entries at once, on the
event loop. Messages to one peer are gathered and leave once per iteration of the loop.

A node with the only vote of a group campaigns when something is asked of the group, or when a start
finds entries that are not applied; nobody can depose it, so its groups need no ticks.

Back-pressure stalls a group before it proposes record batches: while too many bytes are not applied
or not in segments (`DriverHooks.room`), or so many of the group that it would leave too little to
others. Nothing that was proposed stalls, and neither do votes and
hard states.

An error of the journal, or an exception in an application, is a fault of the node: its disk and its
answers may then differ.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pixy.aio.steps import in_steps, run_in_steps
from pixy.entry_ids import LogPosition, ProposalId
from pixy.errors import FailedPrecondition, MessageTooLarge, PixyError, VoidEntry
from pixy.multiraft.commit_messages import CommitMessages
from pixy.multiraft.commit_times import CommitTimes
from pixy.multiraft.dedup_table import WINDOW, DedupVerdict
from pixy.multiraft.departed_groups import DepartedGroups
from pixy.multiraft.driver_options import DriverHooks, DriverOptions
from pixy.multiraft.entry_cache import EntryCache
from pixy.multiraft.entry_limits import entry_bytes_max
from pixy.multiraft.group_clock import GroupClock
from pixy.multiraft.group_rest import GroupRest
from pixy.multiraft.hard_states import state_records, write_hard_state
from pixy.multiraft.linearizable_reads import LinearizableReads
from pixy.multiraft.outbox import Outbox
from pixy.multiraft.proposal_waiters import LeadershipLost, ProposalWaiters
from pixy.multiraft.proposals import (
    NEVER,
    Done,
    Forwarded,
    Proposals,
    Proposer,
    Sequences,
    is_window_full,
    judge,
)
from pixy.multiraft.raft_group import FIRST_PARTITION_GROUP, Application, Apply, Prepare, RaftGroup
from pixy.multiraft.raft_storage import RaftStorage
from pixy.multiraft.refused_messages import RefusedMessages
from pixy.multiraft.snapshots import Snapshots
from pixy.raft import (
    NONE,
    ConfChangeError,
    ConfChangeV2,
    ConfState,
    Entry,
    MalformedMessage,
    Message,
    MessageType,
    RaftEntryType,
    RaftNode,
    SoftState,
    StateType,
    StepPeerNotFound,
    StorageAppend,
    Work,
)
from pixy.raft.plausibility import why_impossible
from pixy.raft.sizes import payload_size
from pixy.raft.wire import decode_conf_change
from pixy.storage import EntryType, Journal, RecordKind, UnitRecord

# Members of enumerations are found slowly.
_ENTRY = RecordKind.ENTRY
_BATCHES = frozenset({EntryType.RECORD_BATCH, EntryType.RECORD_BATCHES})
_NEW = DedupVerdict.NEW
_FOLLOWER = StateType.FOLLOWER
_APP, _APP_RESP = MessageType.APP, MessageType.APP_RESP
_proposal_id = partial(tuple.__new__, ProposalId)
_ENTRY_TYPES = {
    RaftEntryType.CONF_CHANGE: EntryType.CONF_CHANGE,
    RaftEntryType.CONF_CHANGE_V2: EntryType.CONF_CHANGE_V2,
}

_RESUMED_PER_STEP = 32
_RESUMED_BYTES = 128 << 10
"""Proposals that are made in a step when there is room again, and the size that costs as much as
one.
"""
_HEARTBEATS = frozenset({MessageType.HEARTBEAT, MessageType.HEARTBEAT_RESP})
_LOOKED_AT = frozenset({_APP, MessageType.VOTE, MessageType.PRE_VOTE})
"""Messages that not every group takes."""

_ROOM_BYTES = 64 << 10
"""Bytes that all groups together propose before the node is asked for room again."""


class Driver:
    """Drives all raft groups of one node.

    Args:
        journal: the node's journal; its durable tokens go to `durable`.
        hooks: see `DriverHooks`.
        options: see `DriverOptions`.

    Attributes:
        node_id: this node.
        groups: the raft groups by id.
        departed: those that this node was a member of, and may be again.
        reads: linearizable reads of the groups.
        snapshots: snapshots of the groups.
        watched: proposals of nodes that have no replica of the group, or have had none.
        refusals: log of what other nodes send in vain.
        rest: groups at rest.
        sequences: see `Proposer`.
        commit_times: of the entries that this node has proposed.
        leader_changes: number of leaders that were heard of anew, of all groups.
        unapplied_bytes: payload of the entries that are not applied.
        entry_bytes_max: largest payload of an entry: what is larger is in no frame to a follower.
    """

    def __init__(self, journal: Journal, hooks: DriverHooks, options: DriverOptions) -> None:
        self._journal = journal
        self._hooks, self._peers = hooks, hooks.peers
        self.node_id = options.node_id
        self._incarnation = options.incarnation
        self._config = options.config
        # Whoever has read a state group knows of an expulsion under way: see `group_sessions`.
        self._state_config = replace(options.config, reads_cover_log=True)
        self._random = options.random
        self.sequences: dict[int, Sequences] = {}
        self._proposer = Proposer(
            options.node_id,
            options.incarnation,
            self._has_room,
            self._append,
            hooks.peers.forward,
            self.sequences,
        )
        self._cache = EntryCache(options.cache_bytes)
        self.reads = LinearizableReads(self)
        self._outbox = Outbox(hooks.peers.send)
        # Groups whose proposals wait for room, and those for which there is some again, oldest
        # first.
        self._stalled: dict[RaftGroup, None] = {}
        self._resumed: dict[RaftGroup, None] = {}
        self._is_resuming = False
        # Record batches of other nodes that wait for room. Invariant: none is empty.
        self._held: dict[RaftGroup, dict[ProposalId, Forwarded]] = {}
        self.rest = GroupRest(self, options.node_id, hooks.peers.rest, options.config.election_tick)
        self._clock = GroupClock(self, self.rest, journal, options)
        self.snapshots = Snapshots(self, journal, hooks.restore)
        self.watched = ProposalWaiters()
        self.refusals = RefusedMessages()
        self._stopped = False
        self._commits = CommitMessages(options.commit_delay_s, self.drive)
        self.groups: dict[int, RaftGroup] = {}
        self.departed = DepartedGroups(journal)
        self.commit_times = CommitTimes()
        self.unapplied_bytes = self.leader_changes = 0
        self.entry_bytes_max = entry_bytes_max(0)
        # Bytes that may be proposed before the node is asked for room again, and the room at the
        # last time.
        self._room = self._share = 0

    # --- groups -----------------------------------------------------------------------------------

    def group(self, raft_group: int, conf_state: ConfState) -> RaftGroup:
        """A group, made with this configuration if the node has nothing of it, and without members
        if it has departed from it.
        """
        group = self.groups.get(raft_group)
        if group is None:
            former = self.departed.take_back(raft_group)
            group = RaftGroup(raft_group, former or RaftStorage(conf_state), self.node_id)
            self.groups[raft_group] = group
            if former is not None:
                write_hard_state(self._journal, group)
        return group

    def add(self, group: RaftGroup) -> None:
        """Add a group that a start has found in the journal."""
        self.groups[group.raft_group] = group
        group.unapplied_bytes = group.storage.memory_bytes(group.applied_index)
        self.unapplied_bytes += group.unapplied_bytes
        if group.has_peers:
            self.open(group)

    def bind(self, group: RaftGroup, application: Application, apply: Apply, *, holds: bool = False) -> None:
        """Set the application of a group, and apply the entries that were held for it.

        Args:
            holds: True if they wait for `release`.
        """
        group.application, group.apply, group.stamp = application, apply, application.stamp
        if holds:
            self.hold(group)
        else:
            self.release(group)

    def hold(self, group: RaftGroup) -> None:
        """Apply and propose nothing of a group from here on, until `release`."""
        if group.held is None:
            group.held = []
        group.look_at_role()

    def release(self, group: RaftGroup) -> None:
        """Apply the entries that were held, and those that come."""
        held, group.held = group.held, None
        if held:
            self._apply(group, held)
        if group.node is not None:
            # A leader proposes what waited: only behind what the core has handed out.
            self.drive(group)
            group.look_at_role()
            self.drive(group)

    def remove(self, group: RaftGroup, error: PixyError) -> None:
        """Remove a group for good; its proposals are answered with an error."""
        self.sequences.pop(group.raft_group, None)
        self._take_out(group, error)

    def mute(self, group: RaftGroup) -> None:
        """Take no messages and proposals of a group, and send none, until `unmute`: nothing that is
        written meanwhile is confirmed.
        """
        group.muted = True
        self._held.pop(group, None)
        self.watched.end(group.raft_group, LeadershipLost())
        group.look_at_role()

    def unmute(self, group: RaftGroup) -> None:
        """Go on with a group; messages may be lost at any time."""
        group.muted = False
        group.look_at_role()

    def depart(self, group: RaftGroup, error: PixyError, then: Callable[[], None]) -> None:
        """Remove a muted group, whose members do without this node. Of what it has confirmed only
        its vote is kept, durably before `then` is called.

        The sequences of this node's proposals stay: they go on at other nodes, and ascend as long
        as this process lives. The rows of the group would answer others with the results of the
        first.
        """
        assert group.muted
        self._take_out(group, error)
        self.departed.add(group.raft_group, group.storage.hard_state, then)

    def _take_out(self, group: RaftGroup, error: PixyError) -> None:
        del self.groups[group.raft_group]
        self.rest.end(group)
        self._stalled.pop(group, None)
        self._resumed.pop(group, None)
        self._held.pop(group, None)
        self.unapplied_bytes -= group.storage.memory_bytes(group.applied_index)
        group.leads, group.removed = False, error
        group.node = group.application = None
        if group.proposals is not None:
            group.proposals.fail(error)
        self._cache.remove(group)
        self.reads.removed(group)
        self.watched.end(group.raft_group, error)
        self._maybe_resume()

    def open(self, group: RaftGroup) -> RaftNode:
        """The Raft core of a group."""
        node = group.node
        if node is None:
            config = self._state_config if group.raft_group < FIRST_PARTITION_GROUP else self._config
            node = group.node = RaftNode(
                self.node_id, group.storage, config, self._random, applied=group.applied_index
            )
        return node

    def stop(self, fault: BaseException | None = None) -> None:
        """Propose and send nothing more.

        Args:
            fault: nothing becomes durable any more.
        """
        self._stopped = True
        self._outbox.stop()
        self._commits.stop()
        if fault is not None:
            self.reads.fail(fault)

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
        if len(payload) > self.entry_bytes_max:
            done(
                MessageTooLarge(
                    f"an entry of {len(payload)} bytes for raft group {group.raft_group}, the nodes of the cluster take "
                    f"{self.entry_bytes_max}"
                )
            )
            return
        if group.proposals is None:
            group.proposals = Proposals(group, self._proposer)
        if group.resting:
            self.rest.wake(group)
        group.proposals.submit(kind, payload, done, deadline)
        if not group.leads:
            self.seek_leader(group)
        elif group.has_work:
            self.drive(group)

    def end_proposals(self) -> None:
        """Answer the proposals that other nodes have to confirm, because nobody hears from them any
        more.
        """
        for group in self.groups.values():
            if group.has_peers and group.proposals is not None:
                group.proposals.expire(NEVER)

    def propose_for(self, group: RaftGroup, forwarded: Forwarded) -> bool:
        """Propose an entry for another node, which learns of its result by applying it.

        A record batch waits until there is room, or another node leads, and others wait behind it.

        Returns:
            False if this node does not lead, has not got the proposal before it, lacks data of the
            entry, or has `WINDOW` others of that node under way; the other node tries again.

        Raises:
            VoidEntry: the entry would have no effect, or is not for other nodes to propose.
            LongCheckError: that takes long to find out; see `propose_checked`.
        """
        raft_group, kind, payload, proposal, _ = forwarded
        if not self.has_place(group, proposal):
            return False
        reason = self._peers.why_not_proposable(raft_group, kind, payload, proposal.node_id)
        if reason:
            raise VoidEntry(reason)
        return self.propose_checked(group, forwarded)

    def waits_for_room(self, group: RaftGroup) -> bool:
        """True if something of a group waits to be proposed."""
        return group in self._held or group in self._stalled or group in self._resumed

    def has_place(self, group: RaftGroup, proposal: ProposalId) -> bool:
        """True if this node leads, and the node of a proposal has a place for it in its window."""
        if not group.leads:
            return False
        if not self._held and len(group.tail_ids) < WINDOW:
            return True
        return not is_window_full(proposal, group.tail_ids, self._held.get(group, ()))

    def propose_checked(self, group: RaftGroup, forwarded: Forwarded) -> bool:
        """As `propose_for`, for an entry that was checked."""
        if not group.leads:
            return False
        _, kind, payload, proposal, _ = forwarded
        if self._held:
            self._drop_outdated(group, proposal)
        if kind in _BATCHES and (group in self._held or not self._has_room(group, len(payload))):
            # Bounded: each node has a window of proposals under way.
            self._held.setdefault(group, {})[proposal] = forwarded
            return True
        return self._propose_next(group, forwarded)

    def _propose_next(self, group: RaftGroup, forwarded: Forwarded) -> bool:
        """Append an entry of another node, unless it is there; see `propose_for`."""
        _, kind, payload, proposal, after = forwarded
        rows, tail_ids = group.rows, group.tail_ids
        if judge(rows, tail_ids, proposal) is _NEW:
            before = _proposal_id((proposal[0], proposal[1], after))
            if after and judge(rows, tail_ids, before) is _NEW:
                return False
            sideloads = self._peers.sideloads
            if sideloads is not None and not sideloads.may_propose(group, kind, payload):
                return False
            if tail_ids:
                tail_ids.add(proposal)
            else:
                group.tail_ids = {proposal}  # groups without any share an empty set
            self._append(group, *group.stamp(kind, bytearray(payload), group.term), proposal)
            self.drive(group)
        return True

    def _drop_outdated(self, group: RaftGroup, proposal: ProposalId) -> None:
        """Drop what waits of earlier starts of a proposal's node: nobody waits for its results."""
        held = self._held.get(group)
        if held:
            for other in [each for each in held if each[0] == proposal[0] and each[1] < proposal[1]]:
                del held[other]
            if not held:
                del self._held[group]

    def refused(self, group: RaftGroup, leader: int, term: int, proposal: ProposalId, reason: str) -> None:
        """A leader has refused a proposal of this node (`forwarded_proposals`).

        What counts is the refusal of the present leader: this node has proposed it to none of a
        later term, so nobody brings it through.
        """
        node = group.node
        if node is None or group.proposals is None or (leader, term) != (node.raft.lead, node.raft.term):
            return
        if (proposal.node_id, proposal.incarnation) == (self.node_id, self._incarnation):
            group.proposals.refused(proposal.sequence, FailedPrecondition(reason))

    def seek_leader(self, group: RaftGroup) -> None:
        """Campaign if this node has the only vote."""
        raft = (group.node or self.open(group)).raft
        if raft.state is _FOLLOWER and raft.tracker.is_only_voter(self.node_id) and group.node is not None:
            group.node.campaign()
            self.drive(group)

    def campaign(self, group: RaftGroup) -> None:
        """Campaign without waiting for the election timeout, unless this node leads."""
        self.open(group).campaign()
        self.drive(group)

    def _maybe_resume(self) -> None:
        if self._stalled and self._hooks.room() >= 0:
            self.resume()

    def resume(self) -> None:
        """There is room again: propose what waits for it, the first step of it at once."""
        self._take_stalled()
        if not self._is_resuming:
            self._is_resuming = True
            run_in_steps(self._resume())

    def _resume(self) -> Iterator[None]:
        yield from self._resume_in_steps()
        self._is_resuming = False

    async def resume_all(self) -> None:
        """As `resume`; returns when everything was proposed for which there is room."""
        self._take_stalled()
        async for _ in in_steps(self._resume_in_steps()):
            pass

    def _take_stalled(self) -> None:
        self._resumed |= self._stalled
        self._stalled = {}

    def _resume_in_steps(self) -> Iterator[None]:
        left = _RESUMED_PER_STEP
        while self._resumed:
            left -= self._resume_one(next(iter(self._resumed)))
            if left <= 0:
                left = _RESUMED_PER_STEP
                yield

    def _resume_one(self, group: RaftGroup) -> int:
        """Propose the next one of other nodes that waits in a group, or at last its own; returns
        what that costs.
        """
        held = self._held.get(group)
        if held:
            forwarded = next(iter(held.values()))
            size = len(forwarded.payload)
            if self._has_room(group, size):
                del held[forwarded.proposal]
                if not held:
                    del self._held[group]
                if group.leads:  # else its node tries again, also while the leadership is handed over
                    self._propose_next(group, forwarded)
                return 1 + size // _RESUMED_BYTES
        del self._resumed[group]
        if group.proposals is not None:
            group.proposals.pump()
            self.drive(group)
        return WINDOW

    def _has_room(self, group: RaftGroup, size: int) -> bool:
        self._room -= size
        if self._room >= 0 and group.unapplied_bytes <= self._share:
            return True
        room = self._share = self._hooks.room()
        # One group takes no more than half of what the others leave: it may have no quorum.
        if room < group.unapplied_bytes:
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
        group.unapplied_bytes += len(payload)
        group.writing += 1
        if not group.timed:
            self.commit_times.begin(group, entry.index)
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

    # --- the core's work --------------------------------------------------------------------------

    def drive(self, group: RaftGroup) -> None:
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
                elif group.reads:
                    # Their callers may propose: only behind what the core has handed out.
                    self.reads.end(group)
        except BaseException as bug:
            self._hooks.fault(bug)
            raise
        finally:
            group.driving = False
        if group.resting and (group.node is None or not group.node.raft.resting):
            self.rest.end(group)
        if group.has_peers and group.node is not None and group.node.raft.commit_message_due:
            self._commits.due(group)
        if group.storage.wanted is not None and not group.loading:
            group.loading = True
            self._hooks.load(group, group.storage.wanted, self.loaded)

    def _work_off(self, group: RaftGroup, node: RaftNode, work: Work) -> None:
        if work.append is not None:
            self._store(group, node, work.append)
        self._post(group, work.messages)
        if work.soft_state is not None:
            self._role_changed(group, work.soft_state)
        if work.committed_entries:
            self._apply(group, work.committed_entries)
        if work.read_states:
            self.reads.confirmed(group, work.read_states)
            group.has_work = True
        if work.awaited_snapshot is not None:
            self._peers.fetch(group, work.awaited_snapshot)

    def _store(self, group: RaftGroup, node: RaftNode, append: StorageAppend) -> None:
        """Give a write to the journal, in one unit."""
        if append.is_empty and not group.writing:
            # Everything before it is durable.
            self._post(group, node.stored(append))
            group.has_work = True
            return
        raft_group, commit = group.raft_group, node.raft.log.committed
        records: list[UnitRecord] = []
        if append.hard_state is not None or append.snapshot is not None:
            records = state_records(group, append)
            if append.snapshot is not None:
                records += self._hooks.reset_records(group, append.snapshot)
        for entry in append.entries:
            entry_type = _ENTRY_TYPES[entry.type] if entry.type else entry.kind
            payload = entry.data
            self.unapplied_bytes += len(payload)
            group.unapplied_bytes += len(payload)
            records.append(
                (_ENTRY, entry_type, raft_group, entry.index, entry.term, commit, entry.proposal, payload)
            )
        group.writing += 1
        self._journal.append(records, (group, append))

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
                replaced = group.storage.memory_bytes(group.applied_index)
                self.unapplied_bytes -= replaced
                group.unapplied_bytes -= replaced
                self.snapshots.restored(group, append.snapshot)
        if entries:
            replaced = group.storage.append(entries)
            self.unapplied_bytes -= replaced
            group.unapplied_bytes -= replaced
        self._post(group, node.stored(append))
        self.drive(group)

    def _post(self, group: RaftGroup, messages: Sequence[Message]) -> None:
        if messages and not group.muted:
            self._outbox.post(group.raft_group, messages)

    def _own_stored(self, group: RaftGroup, entry: Entry) -> None:
        """An entry that this node has appended as the leader is durable."""
        node = group.node
        if node is None:
            self.unapplied_bytes -= len(entry.data)
            return
        storage = group.storage
        if group.has_peers or storage.entries_in_memory:
            storage.append_next(entry)
        else:
            storage.pass_by(entry)
        committed = node.own_stored(entry)
        if committed:
            self._apply(group, committed)
        if group.has_work or group.has_peers:
            self.drive(group)

    def _apply(self, group: RaftGroup, entries: list[Entry]) -> None:  # noqa: PLR0912  # the way of each entry
        application = group.application
        if application is None or group.held is not None:
            group.held = [*(group.held or ()), *entries]
            return
        if group.prepare is not None:
            entries = self._until_long(group, group.prepare, entries)
            if not entries:
                return
        apply, rows = group.apply, application.rows
        size = 0
        changes = False
        for entry in entries:
            payload, proposal = entry.data, entry.proposal
            size += len(payload)
            if entry.type:
                changes = True
                self._apply_conf_change(group, entry)
            group.applied_index, group.applied_term = entry.index, entry.term
            result = apply(application, entry)
            if type(result) is VoidEntry:
                self.refusals.without_effect(group.raft_group, entry.index, str(result))
            if proposal is not None:
                rows.record(proposal, result)
                if group.tail_ids:
                    group.tail_ids.discard(proposal)
                if (
                    proposal[0] == self.node_id
                    and proposal[1] == self._incarnation
                    and group.proposals is not None
                ):
                    group.proposals.applied(proposal[2], result)
                else:
                    group.is_awaited = True
                if self.watched:
                    self.watched.applied(group.raft_group, proposal, result)
        self.unapplied_bytes -= size
        group.unapplied_bytes -= size
        if group.timed and group.applied_index >= group.timed:
            self.commit_times.end(group)
        node = group.node
        assert node is not None, "no entry removes its own group"
        node.applied(entries)
        raft = node.raft
        if changes:
            node.snapshot_ready()  # there is none within a change
        # Entries of the log alone give no further work.
        if group.reads or changes or raft.tracker.config.auto_leave or raft.log.committed > raft.log.applying:
            group.has_work = True
        if group.has_peers:
            self._cache.add(group, size, len(entries))
        elif group.storage.entries_in_memory:
            group.storage.release(group.applied_index)

    def _until_long(self, group: RaftGroup, prepare: Prepare, entries: list[Entry]) -> list[Entry]:
        """The entries before one that takes long, which waits with those behind it until it is
        prepared.
        """
        for at, entry in enumerate(entries):
            steps = prepare(entry)
            if steps is not None:
                group.held = entries[at:]
                run_in_steps(self._prepare(group, steps))
                return entries[:at]
        return entries

    def _prepare(self, group: RaftGroup, steps: Iterator[None]) -> Iterator[None]:
        yield  # those before it are applied first
        yield from steps
        if group.held is not None and group.removed is None and not self._stopped:
            self.release(group)

    def _apply_conf_change(self, group: RaftGroup, entry: Entry) -> None:
        assert group.node is not None
        storage = group.storage
        try:
            conf_state = group.node.apply_conf_change(decode_conf_change(entry), entry.index)
        except (MalformedMessage, ConfChangeError) as error:
            # Every node finds so: they have the same configuration up to here.
            self.refusals.without_effect(group.raft_group, entry.index, str(error))
            return
        storage.conf_state = conf_state
        storage.conf_index = group.node.raft.conf_index
        if group.raft_group >= FIRST_PARTITION_GROUP:
            # No entry has the members that a partition began with: only a snapshot tells a learner.
            group.compact(1)
        group.look_at_members()
        if not group.has_peers:
            # Nobody answers any more those that wait for a majority, and no clock asks again.
            self.reads.request_again(group)
        if group.node.raft.state is not StateType.LEADER:
            # It has removed itself. What is answered next must not propose.
            group.leads = False
        write_hard_state(self._journal, group)

    # --- roles ------------------------------------------------------------------------------------

    def _role_changed(self, group: RaftGroup, state: SoftState) -> None:
        # Another leader may have replaced the entry.
        group.timed = 0
        self.leader_changes += state.lead != NONE
        if state.state is not StateType.LEADER:
            group.leads = False
            self._held.pop(group, None)
        group.look_at_role()
        self.reads.request_again(group)
        if state.state is not StateType.LEADER and self.watched:
            self.watched.end(group.raft_group, LeadershipLost())
        if self._peers.leader_changed is not None:
            self._peers.leader_changed(group)
        if group.proposals is not None and not group.leads and state.lead != NONE:
            group.proposals.propose_again()

    def transfer(self, group: RaftGroup, node_id: int) -> None:
        """Hand the leadership over to another node; proposals wait meanwhile."""
        # A leader whose partition a start has found damaged takes no proposals.
        if group.node is not None and (group.leads or group.application is None):
            group.node.transfer_leader(node_id)
            group.look_at_role()
            self.drive(group)

    def hand_over(self, group: RaftGroup) -> None:
        """Hand the leadership over to the follower that is closest behind, if one is active."""
        if group.node is None:
            return
        raft = group.node.raft
        others = [
            (progress.match, node_id)
            for node_id, progress in raft.tracker.progress.items()
            if node_id != raft.id and node_id in raft.tracker.voters and progress.recently_active
        ]
        if others:
            self.transfer(group, max(others)[1])

    def tell_commit(self, group: RaftGroup) -> None:
        """Tell the followers of a group that this node leads of its commit index, without a delay:
        they apply what is applied here before they take what is sent to them afterwards.
        """
        self._commits.tell(group)

    def change_configuration(self, group: RaftGroup, change: ConfChangeV2) -> bool:
        """Propose a configuration change; False if this node does not lead, or hands over.

        A change that is invalid at present is taken as an empty entry.
        """
        if group.node is None or not group.leads:
            return False
        taken = isinstance(group.node.propose_conf_change(change), LogPosition)
        self.drive(group)
        return taken

    # --- entries for followers --------------------------------------------------------------------

    def loaded(self, group: RaftGroup, entries: list[Entry] | None) -> None:
        """The entries that were asked for; None if they cannot be read any more, so that followers
        need a snapshot.
        """
        group.loading = False
        storage, node = group.storage, group.node
        wanted, storage.wanted = storage.wanted, None
        if node is None or wanted is None:
            return
        if entries is not None and self._peers.sideloads is not None:
            entries = self._peers.sideloads.servable(group, entries) or None
        if entries is None:
            group.compact(min(wanted[1] - 1, group.applied_index))
        storage.load(entries)
        node.entries_loaded()
        self.drive(group)
        storage.load(None)

    # --- peers ------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Advance the clock of every group with peers by one tick, but for those at rest."""
        if not self._stopped:
            self.rest.tick()
        self._clock.tick(list(self.groups.values()))

    def ticked(self, group: RaftGroup, *, timed_out: bool) -> None:
        """The clock of a group was advanced; `timed_out` once in an election timeout."""
        self.drive(group)
        group.look_at_role()
        if timed_out:
            # Requests and answers may be lost.
            self.reads.request_again(group)
            if group.proposals is not None:
                group.proposals.propose_again()
        if timed_out or group.has_work:
            self.drive(group)

    def step(self, raft_group: int, message: Message) -> None:
        """Process a message from a peer, unless no correct one sends it."""
        group = self.groups.get(raft_group)
        if group is None or self._stopped or group.muted:
            return
        node = group.node or self.open(group)
        kind, raft = message.type, node.raft
        if group.resting:
            self.rest.before(group, node)
        is_heartbeat = kind in _HEARTBEATS
        if is_heartbeat and message.index and not self.rest.admits(group):
            message = replace(message, log_term=0, index=0)
        if is_heartbeat and not (group.has_work or group.driving or group.reads):
            answers = node.take_idle_heartbeat(message)
            if answers is not None:
                if answers:
                    self._outbox.post(raft_group, answers)
                return
        reason = why_impossible(raft, message)
        if message.sender not in raft.tracker.progress and not group.may_have_replica(message.sender):
            # A configuration may lag, so that it alone does not tell who belongs to the group.
            reason = f"node {message.sender} has no replica"
        if reason:
            self.refusals.note(raft_group, message.sender, kind.name, reason)
            return
        if kind in _LOOKED_AT and not self._takes(group, message):
            return
        term = raft.term
        try:
            node.step(message)
        except StepPeerNotFound:
            return
        if is_heartbeat and message.index:
            self.rest.maybe_begin(group, node)
        self.drive(group)
        if message.term > term and kind is _APP_RESP:
            # A learner may be ahead of the only voter, which is elected at once.
            self.seek_leader(group)

    def _takes(self, group: RaftGroup, message: Message) -> bool:
        if group.is_blank and (message.type is not _APP or not message.index):
            return False  # an append that does not follow its log is refused, so that a snapshot is sent
        if not message.entries or group.raft_group < FIRST_PARTITION_GROUP:
            return True
        sideloads = self._peers.sideloads
        return self._hooks.keeps_up() and (sideloads is None or sideloads.admits(group, message))
