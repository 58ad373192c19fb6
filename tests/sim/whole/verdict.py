"""Judgement of a cluster at rest: everything is answered, all nodes are equal, and what clients
were told is there.
"""

from collections.abc import Iterator, Sequence
from zlib import crc32

from pixy.cluster import PartitionReplica, Topic
from pixy.cluster.log.partition_condition import PartitionCondition
from pixy.cluster.log.replica import StateReplica
from pixy.cluster.state.groups import GroupsState
from pixy.cluster.state.metadata import METADATA_GROUP
from pixy.cluster.state.publications import SinksState
from pixy.config import StagingConfig, StorageConfig
from pixy.multiraft.raft_group import FIRST_PARTITION_GROUP
from pixy.records import TopicPartition, read_records, split_batches
from tests.sim.kit.failure import require
from tests.sim.kit.messages import message_id
from tests.sim.whole.calls import Call, Outcome
from tests.sim.whole.cluster import Cluster
from tests.sim.whole.group_audit import GroupPartition
from tests.sim.whole.log_audit import Record
from tests.sim.whole.machine import Machine
from tests.sim.whole.watches import content_of, groups_of

_READ_BYTES = 1 << 16
_LATE_MS = 60_000
"""Time that a decision about age may take."""


class Verdict:
    """Judges one cluster.

    Args:
        cluster: see `Cluster`.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._logs: dict[int, Sequence[Record]] = {}

    # --- at rest ----------------------------------------------------------------------------------

    def unsettled(self) -> Iterator[str]:
        """Everything that is not as it should be in a cluster at rest."""
        cluster = self._cluster
        for machine in self.healthy():
            if not machine.ready:
                peers = None if machine.node is None else machine.node.peers
                waits = "" if peers is None else f", waits for: {peers.waiting_for}"
                yield f"{machine} is not ready: {machine.refusal}{waits}{cluster.describe(METADATA_GROUP)}"
            elif machine.node is not None and machine.node.blocked is not None:
                yield f"{machine} takes no records yet: {machine.node.blocked}"
            if machine.busy_until > cluster.scene.now:
                yield f"the disk of {machine} was slow"
        for raft_group in cluster.raft_groups():
            yield from self._unsettled_group(raft_group)
        if cluster.swarm.consuming.clients:
            for group in cluster.swarm.consuming.groups:
                for topic in cluster.swarm.consuming.topics:
                    yield from self._undelivered(group, topic)
        if not self.has_stuck_partitions():
            for sink in cluster.sinks.unfinished():
                yield f"{sink} has not published its epoch"
            for producer in cluster.producers.unfinished():
                yield f"{producer} has batches that are not answered"
        for call in cluster.calls.open:
            yield f"no answer to {call}"

    def healthy(self) -> list[Machine]:
        """Machines that must serve."""
        return [
            each for each in self._cluster.ordinary() if each.lives and not each.retired and not each.broken
        ]

    def ready(self) -> list[Machine]:
        """Machines that take calls."""
        return [each for each in self.healthy() if each.ready]

    def has_stuck_partitions(self) -> bool:
        """True if some partition is stuck."""
        return any(map(self.is_stuck, self._cluster.raft_groups()))

    def is_stuck_partition(self, topic: str, number: int) -> bool:
        """True if a partition of a topic is there and stuck."""
        known = self._topic(topic)
        return known is not None and any(map(self.is_stuck, known.raft_groups[number : number + 1]))

    def misses_records(self, group: str, topic: str) -> bool:
        """True if there are records of a topic that no client of a consumer group got."""
        return any(self._undelivered(group, topic))

    def _undelivered(self, group: str, topic: str) -> Iterator[str]:
        known = self._topic(topic)
        if known is None:
            return
        for number, raft_group in enumerate(known.raft_groups):
            if self.is_stuck(raft_group):
                continue
            ends = [
                replica.log.end_offset
                for each in self.healthy()
                if (found := groups_of(each).get(raft_group)) is not None
                and isinstance(replica := found.application, PartitionReplica)
            ]
            key = GroupPartition(group, known.topic_id, number)
            missing = self._cluster.group_audit.first_missing(key, max(ends, default=0))
            if missing is not None:
                where = TopicPartition(topic, number)
                yield f"no client of {group} got {missing} of {where}, {self._cluster.group_audit.describe(key)}"

    def _topic(self, name: str) -> Topic | None:
        leader = self._cluster.leader()
        return None if leader is None or leader.node is None else leader.node.metadata.topics.get(name)

    def _unsettled_group(self, raft_group: int) -> Iterator[str]:
        cluster = self._cluster
        if self.is_stuck(raft_group):
            return
        leader = cluster.leader(raft_group)
        if leader is None:
            groups = [groups_of(each).get(raft_group) for each in self.healthy()]
            if all(group is None or not group.has_peers for group in groups):
                return  # it has no leader until somebody asks for something
            yield f"raft group {raft_group} has no leader: {cluster.describe(raft_group)}"
            return
        if leader.broken:
            yield f"{leader} leads raft group {raft_group}: {cluster.describe(raft_group)}"
        yield from self._wrong_members(leader, raft_group)
        yield from self._unmoved(leader, raft_group)
        last = groups_of(leader)[raft_group].storage.last_index()
        for machine in self._members(leader, raft_group):
            group = groups_of(machine).get(raft_group)
            applied = 0 if group is None else group.applied_index
            if applied != last:
                yield f"{machine}, raft group {raft_group}: applied {applied} of {last}: {cluster.describe(raft_group)}"
            elif group is not None and group.held is not None:
                yield f"{machine}, raft group {raft_group}: its files are being replaced by a copy"

    def _wrong_members(self, leader: Machine, raft_group: int) -> Iterator[str]:
        """All registered nodes are members of each state group, the first ones with a vote."""
        if raft_group >= FIRST_PARTITION_GROUP or any(each.broken for each in self._cluster.ordinary()):
            return
        assert leader.node is not None
        registered = sorted(leader.node.metadata.registered)
        voters = next(count for count in (5, 3, 2, 1) if count <= len(registered))
        if raft_group != METADATA_GROUP:
            voters = min(voters, 3)
        state = groups_of(leader)[raft_group].storage.conf_state
        expected = (tuple(registered[:voters]), tuple(registered[voters:]), ())
        found = (state.voters, state.learners, state.voters_outgoing)
        if found != expected:
            yield f"raft group {raft_group} has members {found}, nodes are {registered}"

    def _broken_nodes(self) -> set[int]:
        """Nodes of the machines that are broken for good."""
        broken = [each.identity for each in self._cluster.ordinary() if each.broken]
        return {identity.node_id for identity in broken if identity is not None}

    def _unmoved(self, leader: Machine, raft_group: int) -> Iterator[str]:
        """Moves have ended: the members are the replicas, and other nodes have no files."""
        if raft_group < FIRST_PARTITION_GROUP:
            return
        assert leader.node is not None
        for topic in leader.node.metadata.topics.values():
            if raft_group not in topic.raft_groups:
                continue
            number = topic.raft_groups.index(raft_group)
            replicas = topic.replicas[number]
            state = groups_of(leader)[raft_group].storage.conf_state
            move = topic.moves.get(number)
            if move is not None and self._broken_nodes().intersection(move.target).difference(state.voters):
                continue  # it was asked for while nobody knew, and waits for a node that is gone
            if move is not None or {*replicas} != state.members:
                yield f"{topic.name}-{number} of {replicas} has members {state}, moves: {topic.moves}"
            for machine in self.healthy():
                if machine.node is not None and machine.node.node_id not in replicas:
                    left = {path.parent.name for path in machine.disk.files()} & {
                        f"{topic.name}-{number}",
                        f"{raft_group}-copy",
                        f"{raft_group}-replaced",
                    }
                    if left:
                        yield f"{machine} has files of {topic.name}-{number} of {replicas}: {left}"

    def is_stuck(self, raft_group: int) -> bool:
        """True if a partition cannot go on for want of replicas: too many are broken."""
        if raft_group < FIRST_PARTITION_GROUP:
            return False
        groups = [group for each in self.healthy() if (group := groups_of(each).get(raft_group)) is not None]
        if not groups:
            return True
        voters = max(groups, key=lambda group: group.applied_index).storage.conf_state.voters
        there = [each for each in self.healthy() if each.node is not None and each.node.node_id in voters]
        stuck = 2 * len(there) <= len(voters)
        self._cluster.scene.counts["partitions without a majority"] += stuck
        return stuck

    def _members(self, leader: Machine, raft_group: int) -> list[Machine]:
        """Machines with the members of a raft group."""
        state = groups_of(leader)[raft_group].storage.conf_state
        members = {*state.voters, *state.learners, *state.voters_outgoing}
        return [each for each in self.healthy() if each.node is not None and each.node.node_id in members]

    # --- replicas ---------------------------------------------------------------------------------

    def read_replicas(self) -> None:
        """Compare all replicas of every partition and state group, byte by byte, and have what
        clients were told judged by them. A partition that cannot go on may not know yet what is
        committed.
        """
        for raft_group in self._cluster.raft_groups():
            leader = self._cluster.leader(raft_group)
            if leader is None or self.is_stuck(raft_group):
                continue
            led = self._content(leader, raft_group)
            for machine in self._members(leader, raft_group):
                if raft_group in groups_of(machine):
                    self._compare(raft_group, machine, leader, led)

    def _compare(self, raft_group: int, machine: Machine, leader: Machine, led: tuple[int, bytes]) -> None:
        begin, data = self._content(machine, raft_group)
        require(begin == 0, f"raft group {raft_group}: {machine} begins at {begin}, and nothing is old")
        skipped = max(0, len(led[1]) - len(data)) if begin > led[0] else 0
        expected = led[1][skipped:]
        require(
            data == expected,
            f"raft group {raft_group}: {machine} has {len(data)} bytes ({crc32(data):08x}) from {begin} on, "
            f"{leader} {len(led[1])} ({crc32(led[1]):08x}) from {led[0]} on",
        )
        replica = groups_of(machine)[raft_group].application
        if isinstance(replica, PartitionReplica):
            audit = self._cluster.audits.log(replica.partition, replica.log.identity.topic_id)
            if audit is not None:
                records = _records_of(data, begin)
                audit.replica(f"the replica of {machine}", begin, records)
                self._logs[id(audit)] = records
                self._cluster.scene.counts["records in replicas"] += len(records)

    def _content(self, machine: Machine, raft_group: int) -> tuple[int, bytes]:
        """Begin and content of a replica."""
        application = groups_of(machine)[raft_group].application
        if isinstance(application, PartitionReplica):
            return _bytes_of(application)
        assert isinstance(application, StateReplica)
        return 0, content_of(application)

    def check_marks(self, marks: Sequence[Call]) -> None:
        """Check that everything that was asked for at rest was answered, as far as partitions have
        replicas that can answer.
        """
        for call in marks:
            if call.outcome is not Outcome.OK:
                require(self._is_excused(call), f"{call}: {call.answer!r}")
        self._cluster.scene.counts["marks"] += len(marks)

    def _is_excused(self, call: Call) -> bool:
        leader = self._cluster.leader()
        assert leader is not None
        assert leader.node is not None
        topics = leader.node.metadata.topics
        if call.what == "offset ranges":
            return any(map(self.is_stuck, topics[call.input].raft_groups))
        if call.what != "append":
            return False
        topic, number = call.input[0]
        raft_group = topics[topic].raft_groups[number]
        return self.is_stuck(raft_group) or self._is_room_taken()

    def _is_room_taken(self) -> bool:
        """True if a node has entries that it can neither commit nor replace: what they take of the
        room for proposals, all partitions lack.
        """
        for machine in self.healthy():
            for group in groups_of(machine).values():
                lost = self._cluster.leader(group.raft_group) is None
                if group.has_tail and (lost or self.is_stuck(group.raft_group)):
                    return True
        return False

    # --- age --------------------------------------------------------------------------------------

    def too_old(self) -> Iterator[str]:
        """Records, offsets and stages that should be gone by now, wherever a majority decides."""
        leader = self._cluster.leader()
        if leader is None or leader.node is None:
            return
        counting = [
            node for node in leader.node.metadata.nodes.values() if node.has_started and not node.removed
        ]
        if 2 * len(self.healthy()) <= len(counting):
            return
        for raft_group in self._cluster.raft_groups():
            leader = self._cluster.leader(raft_group)
            if leader is not None and not leader.broken and not self.is_stuck(raft_group):
                application = groups_of(leader)[raft_group].application
                yield from _too_old(application, leader.clock.true_ms() - _LATE_MS)

    # --- the end ----------------------------------------------------------------------------------

    def judge(self) -> None:
        """Judge the histories of all calls."""
        self._cluster.audits.check_objects()
        self._cluster.audits.check_searches(self._logs)


def _too_old(application: object, now_ms: int) -> Iterator[str]:
    storage, staging = StorageConfig(), StagingConfig()
    if isinstance(application, PartitionReplica):
        options, segments = application.log.topic.options, application.log._files.segments
        if options.retention_ms is None or application.condition is not PartitionCondition.READY:
            return
        if segments and segments[0].size and 0 <= segments[0].max_timestamp < now_ms - options.retention_ms:
            yield f"{application.partition} has records of {segments[0].max_timestamp}"
    elif isinstance(application, StateReplica) and isinstance(groups := application.machine, GroupsState):
        before_ms = now_ms - round(storage.offsets_retention * 1000)
        for names in groups.scan(100):
            for name in names:
                if groups.is_inactive_since(name, before_ms) and not groups.has_members(name):
                    yield f"{application.name} has offsets of {name}"
    elif isinstance(application, StateReplica) and isinstance(application.machine, SinksState):
        table = application.machine.table
        for stage in table.stages.values():
            if table.is_over_since(stage, now_ms - round(staging.expiry * 1000)):
                yield f"{application.name} has stage {stage.name}"


def _bytes_of(replica: PartitionReplica) -> tuple[int, bytes]:
    """Begin and all batches of a partition, from memory or disk."""
    log = replica.log
    begin = at = log.begin_offset
    batches: list[bytes] = []
    while at < log.end_offset:
        chunk = log.read_memory(at, _READ_BYTES) or log.read(at, _READ_BYTES)
        require(chunk.next_offset > at, f"{replica.partition}: nothing at {at}, end {log.end_offset}")
        batches += [bytes(batch) for batch in chunk.batches]
        at = chunk.next_offset
    return begin, b"".join(batches)


def _records_of(data: bytes, begin: int) -> list[Record]:
    return [
        Record(record.offset, message_id(record.value or b""), record.timestamp)
        for batch in (split_batches(memoryview(data)) if data else ())
        for record in read_records(batch)
        if record.offset >= begin
    ]
