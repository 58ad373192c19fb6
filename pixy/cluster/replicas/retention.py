"""Retention of records, by age and size; expiry of the offsets of consumer groups that have had no
members for long, and of idempotent producers that have written nothing for long.

A periodic check decides and proposes, where the raft group concerned is led: a partition's new log
begin offset and the expiry of its producers are entries of its raft group, and the expiry of a
consumer group's offsets is an entry of its state group. Segments below the new begin go in these
steps: `storage.partition.retention` decides, the entry is applied, the applied position is durable,
`PartitionLog` renames the files, `storage.disk.removal` unlinks them.

The activity of consumer groups with members is recorded periodically as well, so that their offsets
are kept while they live, also over restarts.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence

import structlog

from pixy.aio.steps import run_in_steps
from pixy.cluster.log import PartitionCondition, PartitionReplica, Replica, StateReplica
from pixy.cluster.replicas.node_time import NodeTime
from pixy.cluster.replicas.partitions import Partitions
from pixy.cluster.state import EXPIRED_MAX, GroupsState, expire_producers
from pixy.config import StorageConfig
from pixy.proto.state_pb2 import ExpireGroups, GroupsCommand, PartitionCommand, SetLogBeginOffset, TouchGroups
from pixy.records import PRODUCERS_MAX, ProducerTable

log = structlog.get_logger(__name__)

_PARTITIONS_PER_ITERATION = 200
_GROUPS_PER_ITERATION = 500
CROWDED = PRODUCERS_MAX * 3 // 4
"""Producers of a partition from which on those are forgotten that have been quiet for a while."""
QUIET_MS = 600_000
"""That while: twice the time for which clients send a batch again (librdkafka: 5 minutes)."""
_TOUCHES = 8
"""Times that a consumer group with members is recorded as active within the time after which its
offsets expire.
"""


class Retention:
    """Decides what expires.

    Args:
        time: clock for ages.
        storage: interval of the check, and retention of offsets.
        partitions: the node's partitions.
        state_groups: the state groups that hold consumer groups.
        propose: proposes a command to a raft group.
        clean_up: expires everything else that is due at a time.
        is_joined: true of a consumer group whose members are about to be stored.
    """

    def __init__(
        self,
        time: NodeTime,
        storage: StorageConfig,
        partitions: Partitions,
        state_groups: Sequence[StateReplica],
        propose: Callable[[Replica, bytes], None],
        clean_up: Callable[[int], None],
        is_joined: Callable[[str], bool],
    ) -> None:
        self._time = time
        self._storage = storage
        self._partitions = partitions
        self._state_groups = state_groups
        self._propose = propose
        self._clean_up = clean_up
        self._is_joined = is_joined
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None

    def start(self) -> None:
        """Schedule the next check."""
        self._timer = self._loop.call_later(self._storage.retention_check, self._check)

    def stop(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        age_ms = self._time.age_ms()
        self._partitions.producers_ms = -1 if age_ms is None else age_ms
        if age_ms is None:
            log.warning(
                "nothing expires: no majority of the nodes agrees with the clock of this machine, or none has "
                "told this one yet what time counted before it came"
            )
            self.start()
            return
        if self._storage.offsets_retention:
            run_in_steps(self._check_groups(age_ms))
        self._clean_up(age_ms)
        self._check_partitions(list(self._partitions), age_ms)

    def _check_partitions(self, partitions: list[PartitionReplica], now_ms: int) -> None:
        for replica in partitions[:_PARTITIONS_PER_ITERATION]:
            group = replica.group
            if group is None or not group.decides or replica.deleted:
                continue
            if replica.condition is not PartitionCondition.READY:
                continue
            offset = replica.log.retained_from(now_ms)
            if offset > replica.log.begin_offset:
                command = PartitionCommand(set_log_begin_offset=SetLogBeginOffset(offset=offset))
                self._propose(replica, command.SerializeToString())
            if replica.producers is not None:
                self._check_producers(replica, replica.producers, now_ms)
        rest = partitions[_PARTITIONS_PER_ITERATION:]
        if rest:
            self._timer = self._loop.call_soon(self._check_partitions, rest, now_ms)
        else:
            self.start()

    def _check_producers(self, replica: PartitionReplica, producers: ProducerTable, now_ms: int) -> None:
        kept_ms = round(self._storage.producers_retention * 1000)
        if len(producers) >= CROWDED:
            kept_ms = min(kept_ms, QUIET_MS)
        # What they write has the time of the check before.
        kept_ms += round(2000 * self._storage.retention_check)
        idle = producers.idle(now_ms, now_ms - kept_ms, EXPIRED_MAX)
        if idle:
            self._propose(replica, expire_producers(idle))

    def _check_groups(self, now_ms: int) -> Iterator[None]:
        """Check all consumer groups, some per step."""
        for replica in self._state_groups:
            if not replica.group.decides:
                continue
            machine = replica.machine
            assert isinstance(machine, GroupsState)
            for groups in machine.scan(_GROUPS_PER_ITERATION):
                self._decide(replica, machine, groups, now_ms)
                yield

    def _decide(
        self, replica: StateReplica, machine: GroupsState, groups: Sequence[str], now_ms: int
    ) -> None:
        kept_ms = round(self._storage.offsets_retention * 1000)
        before_ms, quiet_ms = now_ms - kept_ms, now_ms - kept_ms // _TOUCHES
        quiet = [group for group in groups if machine.is_inactive_since(group, quiet_ms)]
        alive = [group for group in quiet if machine.has_members(group) or self._is_joined(group)]
        if alive:
            command = GroupsCommand(touch_groups=TouchGroups(groups=alive, timestamp_ms=self._time.wall_ms()))
            self._propose(replica, command.SerializeToString())
        gone = [group for group in quiet if machine.is_inactive_since(group, before_ms)]
        gone = sorted(set(gone).difference(alive))
        if gone:
            command = GroupsCommand(expire_groups=ExpireGroups(groups=gone, before_ms=before_ms))
            self._propose(replica, command.SerializeToString())
