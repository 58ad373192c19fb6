"""Checks of a running cluster, after every turn of the loop: what has just changed on a node is
compared with the history of its raft group. The cost does not grow with the length of a run.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random

from pixy.cluster.log.recovery import RecoveredNode, recover_node
from pixy.cluster.log.replica import PartitionReplica, StateReplica
from pixy.copies import roll_forward
from pixy.entry_ids import LogPosition
from pixy.errors import CorruptData
from pixy.multiraft.raft_group import RaftGroup
from pixy.proto.state_pb2 import ProposerRow
from pixy.raft import NO_LIMIT, ConfState, Entry, Message, MessageType, StateType
from pixy.raft.quorum import VoteResult, joint_vote_result
from pixy.raft.raft import Raft
from pixy.storage import CheckpointId, EntryType, RecordKind, read_checkpoint
from tests.sim.cluster.counters import Counters
from tests.sim.cluster.history import GroupHistory
from tests.sim.cluster.machine import Machine
from tests.sim.cluster.member import state_name
from tests.sim.cluster.segments import check_segments, check_synced
from tests.sim.cluster.swarm import Layout
from tests.sim.disk import SimulatedDisk
from tests.sim.kit.failure import require
from tests.sim.kit.lives import Life
from tests.sim.kit.rare import Rare
from tests.sim.kit.scene import Scene
from tests.sim.world import DIRECTORY


class _Watch:
    """One raft group of one process, and what was last seen of it.

    Attributes:
        committed, applied: indexes up to which entries were compared, and applied.
        compared: index as of which the application was compared.
        led: last term in which it was seen as the leader.
        conf_state: configuration when `committed` was seen.
    """

    __slots__ = ("applied", "committed", "compared", "conf_state", "group", "history", "led", "machine")

    def __init__(self, machine: Machine, group: RaftGroup, history: GroupHistory, applied: int) -> None:
        self.machine = machine
        self.group = group
        self.history = history
        self.committed = self.applied = applied
        self.compared = -1
        self.led = 0
        self.conf_state = group.storage.conf_state

    def __str__(self) -> str:
        return f"node {self.machine.id}, raft group {self.group.raft_group}"


class Checks:
    """Compares nodes with the history of their groups.

    Args:
        scene: see `Scene`.
        machines: by id of their nodes.
        layout: see `Layout`.

    Attributes:
        histories: by raft group.
        on_leader: called with each new leader and its raft group.
    """

    def __init__(self, scene: Scene, machines: Mapping[int, Machine], layout: Layout) -> None:
        self._scene = scene
        self._machines = machines
        self._layout = layout
        self.histories = {raft_group: GroupHistory(raft_group) for raft_group in layout.all}
        self.on_leader: list[Callable[[Machine, int], None]] = []
        self._lives: dict[int, tuple[Life, int]] = {}
        self._watches: dict[tuple[int, int], _Watch] = {}
        self._all: Sequence[_Watch] = ()

    # --- turns of the loop ------------------------------------------------------------------------

    def turn(self) -> None:
        """Check everything that the last turn has changed."""
        if self._scene.failure is not None:
            raise self._scene.failure
        for machine in self._machines.values():
            life, member = machine.life, machine.member
            seen = self._lives.get(machine.id)
            if life is None or member is None:
                if seen is not None:
                    self._forget(machine)
            elif seen is None or seen[0] is not life or seen[1] != len(member.groups):
                self._look_at(machine, life)
        for watch in self._all:
            group = watch.group
            if group.node is None:
                continue
            raft = group.node.raft
            if raft.log.committed > watch.committed:
                self._committed(watch, raft)
            if raft.state is StateType.LEADER and raft.term != watch.led:
                self._elected(watch, raft)
            if group.applied_index != watch.compared:
                self._compare(watch)

    def _forget(self, machine: Machine) -> None:
        del self._lives[machine.id]
        self._watches = {key: watch for key, watch in self._watches.items() if key[0] != machine.id}
        self._all = list(self._watches.values())

    def _look_at(self, machine: Machine, life: Life) -> None:
        assert machine.member is not None
        if machine.id in self._lives and self._lives[machine.id][0] is not life:
            self._forget(machine)
        groups = machine.member.groups
        for group in groups.values():
            self._watch(machine, group, group.applied_index)
        self._lives[machine.id] = life, len(groups)
        self._all = list(self._watches.values())

    def _watch(self, machine: Machine, group: RaftGroup, applied: int) -> _Watch:
        key = machine.id, group.raft_group
        watch = self._watches.get(key)
        if watch is None or watch.group is not group:
            watch = _Watch(machine, group, self.histories[group.raft_group], applied)
            self._watches[key] = watch
        return watch

    def _elected(self, watch: _Watch, raft: Raft) -> None:
        watch.led = raft.term
        history = watch.history
        other = history.leaders.setdefault(raft.term, raft.id)
        require(other == raft.id, f"{watch}: leads in term {raft.term}, and so does node {other}")
        last = history.last
        if last >= raft.log.first_index():
            require(
                raft.log.match_term(history.term(last), last),
                f"{watch}: leads in term {raft.term} without entry {last} of term {history.term(last)}",
            )
        self._scene.note(f"{raft.id}   leads {watch.group.raft_group} in term {raft.term}")
        self._scene.counts["leaders"] += 1
        for hear in list(self.on_leader):
            hear(watch.machine, watch.group.raft_group)

    def _committed(self, watch: _Watch, raft: Raft) -> None:
        log, history = raft.log, watch.history
        first, end = max(watch.committed + 1, log.first_index()), log.committed + 1
        for entry in log.slice(first, end, NO_LIMIT) if first < end else ():
            if entry.index > history.last:
                self._check_quorum(watch, raft, entry)
                history.add(entry)
                self._scene.counts["entries committed"] += 1
                self._scene.counts[Rare.SEVERAL_BATCHES] += entry.kind == EntryType.RECORD_BATCHES
            else:
                history.check(entry, str(watch))
        watch.committed, watch.conf_state = log.committed, raft.tracker.config

    def _check_quorum(self, watch: _Watch, raft: Raft, entry: Entry) -> None:
        """Check that a committed entry survives the crash of every node."""
        there = {
            machine.id: machine.acknowledged.group(watch.group.raft_group).has(entry.index, entry.term)
            for machine in self._machines.values()
        }
        decided = any(_is_quorum(state, there) for state in (watch.conf_state, raft.tracker.config))
        have = [node_id for node_id, has in there.items() if has]
        require(
            decided,
            f"{watch}: entry {entry.index} of term {entry.term} is committed in {raft.tracker.config}, and durable on {have}",
        )

    def _compare(self, watch: _Watch) -> None:
        """Compare the applied state of a group."""
        group, history = watch.group, watch.history
        index = watch.compared = group.applied_index
        watch.applied = index
        application = group.application
        if application is None:
            return
        require(index <= history.last, f"{watch}: applied {index}, committed {history.last}")
        require(group.applied_term == history.term(index), f"{watch}: applied {group.applied}")
        rows = application.rows.snapshot().encoded()
        require(
            rows == history.rows[index],
            f"{watch}: results of proposals behind {index}: {_brief(rows)}, expected {_brief(history.rows[index])}",
        )
        if isinstance(application, StateReplica):
            assert isinstance(application.machine, Counters)
            require(application.machine.digest == history.digests[index], f"{watch}: differs behind {index}")
        elif isinstance(application, PartitionReplica):
            end = application.log.end_offset
            require(
                end == history.ends[index],
                f"{watch}: ends at {end} behind {index}, not {history.ends[index]}",
            )

    # --- events -----------------------------------------------------------------------------------

    def applying(self, machine: Machine, group: RaftGroup, entry: Entry) -> None:
        """An entry is about to be applied."""
        watch = self._watch(machine, group, entry.index - 1)
        begin = 0 if group.reset is None else group.reset.index
        jumps = group.raft_group in self._layout.state_groups or entry.index == begin + 1
        # A snapshot may have come in between; whether the state was right is seen behind the entry.
        follows = entry.index > watch.applied if jumps else entry.index == watch.applied + 1
        require(follows, f"{watch}: applies {entry.index} behind {watch.applied}")
        assert group.node is not None
        log = group.node.raft.log
        require(entry.index <= log.committed, f"{watch}: applies {entry.index}, committed {log.committed}")
        if log.committed > watch.committed:
            self._committed(watch, group.node.raft)
        watch.history.check(entry, str(watch))
        watch.applied = entry.index

    def sending(self, machine: Machine, raft_group: int, message: Message) -> None:
        """A message leaves a node: what it promises has to survive a crash."""
        kind = message.type
        if message.reject or kind not in (MessageType.APP_RESP, MessageType.VOTE_RESP, MessageType.VOTE):
            return
        durable = machine.durable.group(raft_group)
        where = f"node {machine.id}, raft group {raft_group}"
        if kind is MessageType.APP_RESP:
            self._check_acknowledged(machine, raft_group, message)
        else:
            vote = message.to if kind is MessageType.VOTE_RESP else machine.id
            found = durable.votes.get(message.term)
            require(
                found == vote,
                f"{where}: votes for {vote} in term {message.term}, durable is a vote for {found}",
            )

    def _check_acknowledged(self, machine: Machine, raft_group: int, message: Message) -> None:
        durable, index = machine.durable.group(raft_group), message.index
        where = f"node {machine.id}, raft group {raft_group}: acknowledges entry {index}"
        # A flush may also have what replaces the entry in a later term: to its leader, the
        # acknowledgement is a late one.
        last = durable.reached.get(message.term, 0) if message.term < durable.term else durable.last
        require(last >= index, f"{where} in term {message.term}, durable are entries up to {last}")
        assert machine.member is not None
        node = machine.member.groups[raft_group].node
        assert node is not None
        if node.raft.term == message.term and index:
            term = node.raft.log.term_or_zero(index)
            require(not term or durable.has(index, term), f"{where} of term {term}, durable is another one")

    def recovered(self, machine: Machine, recovered: RecoveredNode) -> None:
        """A start has read the journal."""
        applied = self._applied(machine.disk, recovered)
        machine.durable.check_recovered(recovered.journal, applied)
        kinds = {each.kind for group in recovered.journal.groups.values() for each in group.entries}
        self._scene.counts[Rare.RELOCATED] += RecordKind.RELOCATED_ENTRY in kinds

    def probe(self, machine: Machine, rng: Random) -> None:
        """Read what a power failure at this moment would leave, and compare the segments of a
        running node with the history.
        """
        disk = machine.disk.crashed(rng)
        disk.restart()
        recovered = recover_node(disk, DIRECTORY, rng.randbytes)
        applied = self._applied(disk, recovered)
        machine.durable.copy().check_recovered(recovered.journal, applied)
        # As the next start does.
        names = {raft_group: self._layout.name(raft_group) for raft_group in self._layout.partitions}
        roll_forward(disk, DIRECTORY / "topics", names, lambda each: recovered.group(each).applied)
        for raft_group, history in self._partitions():
            position = recovered.group(raft_group).applied
            if machine.is_rotten(raft_group):
                continue
            if position is not None:
                check_synced(disk, self._layout.name(raft_group), history, position)
            if machine.online:  # a start has to cut a torn end first
                check_segments(machine.disk, self._layout.name(raft_group), history)
        self._scene.counts["probes"] += 1

    def _partitions(self) -> list[tuple[int, GroupHistory]]:
        return [(raft_group, self.histories[raft_group]) for raft_group in self._layout.partitions]

    def _applied(self, disk: SimulatedDisk, recovered: RecoveredNode) -> dict[int, LogPosition]:
        applied = {}
        for raft_group in self._layout.state_groups:
            applied[raft_group] = newest_checkpoint(disk, raft_group)
        for raft_group in self._layout.partitions:
            position = recovered.group(raft_group).applied
            applied[raft_group] = LogPosition(0, 0)
            if position is not None:
                applied[raft_group] = LogPosition(position.term, position.index)
        return applied

    def check_reset(self, machine: Machine, raft_group: int, position: LogPosition) -> None:
        """Check that the data of a log reset is in its place before the reset is durable: its
        checkpoint, or that of a later snapshot; of a partition, its applied position.
        """
        if raft_group in self._layout.partitions:
            index, end_offset = machine.durable.group(raft_group).applied
            where = f"node {machine.id}, raft group {raft_group}"
            require(index >= position.index, f"{where}: log reset at {position}, applied position {index}")
            require(end_offset == self.histories[raft_group].ends[index], f"{where}: ends at {end_offset}")
            self._scene.counts[Rare.TOOK_POSITION] += 1
            return
        disk, directory = machine.disk, DIRECTORY / "state" / state_name(raft_group)
        paths = [path for path in disk.files() if path.parent == directory and disk.is_durable(path)]
        ids = [CheckpointId.from_file_name(path.name) for path in paths]
        require(
            any(id is not None and id >= (position.term, position.index) for id in ids),
            f"node {machine.id}, raft group {raft_group}: a log reset at {position} is durable, its checkpoint is not",
        )


def newest_checkpoint(disk: SimulatedDisk, raft_group: int) -> LogPosition:
    """Position of the newest valid checkpoint of a state group."""
    directory = DIRECTORY / "state" / state_name(raft_group)
    ids = [id for name in disk.names(directory) if (id := CheckpointId.from_file_name(name))]
    for id in sorted(ids, reverse=True):
        try:
            read_checkpoint(disk, directory / id.file_name)
        except CorruptData:
            continue
        return LogPosition(id.epoch, id.end_offset)
    return LogPosition(0, 0)


def _brief(rows: Sequence[ProposerRow]) -> list[tuple[int, int, dict[int, int]]]:
    return [(row.node_id, row.incarnation, dict(zip(row.sequences, row.values, strict=True))) for row in rows]


def _is_quorum(state: ConfState, there: Mapping[int, bool]) -> bool:
    return joint_vote_result(state.voters, state.voters_outgoing, there) is VoteResult.WON
