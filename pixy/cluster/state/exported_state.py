"""State that leaves a cluster with a backup, and becomes that of a new cluster. Pure.

Of the records of checkpoints, by state group:

    record                 is exported               in the new cluster
    ---------------------  ------------------------  -----------------------------------------------
    cluster                as it is                  the same raft groups; one node, no moves
    a node                 no: it has a secret       node 1, with a secret of its own
    a topic                as it is                  without moves, each partition on node 1
    a consumer group       without its members       active at the time of the restore
    a committed offset     as it is                  at most at the end of its partition
    a sink                 as it is                  active at the time of the restore; left out
                                                     if the records are cut
    the next numbers       as they are               the same; ids of producers far above, because
                                                     some may have been given since
    a publication, stage   no: it is waited for, or  none
                           was not published

Ids of topics and raft groups stay. Results of proposals do not (`GroupStateRecord.rows`): the new
nodes count their starts from 1 on, and rows of the old ones would answer new batches with old
offsets, unwritten. Nor do numbers of publications in partitions: all that come are above them.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pixy.cluster.state.groups import GroupsState
from pixy.cluster.state.metadata import MetadataState
from pixy.cluster.state.nodes import FEATURE_LEVEL, FIRST_NODE
from pixy.cluster.state.producer_commands import PRODUCER_IDS_SKIPPED
from pixy.cluster.state.publications import SinksState
from pixy.cluster.state.topic import Topic, topic_of
from pixy.parsed_messages import parsed
from pixy.proto.state_pb2 import (
    ClassicGroupRecord,
    ClusterRecord,
    CutOffsets,
    ForgetTopics,
    GroupRecord,
    GroupsCommand,
    NodeRecord,
    OffsetRecord,
    PartitionEnd,
    ReplicaSet,
    SinkRecord,
    TopicRecord,
    TouchGroups,
)

METADATA, SINKS, GROUPS = "metadata", "sinks", "groups-"

_CLUSTER_KEY, _TOPIC_KEY = b"cluster", b"topic/"
_GROUP_KEY, _SINK_KEY, _SINKS_KEY = b"group\0", b"sink\0", b"sinks"

Records = Iterable[tuple[bytes, bytes]]
"""Keys and values of a checkpoint."""


class ExportedRecord(NamedTuple):
    """A record of a state group's checkpoints."""

    state_group: str
    key: bytes
    value: bytes


class ExportedState(NamedTuple):
    """The state of a cluster as of one moment.

    Attributes:
        feature_level: newest commands that all nodes know.
        time_ms: of the state.
        records: made as they are taken, on any thread.
    """

    cluster_id: bytes
    feature_level: int
    time_ms: int
    records: Iterable[ExportedRecord]


def export_records(snapshots: Mapping[str, Records]) -> Iterator[ExportedRecord]:
    """The exported records of checkpoints, which are given by state group."""
    for name, records in snapshots.items():
        for key, value in records:
            exported = _exported(name, key, value)
            if exported is not None:
                yield ExportedRecord(name, key, exported)


def _exported(name: str, key: bytes, value: bytes) -> bytes | None:
    if name == METADATA:
        return value if key == _CLUSTER_KEY or key.startswith(_TOPIC_KEY) else None
    if name == SINKS:
        return value if key == _SINKS_KEY or key.startswith(_SINK_KEY) else None
    if not key.startswith(_GROUP_KEY):
        return value
    group = parsed(GroupRecord, value)
    group.ClearField("membership")
    if group.HasField("classic"):
        # It counts on, so that members of before are told apart.
        kept = ClassicGroupRecord(
            generation=group.classic.generation, protocol_type=group.classic.protocol_type
        )
        group.classic.CopyFrom(kept)
    return group.SerializeToString()


class StateToFound:
    """Exported state, as a backup has it.

    Args:
        records: all of it, in any order.

    Attributes:
        cluster: numbers that were given out.
        topics: by name.
        groups, sinks: records of consumer groups by state group, and of sinks.

    Raises:
        DecodeError, ValueError: no node exports such records.
    """

    def __init__(self, records: Iterable[ExportedRecord]) -> None:
        self.cluster = ClusterRecord()
        self.topics: dict[str, TopicRecord] = {}
        self.groups: defaultdict[str, list[tuple[bytes, bytes]]] = defaultdict(list)
        self.sinks: list[tuple[bytes, bytes]] = []
        for name, key, value in records:
            if name == METADATA and key == _CLUSTER_KEY:
                self.cluster = parsed(ClusterRecord, value)
            elif name == METADATA and key.startswith(_TOPIC_KEY):
                topic = parsed(TopicRecord, value)
                self.topics[topic.name] = topic
            elif name == SINKS:
                self.sinks.append((key, value))
            elif name.startswith(GROUPS):
                self.groups[name].append((key, value))
            else:
                raise ValueError(f"a record {key!r} of state group {name}")

    def made_topics(self) -> list[Topic]:
        """The topics."""
        return list(map(topic_of, self.topics.values()))

    def offsets(self) -> Iterator[OffsetRecord]:
        """Committed offsets."""
        for records in self.groups.values():
            for key, value in records:
                if not key.startswith(_GROUP_KEY):
                    yield parsed(OffsetRecord, value)


@dataclass(frozen=True, slots=True)
class FoundedCluster:
    """A new cluster.

    Attributes:
        secret: of its only node, 16 bytes.
        version: release of that node.
        now_ms: the time of the restore.
        ends: end of the log by id of the topic and partition, of all that are restored.
        keeps_sinks: False if records are left out that a sink may have published.
    """

    secret: bytes
    version: str
    now_ms: int
    ends: Mapping[tuple[bytes, int], int]
    keeps_sinks: bool = True


def found_cluster(state: StateToFound, founded: FoundedCluster) -> dict[str, Records]:
    """The checkpoints of a new cluster with exported state, by state group.

    Raises:
        ValueError: no commands lead to such state.
    """
    count = state.cluster.groups_count
    if not count or not {*state.groups} <= {f"{GROUPS}{number}" for number in range(count)}:
        raise ValueError(f"{count} state groups of consumer groups, and records of {sorted(state.groups)}")
    found: dict[str, Records] = {METADATA: _metadata(state, founded)}
    for number in range(count):
        found[f"{GROUPS}{number}"] = _groups(state.groups.get(f"{GROUPS}{number}", []), founded)
    found[SINKS] = _sinks(state.sinks, founded)
    return found


def _metadata(state: StateToFound, founded: FoundedCluster) -> Records:
    cluster = ClusterRecord(
        groups_count=state.cluster.groups_count,
        next_raft_group=state.cluster.next_raft_group,
        next_node_id=FIRST_NODE + 1,
        next_producer_id=state.cluster.next_producer_id + PRODUCER_IDS_SKIPPED,
    )
    node = NodeRecord(
        node_id=FIRST_NODE, secret=founded.secret, version=founded.version, feature_level=FEATURE_LEVEL
    )
    records = [
        (_CLUSTER_KEY, cluster.SerializeToString()),
        (b"node/%d" % FIRST_NODE, node.SerializeToString()),
    ]
    restored = {topic_id for topic_id, _ in founded.ends}
    for name, topic in state.topics.items():
        if topic.topic_id in restored:
            records.append((_TOPIC_KEY + name.encode(), _alone(topic).SerializeToString()))
    MetadataState().restore(records)
    return records


def _alone(topic: TopicRecord) -> TopicRecord:
    """A topic with each partition on the first node."""
    found = TopicRecord()
    found.CopyFrom(topic)
    for name in ("replica_sets", "replica_set", "placements"):
        found.ClearField(name)
    found.replica_sets.append(ReplicaSet(node_ids=[FIRST_NODE]))
    found.replica_set.extend([0] * len(topic.raft_groups))
    return found


def _groups(records: list[tuple[bytes, bytes]], founded: FoundedCluster) -> Records:
    """Consumer groups, by the commands that do the same in a cluster."""
    groups = GroupsState()
    groups.restore(records)
    restored = {topic_id for topic_id, _ in founded.ends}
    gone = ForgetTopics(topic_ids=sorted(groups.topic_ids() - restored))
    ends = CutOffsets(
        ends=[
            PartitionEnd(topic_id=topic_id, partition=partition, end_offset=end)
            for (topic_id, partition), end in founded.ends.items()
        ]
    )
    names = [name for some in groups.scan(1000) for name in some]
    active = TouchGroups(groups=names, timestamp_ms=founded.now_ms)
    for command in (
        GroupsCommand(forget_topics=gone),
        GroupsCommand(cut_offsets=ends),
        GroupsCommand(touch_groups=active),
    ):
        groups.apply(command.SerializeToString())
    return list(groups.snapshot())


def _sinks(records: list[tuple[bytes, bytes]], founded: FoundedCluster) -> Records:
    found = []
    for key, value in records:
        if not key.startswith(_SINK_KEY):
            found.append((key, value))
        elif founded.keeps_sinks:
            sink = parsed(SinkRecord, value)
            sink.active_ms = max(sink.active_ms, founded.now_ms)
            found.append((key, sink.SerializeToString()))
    SinksState().restore(found)
    return found
