"""A node goes on alone after the majority of its cluster is lost for good.

Offline, on the data directory of one survivor. It gives up what consensus promises: the survivor
may lack entries that were committed, and has some that were not. So nothing here decides by itself.
`LostMajority.report` says what may be lost, `LostMajority.go_on_alone` acts.

    read          lock, and recovery of the journal as at a start (`stopped_node`)
    report        for each raft group what the node has, and if others may have confirmed more
    go on alone   the identity gets a new id of the cluster, for other nodes (`cluster_id_of`)
                  then one unit of the journal, which a crash keeps or loses as a whole:
                    the incarnation, raised
                    per raft group: entries of the next term that change its configuration to this
                        node as the only voter, in `metadata` also entries that forget each other
                        node and end moves, in `sinks` one that leaves out numbers, in those of
                        consumer groups one that cuts offsets; a vote for itself in that term, that
                        configuration, and every entry committed

The configuration is changed by entries as well as in the hard state, because a node that joins
later may get the log from its begin, and learns of the configuration from that.

The next start finds the log of a cluster of one. The others may come back with their data, and be a
majority by themselves: nothing here keeps two of three from serving what they have, beside the
survivor. So the survivor's cluster is another one from then on: they refuse it, it refuses them,
whatever their release, and a new node that is told of both waits. The new id comes first: with it
and the old configuration, as after a crash in between, a node serves nothing, and can be made to go
on alone again; with the old id, and alone, it would be taken for one of the old cluster.

May entries be missing? Committed entries are on a majority of the voters. They are all here if the
others have no majority by themselves, so with two voters; not with three, if this node was behind.
Nothing on this node's disk says that it was not.

Consumer groups may have offsets behind the records that are here. New records would get the offsets
of lost ones, and be skipped: so what is behind the end of a partition becomes its end.

Partitions and pieces here may have numbers of publications and stages that `sinks` does not know,
because it lacks the entries that gave them out. Given out once more, they would be taken for what
is there already. So more numbers are left out than a cluster can have given out meanwhile.

A partition that moves may have a replica here that the list of its replicas does not name yet. It
has what was copied to it, once it knows its members; the move ends with it.

A node is lost too that has left the cluster, or was forgotten, and is a voter of a raft group yet:
its last configurations were never confirmed, and no start comes to an end without it.

The road not taken: a new cluster id in files. Every file names its cluster, and would have to be
rewritten.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from pixy.cluster.replicas import check_reset
from pixy.cluster.state import (
    FIRST_GROUPS_GROUP,
    FIRST_NODE,
    METADATA_GROUP,
    MOVES_MAX,
    PRODUCER_IDS_SKIPPED,
    PRODUCERS_LEVEL,
    SINKS_GROUP,
    GroupsState,
    NodeInfo,
    Topic,
    partition_move,
)
from pixy.cluster.unsafe_recovery.sole_voter import changes_to_sole_voter, configuration_after
from pixy.cluster.unsafe_recovery.stopped_node import StoppedNode, position_of
from pixy.entry_ids import TERM_KEPT_MAX, TERM_MAX, LogPosition
from pixy.errors import FailedPrecondition
from pixy.multiraft import (
    RaftStorage,
    conf_state_of,
    continues,
    entry_of,
    hard_state_of,
    hard_state_record,
    reset_record,
    split_checkpoint,
    why_no_configuration,
)
from pixy.proto.state_pb2 import (
    AllocateProducerIds,
    CutOffsets,
    EndMoves,
    ForgetNode,
    GroupsCommand,
    GroupStateRecord,
    HardState,
    MetadataCommand,
    PartitionEnd,
    SinksCommand,
    SkipNumbers,
)
from pixy.raft import ConfChangeError, ConfState, MalformedMessage, Snapshot, decode_conf_change
from pixy.raft import HardState as RaftHardState
from pixy.raft.quorum import is_majority
from pixy.raft.wire import encode_conf_change
from pixy.storage import (
    EntryType,
    JournalRecord,
    MakeWorker,
    RecordKind,
    RecoveredGroup,
    UnitRecord,
)

_NUMBERS_SKIPPED = 2**32
_CONF_CHANGES = (EntryType.CONF_CHANGE, EntryType.CONF_CHANGE_V2)


@dataclass(frozen=True, slots=True)
class SurvivingGroup:
    """A raft group as the survivor has it.

    Attributes:
        name: of its state machine, or topic and partition.
        voters: as far as the survivor knows, in both halves of a joint configuration.
        last: its last entry.
        commit: newest entry that is known to be committed.
        may_lack: others may have confirmed entries that are missing here.
    """

    raft_group: int
    name: str
    voters: tuple[int, ...]
    last: LogPosition
    commit: int
    may_lack: bool

    @property
    def uncommitted(self) -> int:
        """Entries that are not known to be committed. They are kept."""
        return self.last.index - self.commit


@dataclass(frozen=True, slots=True)
class LossReport:
    """Holdings of a node, and its losses if it goes on alone.

    Attributes:
        node_id: the survivor.
        lost_nodes: the others, which are forgotten.
        groups: the raft groups with a replica here.
        lost_partitions: partitions without a replica here, whose records are lost.
        cut_offsets: partitions at whose end consumer groups go on, as they had gone further, by
            consumer group.
    """

    node_id: int
    lost_nodes: tuple[NodeInfo, ...]
    groups: tuple[SurvivingGroup, ...]
    lost_partitions: tuple[str, ...]
    cut_offsets: Mapping[str, Sequence[str]]


class _Continuation(NamedTuple):
    """A raft group at the survivor, and how it goes on.

    Attributes:
        term: newest term that the survivor knows.
        configuration: as of the last entry.
        members: of that one, and of those on the way there from the one that a start takes.
        resets: the log begins anew behind a checkpoint that is ahead of the journal.
    """

    group: SurvivingGroup
    term: int
    configuration: ConfState
    members: frozenset[int]
    resets: bool


class LostMajority:
    """A survivor, and what is lost with the others.

    Args:
        node: the survivor.

    Attributes:
        report: what there is, and what may be lost.

    Raises:
        CorruptData: durable data is damaged.
        FailedPrecondition: the node needs no other one, or has left its cluster.
    """

    def __init__(self, node: StoppedNode) -> None:
        self._node = node
        self._recovered = node.recovered
        self._node_id = node.node_id
        self._metadata = node.metadata()
        self._found = list(self._read_groups())
        # By raft group of the consumer groups: the ends to cut offsets at.
        self._cuts: dict[int, CutOffsets] = {}
        self._cut_offsets = self._find_cuts()
        self.report = self._make_report()

    async def go_on_alone(self, make_worker: MakeWorker, new_cluster_id: bytes) -> None:
        """Make this node the only one of its cluster; durable on return.

        Args:
            make_worker: makes the thread that writes the journal, which is stopped on return.
            new_cluster_id: 16 random bytes.

        Raises:
            DataDirectoryError: the disk is full, or broken. On a full disk nothing has changed.
        """
        with self._node.in_another_cluster(new_cluster_id):
            await self._node.write(self._records(), make_worker)

    # --- what there is ----------------------------------------------------------------------------

    def _make_report(self) -> LossReport:
        if self._node_id not in self._metadata.registered:
            raise FailedPrecondition(f"node {self._node_id} has left the cluster: it cannot go on alone")
        members = {member for found in self._found for member in found.members}
        if members == {self._node_id}:
            raise FailedPrecondition(
                f"node {self._node_id} is the only node of its cluster: it needs no other"
            )
        # A removed node that is in no raft group any more has left: nobody is to look for it.
        others = [
            self._metadata.nodes.get(node_id) or NodeInfo(node_id, b"", "", "", "", 0, "")
            for node_id in sorted({*members, *self._metadata.registered} - {self._node_id})
        ]
        lost = [
            f"{topic.name}-{number}"
            for topic in self._metadata.topics.values()
            for number in range(len(topic.replicas))
            if not self._has_replica(topic, number)
        ]
        return LossReport(
            self._node_id,
            tuple(others),
            tuple([found.group for found in self._found]),
            tuple(lost),
            self._cut_offsets,
        )

    def _find_cuts(self) -> dict[str, list[str]]:
        """Offsets of consumer groups behind the ends of partitions here."""
        states: dict[int, GroupsState] = {}
        for number in range(self._metadata.groups_count):
            states[FIRST_GROUPS_GROUP + number] = state = GroupsState()
            self._node.restore(FIRST_GROUPS_GROUP + number, f"groups-{number}", state)
        found: dict[str, list[str]] = defaultdict(list)
        for topic in self._metadata.topics.values():
            for number, raft_group in enumerate(topic.raft_groups):
                if not self._has_replica(topic, number):
                    continue
                end = PartitionEnd(
                    topic_id=topic.topic_id, partition=number, end_offset=self._node.end_offset(raft_group)
                )
                for of_groups, state in states.items():
                    names = state.beyond(topic.topic_id, number, end.end_offset)
                    if names:
                        self._cuts.setdefault(of_groups, CutOffsets()).ends.append(end)
                    for name in names:
                        found[name].append(f"{topic.name}-{number}")
        return found

    def _read_groups(self) -> Sequence[_Continuation]:
        found = [self._state_group(METADATA_GROUP, "metadata")]
        if not self._metadata.groups_count:
            raise FailedPrecondition(f"{self._node.directory} has no cluster yet")
        for number in range(self._metadata.groups_count):
            found.append(self._state_group(FIRST_GROUPS_GROUP + number, f"groups-{number}"))
        found.append(self._state_group(SINKS_GROUP, "sinks"))
        for topic in self._metadata.topics.values():
            for number, raft_group in enumerate(topic.raft_groups):
                if self._has_replica(topic, number):
                    name = f"{topic.name}-{number}"
                    found.append(self._partition(raft_group, name, topic.replicas[number]))
        return found

    def _has_replica(self, topic: Topic, number: int) -> bool:
        """True if a partition has a replica here, also one to which it is moving."""
        if self._node_id in topic.replicas[number] or not topic.is_placed_on(number, self._node_id):
            return self._node_id in topic.replicas[number]
        state = self._recovered.group(topic.raft_groups[number]).hard_state
        return state is not None and bool(HardState.FromString(state).voters)

    def _state_group(self, raft_group: int, name: str) -> _Continuation:
        checkpoint = self._node.checkpoint(name)
        applied, state = position_of(checkpoint), GroupStateRecord()
        if checkpoint is not None:
            state, _ = split_checkpoint(checkpoint.records)
        journal = self._recovered.group(raft_group)
        check_reset(name, applied.index, journal.reset)
        is_behind = not continues(journal, applied)
        tail = [] if is_behind else journal.entries_after(applied.index)
        configuration = state.configuration if state.configuration.voters else HardState(voters=[FIRST_NODE])
        return self._found_in(journal, name, applied, tail, configuration)._replace(resets=is_behind)

    def _partition(self, raft_group: int, name: str, replicas: tuple[int, ...]) -> _Continuation:
        journal = self._recovered.group(raft_group)
        position = journal.applied
        applied = LogPosition(0, 0) if position is None else LogPosition(position.term, position.index)
        tail = journal.entries_after(applied.index)
        return self._found_in(journal, name, applied, tail, HardState(voters=replicas))

    def _found_in(
        self,
        journal: RecoveredGroup,
        name: str,
        applied: LogPosition,
        tail: Sequence[JournalRecord],
        configuration: HardState,
    ) -> _Continuation:
        """A group from what a start would take of it, see `recovered_group`."""
        state = RaftHardState()
        if journal.hard_state is not None:
            message = HardState.FromString(journal.hard_state)
            state = hard_state_of(message)
            if message.conf_index >= configuration.conf_index or not configuration.voters:
                configuration = message
        last = LogPosition(tail[-1].term, tail[-1].index) if tail else applied
        commits = (state.commit, journal.commit, applied.index, configuration.conf_index)
        commit = min(max(commits), last.index)
        is_impossible = bool(why_no_configuration(configuration))
        known = ConfState((self._node_id,)) if is_impossible else conf_state_of(configuration)
        configurations = [known, *_changed(known, tail, configuration.conf_index)]
        group = SurvivingGroup(
            journal.raft_group,
            name,
            tuple(sorted({*known.voters, *known.voters_outgoing})),
            last,
            commit,
            is_impossible or any(map(self._others_decide, configurations)),
        )
        # One far above comes from a node with a bug, and leaves no elections (`mended_groups`). It
        # binds nobody here.
        term = state.term if state.term <= TERM_KEPT_MAX else 0
        if last.term >= TERM_MAX:
            raise FailedPrecondition(f"{name}: its newest entry has the last possible term, {last.term}")
        members = frozenset[int]().union(*(each.members for each in configurations))
        return _Continuation(group, max(term, last.term), configurations[-1], members, resets=False)

    def _others_decide(self, conf: ConfState) -> bool:
        """True if the other voters can commit an entry without this node."""
        for voters in filter(None, (conf.voters, conf.voters_outgoing)):
            others = [voter for voter in voters if voter != self._node_id]
            if not is_majority(others, voters):
                return False
        return True

    # --- what is written --------------------------------------------------------------------------

    def _records(self) -> list[UnitRecord]:
        incarnation = self._recovered.journal.incarnation + 1
        records: list[UnitRecord] = [(RecordKind.INCARNATION, 0, 0, incarnation, 0, 0, None, b"")]
        skip = SinksCommand(skip_numbers=SkipNumbers(count=_NUMBERS_SKIPPED))
        metadata = [*self._forget_commands(), *self._end_commands(), *self._skipped_producer_ids()]
        commands = {METADATA_GROUP: metadata, SINKS_GROUP: [skip.SerializeToString()]}
        for raft_group, cut in self._cuts.items():
            commands[raft_group] = [GroupsCommand(cut_offsets=cut).SerializeToString()]
        for found in self._found:
            records += self._records_of(found, commands.get(found.group.raft_group, []))
        return records

    def _forget_commands(self) -> list[bytes]:
        return [
            MetadataCommand(forget_node=ForgetNode(node_id=node.node_id)).SerializeToString()
            for node in self.report.lost_nodes
        ]

    def _end_commands(self) -> Iterator[bytes]:
        """Ends of the moves of partitions with a replica here: no other node has their targets."""
        moves = [
            partition_move(topic, number, [self._node_id])
            for topic in self._metadata.topics.values()
            for number in topic.moves
            if self._has_replica(topic, number)
        ]
        for first in range(0, len(moves), MOVES_MAX):
            command = EndMoves(moves=moves[first : first + MOVES_MAX])
            yield MetadataCommand(end_moves=command).SerializeToString()

    def _skipped_producer_ids(self) -> Iterator[bytes]:
        """Producer ids that the lost nodes may have given are not given again."""
        if self._metadata.feature_level >= PRODUCERS_LEVEL:
            skipped = AllocateProducerIds(count=PRODUCER_IDS_SKIPPED)
            yield MetadataCommand(allocate_producer_ids=skipped).SerializeToString()

    def _records_of(self, found: _Continuation, commands: Sequence[bytes]) -> list[UnitRecord]:
        """Records of a raft group with this node alone, and of further commands in its log."""
        raft_group, last, term = found.group.raft_group, found.group.last, found.term + 1
        changes = changes_to_sole_voter(found.configuration, self._node_id)
        entries = [(EntryType.CONF_CHANGE_V2, encode_conf_change(change)) for change in changes]
        entries += [(EntryType.COMMAND, command) for command in commands]
        end = last.index + len(entries)
        storage = RaftStorage(ConfState((self._node_id,)), last.index + len(changes))
        storage.hard_state = RaftHardState(term, self._node_id, end)
        records: list[UnitRecord] = []
        if found.resets:
            records.append(reset_record(raft_group, Snapshot(last.index, last.term, found.configuration)))
        records.append(hard_state_record(raft_group, storage))
        for index, (kind, payload) in enumerate(entries, last.index + 1):
            records.append((RecordKind.ENTRY, kind, raft_group, index, term, last.index, None, payload))
        return records


def _changed(conf: ConfState, tail: Sequence[JournalRecord], conf_index: int) -> Iterator[ConfState]:
    """The configurations behind each change in the log of the one as of `conf_index`."""
    for entry in tail:
        if entry.entry_type in _CONF_CHANGES and entry.index > conf_index:
            with suppress(MalformedMessage, ConfChangeError):  # then it has no effect
                conf = configuration_after(conf, [decode_conf_change(entry_of(entry))])
                yield conf
