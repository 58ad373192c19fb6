"""Judgement of a cluster at rest: everything is answered, all nodes are equal, and what clients
were told is there.
"""

from collections.abc import Iterator, Sequence
from typing import Any
from zlib import crc32

from pixy.cluster import PartitionReplica
from pixy.cluster.metadata import METADATA_GROUP
from pixy.cluster.replica import StateReplica
from pixy.records import TopicPartition, read_records, split_batches
from tests.sim.cluster.history import message_id, require
from tests.sim.whole.cluster import Cluster
from tests.sim.whole.log_audit import Record
from tests.sim.whole.machine import Machine
from tests.sim.whole.watches import groups_of

__all__ = ["Verdict"]

_READ_BYTES = 1 << 16


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
        for machine in self._machines():
            if not machine.serving:
                peers = None if machine.node is None else machine.node.peers
                waits = "" if peers is None else f", waits for: {peers.waiting_for}"
                yield f"{machine} does not serve: {machine.refusal}{waits}{cluster.describe(METADATA_GROUP)}"
        for raft_group in cluster.raft_groups():
            yield from self._unsettled_group(raft_group)
        for call in cluster.calls.open:
            yield f"no answer to {call}"

    def _machines(self) -> list[Machine]:
        """Machines that must serve."""
        return [each for each in self._cluster.machines.values() if each.lives and not each.retired]

    def _unsettled_group(self, raft_group: int) -> Iterator[str]:
        cluster = self._cluster
        leader = cluster.leader(raft_group)
        if leader is None:
            groups = [
                groups_of(each)[raft_group] for each in self._machines() if raft_group in groups_of(each)
            ]
            if any(group.has_peers or group.node is not None for group in groups):
                yield f"raft group {raft_group} has no leader: {cluster.describe(raft_group)}"
            return
        last = groups_of(leader)[raft_group].storage.last_index()
        for machine in self._machines():
            group = groups_of(machine).get(raft_group)
            if group is not None and group.applied_index != last:
                yield f"{machine}, raft group {raft_group}: applied {group.applied_index} of {last}: {cluster.describe(raft_group)}"

    # --- replicas ---------------------------------------------------------------------------------

    async def read_replicas(self) -> None:
        """Compare all replicas of every partition and state group, byte by byte, and have what
        clients were told judged by them.
        """
        contents: dict[Any, tuple[Machine, int, bytes]] = {}
        for machine in self._machines():
            node = machine.node
            assert node is not None
            for group in groups_of(machine).values():
                if isinstance(group.application, StateReplica):
                    digest = b"".join(
                        key + value for key, value in sorted(group.application.machine.snapshot())
                    )
                    self._compare(contents, group.raft_group, machine, 0, digest)
            for name, topic in node.metadata.topics.items():
                for number in range(len(topic.raft_groups)):
                    partition = TopicPartition(name, number)
                    replica = node.partition(partition)
                    if replica is not None:
                        self._read(contents, machine, replica, topic.topic_id)

    def _read(
        self,
        contents: dict[Any, tuple[Machine, int, bytes]],
        machine: Machine,
        replica: PartitionReplica,
        topic_id: bytes,
    ) -> None:
        begin, data = _bytes_of(replica)
        self._compare(contents, replica.raft_group, machine, begin, data)
        audit = self._cluster.audits.log(replica.partition, topic_id)
        if audit is not None:
            records = _records_of(data, begin)
            audit.replica(f"the replica of {machine}", begin, records)
            self._logs[id(audit)] = records
            self._cluster.scene.counts["records in replicas"] += len(records)

    def _compare(
        self,
        contents: dict[Any, tuple[Machine, int, bytes]],
        raft_group: int,
        machine: Machine,
        begin: int,
        data: bytes,
    ) -> None:
        other, known_begin, known = contents.setdefault(raft_group, (machine, begin, data))
        if known_begin == begin:
            require(
                data == known,
                f"raft group {raft_group}: {machine} has {len(data)} bytes ({crc32(data):08x}), {other} {len(known)} ({crc32(known):08x})",
            )

    # --- the end ----------------------------------------------------------------------------------

    def judge(self) -> None:
        """Judge the histories of all calls."""
        self._cluster.audits.check_objects()
        self._cluster.audits.check_searches(self._logs)


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
