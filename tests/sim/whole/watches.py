"""Invariants of running nodes, checked after every turn of the loop: what has just changed in a
raft group of a node is compared with what was seen of that group anywhere.

- A term of a raft group has one leader, and the leader has every committed entry.
- A committed entry is the same everywhere, and durable on a quorum of its configuration.
- A replica that takes a position over has the pieces of stages up to there.
- A replica gives itself up when it is no voter.
- A leader lets a partition have fewer voters only if it knows that there are to be fewer replicas.
- A replica that becomes a voter knows the members of its group.
- An applied entry was committed. At equal index the partition has equal offsets and members, the
  state machine equal content, and the results of proposals are equal.
- The newest `journal.retain_bytes` of a node are there while a raft group has members elsewhere; a
  file whose removal began before that goes.
- All nodes belong to one cluster, and no two of them have one id. A connection that stays has nodes
  of one cluster at both ends.

A spy on the driver tells which groups may have changed, so the cost does not grow with their
number.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch
from zlib import crc32

from pixy.cluster import GroupsState
from pixy.cluster.log.journal_retention import JournalRetention
from pixy.cluster.log.node_log import NodeLog
from pixy.cluster.log.recovery import RecoveredNode
from pixy.cluster.log.replica import PartitionReplica, StateReplica
from pixy.cluster.state.metadata import MetadataState
from pixy.cluster.unsafe_recovery.sole_voter import configuration_after
from pixy.entry_ids import ProposalId
from pixy.multiraft.driver import Driver
from pixy.multiraft.raft_group import RaftGroup
from pixy.multiraft.snapshots import Snapshots
from pixy.peers import Hello, PeerChannel
from pixy.peers.hello import Greeting, LinkPurpose
from pixy.peers.link import PeerLink
from pixy.proto.state_pb2 import StagedPiece
from pixy.raft import ConfChangeV2, ConfState, Entry, Snapshot, StateType
from pixy.raft.quorum import VoteResult, joint_vote_result
from pixy.raft.raft import Raft
from pixy.raft.wire import decode_conf_change
from pixy.staging import PieceKey
from pixy.storage import EntryType, Journal, JournalFile, why_undecodable
from tests.sim.kit.failure import ClusterFailure, require
from tests.sim.kit.scene import Scene
from tests.sim.whole.group_audit import GroupAudit
from tests.sim.whole.machine import Machine

_DIGEST_EVERY = 4


class _Committed(NamedTuple):
    """A committed entry; its data as a checksum."""

    term: int
    type: int
    kind: int
    checksum: int
    proposal: ProposalId | None


class _History:
    """Observations of one raft group, on any node.

    Attributes:
        entries: committed entries by index.
        last: index of the newest one.
        leaders: process of the leader of each term.
        states: content of the application by index: end offset, digest, results of proposals.
        replaced: configurations, by the index of the entry that has changed them.
        newest: the newest configuration, None if it was never changed.
        pieces: committed pieces of stages, with the indexes of their entries.
    """

    __slots__ = ("entries", "last", "leaders", "newest", "pieces", "replaced", "states")

    def __init__(self) -> None:
        self.entries: dict[int, _Committed] = {}
        self.last = 0
        self.leaders: dict[int, tuple[int, int]] = {}
        self.states: dict[tuple[int, str], Any] = {}
        self.replaced: dict[int, ConfState] = {}
        self.newest: ConfState | None = None
        self.pieces: dict[PieceKey, int] = {}


class _Watch:
    """One raft group of one process, and what was last seen of it.

    Attributes:
        compared: index as of which the application was compared.
        led: last term in which it was seen as the leader.
        conf_state: configuration when it was last seen.
    """

    __slots__ = ("compared", "conf_state", "group", "led", "machine")

    def __init__(self, machine: Machine, group: RaftGroup) -> None:
        self.machine = machine
        self.group = group
        self.compared = -1
        self.led = 0
        self.conf_state = group.storage.conf_state

    def __str__(self) -> str:
        return f"node of {self.machine}, raft group {self.group.raft_group}"


class Watches:
    """Compares nodes with each other.

    Args:
        scene: see `Scene`.
        machines: all machines, by number.
        group_audit: hears what state groups apply.
    """

    def __init__(self, scene: Scene, machines: Mapping[int, Machine], group_audit: GroupAudit) -> None:
        self._scene = scene
        self._group_audit = group_audit
        self._machines = machines
        self._histories: dict[int, _History] = {}
        self._watches: dict[RaftGroup, _Watch] = {}
        self._changed: dict[RaftGroup, None] = {}
        self._secrets: dict[int, bytes] = {}
        self._cluster_ids: dict[bytes, str] = {}
        # Number of the oldest file of each journal, once followers do not need it.
        self._released: dict[Journal, int] = {}

    @contextmanager
    def spying(self) -> Iterator[None]:
        """Hear of every group that may have changed."""
        watches, changed = self, self._changed
        drive, apply, open_log = Driver.drive, Driver._apply, NodeLog.__init__
        is_retained, forget, depart = JournalRetention._is_retained, Journal.forget, Driver.depart

        def spy_on_drive(self: Driver, group: RaftGroup) -> None:
            changed[group] = None
            drive(self, group)

        def spy_on_apply(self: Driver, group: RaftGroup, entries: list[Entry]) -> None:
            changed[group] = None
            watches._applying(group, entries)
            apply(self, group, entries)
            watches._applied(group, entries)

        def spy_on_is_retained(self: JournalRetention, oldest: JournalFile) -> bool:
            retained = is_retained(self, oldest)
            watches._judged_oldest(self._journal, oldest, retained=retained)
            return retained

        def spy_on_forget(self: Journal, files: list[JournalFile]) -> None:
            watches._forgetting(self, files)
            forget(self, files)

        def spy_on_start(
            self: NodeLog, disk: Any, clock: Any, options: Any, recovered: RecoveredNode, *more: Any
        ) -> None:
            for machine in watches._machines.values():
                if machine.disk is disk and not machine.stranger:
                    watches._started(machine, recovered)
            open_log(self, disk, clock, options, recovered, *more)

        def spy_on_arrived(self: Snapshots, group: RaftGroup, snapshot: Snapshot) -> bool:
            watches._arrived(group, snapshot)
            return arrived(self, group, snapshot)

        def spy_on_change(self: Driver, group: RaftGroup, change: ConfChangeV2) -> bool:
            watches._changing(group, change)
            return change_configuration(self, group, change)

        def spy_on_depart(self: Driver, group: RaftGroup, *more: Any) -> None:
            watches._departing(self.node_id, group)
            depart(self, group, *more)

        accepted, arrived = PeerChannel.accepted, Snapshots.arrived
        change_configuration = Driver.change_configuration

        def spy_on_accepted(self: PeerChannel, link: PeerLink, peer: Greeting) -> None:
            watches._connected(self.hello(LinkPurpose.PASSING), peer)
            accepted(self, link, peer)

        with ExitStack() as stack:
            stack.enter_context(self._group_audit.spying())
            stack.enter_context(patch.object(PeerChannel, "accepted", spy_on_accepted))
            stack.enter_context(patch.object(NodeLog, "__init__", spy_on_start))
            stack.enter_context(patch.object(JournalRetention, "_is_retained", spy_on_is_retained))
            stack.enter_context(patch.object(Journal, "forget", spy_on_forget))
            stack.enter_context(patch.object(Driver, "drive", spy_on_drive))
            stack.enter_context(patch.object(Driver, "_apply", spy_on_apply))
            stack.enter_context(patch.object(Driver, "change_configuration", spy_on_change))
            stack.enter_context(patch.object(Driver, "depart", spy_on_depart))
            stack.enter_context(patch.object(Snapshots, "arrived", spy_on_arrived))
            yield

    def _connected(self, own: Hello, peer: Greeting) -> None:
        """A handshake is over."""
        if peer.purpose is not LinkPurpose.PASSING and own.cluster_id != peer.hello.cluster_id:
            self._scene.fail(ClusterFailure(f"{own} has accepted {peer.hello}, which is of another cluster"))

    def _judged_oldest(self, journal: Journal, oldest: JournalFile, *, retained: bool) -> None:
        """A node has judged if followers may need the oldest file of its journal."""
        self._released.pop(journal, None)
        if retained:
            return
        self._released[journal] = oldest.number
        for machine in self._machines.values():
            log = None if machine.node is None else getattr(machine.node, "_log", None)
            if log is None or log.journal is not journal:
                continue
            options = log._options.journal
            newer = (len(journal.files) - 1) * options.file_bytes
            groups = [log.driver.groups.get(raft_group) for raft_group in oldest.spans]
            if newer < options.retain_bytes and any(
                group is not None and group.has_peers for group in groups
            ):
                self._scene.fail(
                    ClusterFailure(
                        f"{machine} keeps {newer} bytes of its journal, not {options.retain_bytes}"
                    )
                )

    def _changing(self, group: RaftGroup, change: ConfChangeV2) -> None:
        """A leader is about to propose other members."""
        watch, replica = self._watches.get(group) or self._watch(group), group.application
        before = group.storage.conf_state
        after = configuration_after(before, [change])
        if (
            watch is None
            or not isinstance(replica, PartitionReplica)
            or len(after.voters) >= len(before.voters)
        ):
            return
        target = replica.replicas if replica.move is None else replica.move.target
        if min(len(replica.replicas), len(target)) >= len(before.voters):
            self._scene.fail(
                ClusterFailure(
                    f"{watch}: {after} is to follow {before}, replicas: {replica.replicas}, {target}"
                )
            )

    def _departing(self, node_id: int, group: RaftGroup) -> None:
        """A replica is about to forget what it has confirmed."""
        watch = self._watches.get(group) or self._watch(group)
        newest = self.history(group.raft_group).newest
        if watch is not None and newest is not None and node_id in newest.voters + newest.voters_outgoing:
            self._scene.fail(ClusterFailure(f"{watch}: it departs, and is a voter of {newest}"))

    def _arrived(self, group: RaftGroup, snapshot: Snapshot) -> None:
        """A replica is about to confirm all entries up to a snapshot."""
        committed = self.history(group.raft_group).pieces
        watch = self._watches.get(group) or self._watch(group)
        if not committed or watch is None or watch.machine.node is None:
            return
        nodes = [each.node for each in self._machines.values() if each.node is not None and not each.stranger]
        sinks = [each.state_groups.sinks for each in nodes if hasattr(each, "state_groups")]
        pieces = watch.machine.node.staging.calls._pieces
        for key, index in committed.items():
            is_there = (
                index > snapshot.index or pieces.has(key) or any(each.is_gone(key.stage) for each in sinks)
            )
            if not is_there:
                self._scene.fail(
                    ClusterFailure(
                        f"{watch}: it takes over entry {snapshot.index} without {key} of entry {index}"
                    )
                )

    def _forgetting(self, journal: Journal, files: Sequence[JournalFile]) -> None:
        """A node is about to remove the oldest files of its journal."""
        if [file.number for file in files] != [self._released.pop(journal, 0)]:
            self._scene.fail(ClusterFailure(f"files {files} of a journal are removed, and may be needed"))

    def start_over(self) -> None:
        """Forget everything: what the machines were is gone."""
        self._histories, self._watches = {}, {}
        self._secrets, self._cluster_ids = {}, {}
        self._group_audit.start_over()

    def _started(self, machine: Machine, recovered: RecoveredNode) -> None:
        """A start has read the disk, and knows whose it is."""
        identity = recovered.identity
        try:
            machine.recovered(recovered)
            self._cluster_ids.setdefault(identity.cluster_id, str(machine))
            require(len(self._cluster_ids) == 1, f"two clusters were made: {self._cluster_ids}")
            secret = self._secrets.setdefault(identity.node_id, identity.secret)
            require(secret == identity.secret, f"{machine} and another one are node {identity.node_id}")
        except ClusterFailure as failure:
            self._scene.fail(failure)

    def turn(self) -> None:
        """Check everything that the last turn has changed."""
        if self._scene.failure is not None:
            raise self._scene.failure
        if not self._changed:
            return
        changed = list(self._changed)
        self._changed.clear()
        for group in changed:
            watch = self._watches.get(group) or self._watch(group)
            if watch is not None and group.node is not None:
                self._look(watch, group.node.raft)

    def ended(self, machine: Machine) -> None:
        """A process has ended."""
        self._watches = {
            group: watch for group, watch in self._watches.items() if watch.machine is not machine
        }

    def _watch(self, group: RaftGroup) -> _Watch | None:
        """A watch of a group; None if its process has ended, or is not that far."""
        for machine in self._machines.values():
            if groups_of(machine).get(group.raft_group) is group and not machine.stranger:
                watch = self._watches[group] = _Watch(machine, group)
                return watch
        return None

    def history(self, raft_group: int) -> _History:
        """Observations of a raft group."""
        found = self._histories.get(raft_group)
        if found is None:
            found = self._histories[raft_group] = _History()
        return found

    def _look(self, watch: _Watch, raft: Raft) -> None:
        history = self.history(watch.group.raft_group)
        watch.conf_state = raft.tracker.config
        if raft.state is StateType.LEADER and raft.term != watch.led:
            self._elected(watch, history, raft)
        if watch.group.applied_index != watch.compared:
            self._compare(watch, history)

    # --- Raft -------------------------------------------------------------------------------------

    def _elected(self, watch: _Watch, history: _History, raft: Raft) -> None:
        watch.led = raft.term
        process = watch.machine.number, watch.machine.lives
        other = history.leaders.setdefault(raft.term, process)
        require(other == process, f"{watch}: leads in term {raft.term}, and so does process {other}")
        last = history.last
        # A vote may be late: then it makes a leader of a term that is over.
        if last >= raft.log.first_index() and history.entries[last].term <= raft.term:
            term = history.entries[last].term
            require(
                raft.log.match_term(term, last),
                f"{watch}: leads in term {raft.term} without entry {last} of term {term}",
            )
        self._scene.note(f"{watch.machine.number}   leads {watch.group.raft_group} in term {raft.term}")
        self._scene.counts["leaders"] += 1

    def _applying(self, group: RaftGroup, entries: list[Entry]) -> None:
        """Committed entries are about to be applied, or held until it is known whose they are."""
        watch = self._watches.get(group) or self._watch(group)
        if watch is None:
            return
        try:
            self._committed(watch, entries)
        except ClusterFailure as failure:
            self._scene.fail(failure)

    def _applied(self, group: RaftGroup, entries: list[Entry]) -> None:
        """Entries have been applied, unless they are held."""
        replica = group.application
        if not isinstance(replica, StateReplica) or not isinstance(replica.machine, GroupsState):
            return
        if group not in self._watches and self._watch(group) is None:
            return
        try:
            self._group_audit.applied(group.raft_group, replica.machine, entries)
        except ClusterFailure as failure:
            self._scene.fail(failure)

    def _committed(self, watch: _Watch, entries: list[Entry]) -> None:
        history = self.history(watch.group.raft_group)
        # Configurations in which the entries may have been committed.
        assert watch.group.node is not None
        states = [watch.conf_state, watch.group.node.raft.tracker.config]
        # A change counts once it is applied: a leader that lags behind this node commits by the
        # configuration before it.
        before = history.replaced.get(watch.group.storage.conf_index)
        if before is not None:
            states.insert(0, before)
        for entry in entries:
            found = _Committed(entry.term, int(entry.type), entry.kind, crc32(entry.data), entry.proposal)
            known = history.entries.setdefault(entry.index, found)
            require(
                found == known, f"{watch}: entry {entry.index} is committed as {found}, elsewhere as {known}"
            )
            if entry.kind == EntryType.STAGED_PIECE and not why_undecodable(entry.kind, entry.data):
                piece = StagedPiece.FromString(bytes(entry.data))
                key = PieceKey(piece.stage_number, watch.group.raft_group, piece.number, piece.crc)
                history.pieces.setdefault(key, entry.index)
            if entry.index > history.last:
                self._check_quorum(watch, states, entry)
                history.last = entry.index
                self._scene.counts["entries committed"] += 1
            if entry.type and entry.index > watch.group.storage.conf_index:
                after = configuration_after(states[-1], [decode_conf_change(entry)])
                if entry.index not in history.replaced:
                    # Later, where a node lags behind, the newcomer may have left again.
                    self._check_newcomers(watch, history, {*after.voters}.difference(states[-1].voters))
                    history.replaced[entry.index], history.newest = states[-1], after
                states.append(after)

    def _check_newcomers(self, watch: _Watch, history: _History, voters: set[int]) -> None:
        """Check that nodes which become voters have an entry with the members, durably."""
        raft_group, changes = watch.group.raft_group, history.replaced
        for node_id in voters if changes else ():
            groups = [
                journal.group(raft_group)
                for machine in self._machines.values()
                for each, journal in machine.journals
                if each == node_id
            ]
            require(
                any(group.has(index, history.entries[index].term) for group in groups for index in changes),
                f"{watch}: node {node_id} becomes a voter, and does not know the members",
            )

    def _check_quorum(self, watch: _Watch, states: Sequence[ConfState], entry: Entry) -> None:
        """Check that a committed entry survives the crash of every node."""
        raft_group = watch.group.raft_group
        there: dict[int, bool] = {}
        for machine in self._machines.values():
            for node_id, journal in machine.journals:
                has = journal.group(raft_group).has(entry.index, entry.term)
                there[node_id] = there.get(node_id, False) or has
        decided = any(_is_quorum(state, there) for state in states)
        have = [node_id for node_id, has in there.items() if has]
        require(
            decided,
            f"{watch}: entry {entry.index} of term {entry.term} is committed in {states[-1]}, and durable on {have}",
        )

    # --- applications -----------------------------------------------------------------------------

    def _compare(self, watch: _Watch, history: _History) -> None:
        group = watch.group
        index = watch.compared = group.applied_index
        application = group.application
        if application is None or not index:
            return
        require(index <= history.last, f"{watch}: applied {index}, committed {history.last}")
        if isinstance(application, PartitionReplica):
            if not application.deleted:
                self._equal(watch, history, "end offset", application.log.end_offset)
                if group.storage.conf_index <= index:
                    self._equal(watch, history, "members", group.storage.conf_state)
        elif isinstance(application, StateReplica) and self._is_due(history, index):
            self._equal(watch, history, "digest", crc32(content_of(application)))
        if self._is_due(history, index):
            rows = [row.SerializeToString() for row in application.rows.snapshot().encoded()]
            self._equal(watch, history, "results of proposals", rows)

    @staticmethod
    def _is_due(history: _History, index: int) -> bool:
        return not index % _DIGEST_EVERY or (index, "digest") in history.states

    def _equal(self, watch: _Watch, history: _History, what: str, found: Any) -> None:
        known = history.states.setdefault((watch.compared, what), found)
        require(
            found == known, f"{watch}: {what} behind entry {watch.compared} is {found}, elsewhere {known}"
        )


def content_of(replica: StateReplica) -> bytes:
    """Content of a state machine: equal for equal states."""
    machine = replica.machine
    if not isinstance(machine, MetadataState):
        return b"".join(key + value for key, value in sorted(machine.snapshot()))
    # Maps of protobuf have no order.
    topics = [
        (
            name,
            topic.topic_id,
            topic.version,
            sorted(topic.config.items()),
            topic.raft_groups,
            topic.replicas,
            sorted(topic.placements.items()),
            sorted(topic.moves.items()),
        )
        for name, topic in sorted(machine.topics.items())
    ]
    nodes = [repr(node) for _, node in sorted(machine.nodes.items())]
    return repr((machine.groups_count, machine.next_raft_group, topics, nodes)).encode()


def groups_of(machine: Machine) -> Mapping[int, RaftGroup]:
    """Raft groups of the node of a machine, by id; none before its log is open."""
    node = machine.node
    node_log = None if node is None else getattr(node, "_log", None)
    return {} if node_log is None else node_log.driver.groups


def _is_quorum(state: ConfState, there: Mapping[int, bool]) -> bool:
    return joint_vote_result(state.voters, state.voters_outgoing, there) is VoteResult.WON
