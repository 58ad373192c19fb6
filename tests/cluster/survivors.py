"""Data directories of node 1 of several, whose journal was written together with the others."""

from collections.abc import Sequence
from pathlib import Path

from pixy.cluster.log.replica import StateMachine, StateReplica
from pixy.cluster.state.groups import FIRST_GROUPS_GROUP, GroupsState
from pixy.cluster.state.metadata import METADATA_GROUP, MetadataState
from pixy.cluster.state.publications import SINKS_GROUP, SinksState
from pixy.multiraft.raft_group import RaftGroup
from pixy.proto.state_pb2 import (
    CreateTopic,
    InitCluster,
    MetadataCommand,
    NodeRecord,
    RegisterNode,
    StartNode,
)
from pixy.raft import ConfState, Message, MessageType
from pixy.storage import CheckpointStore, EntryType
from tests.cluster.drivers import BATCH, PayloadLog, batch_of
from tests.cluster.node_logs import open_log
from tests.fakes.waiting import settle

PARTITION = 1000
ALL = (1, 2, 3)
_ANSWERS = {
    MessageType.PRE_VOTE: MessageType.PRE_VOTE_RESP,
    MessageType.VOTE: MessageType.VOTE_RESP,
    MessageType.APP: MessageType.APP_RESP,
}


class Survivor:
    """Node 1 of a cluster, whose other nodes agree to everything while `answers` is set.

    Attributes:
        groups: its raft groups by id, once they are led.
        metadata: its metadata, once it is formed.
    """

    metadata: MetadataState

    def __init__(self, directory: Path, voters: tuple[int, ...] = ALL) -> None:
        self.directory = directory
        self.voters = voters
        self.answers = True
        self.groups: dict[int, RaftGroup] = {}
        self._letters: list[tuple[int, Message]] = []
        self.log, _, self.disk, self.faults = open_log(directory, send=self._send)

    def _send(self, peer: int, messages: Sequence[tuple[int, Message]]) -> None:
        for raft_group, message in messages:
            kind = _ANSWERS.get(message.type)
            if kind is not None and self.answers:
                index = message.index + len(message.entries)
                self._letters.append((raft_group, Message(kind, 1, peer, message.term, index=index)))

    async def settle(self) -> None:
        for _ in range(6):
            await settle()
            await self.log.journal.drained()
            letters, self._letters = self._letters, []
            for raft_group, message in letters:
                self.log.driver.step(raft_group, message)

    async def state_group(self, raft_group: int, name: str, machine: StateMachine) -> StateReplica:
        store = CheckpointStore(self.disk, self.directory / "state" / name)
        group = self.log.driver.group(raft_group, ConfState(self.voters))
        replica = StateReplica(group, name, machine, store)
        self.log.bind(replica, StateReplica.apply)
        await self.lead(group)
        return replica

    async def partition(self, raft_group: int = PARTITION) -> RaftGroup:
        group = self.log.driver.group(raft_group, ConfState(self.voters))
        self.log.driver.bind(group, PayloadLog(), PayloadLog.apply)
        await self.lead(group)
        return group

    async def lead(self, group: RaftGroup) -> None:
        self.log.driver.open(group).campaign()
        self.log.driver.drive(group)
        await self.settle()
        assert group.leads
        self.groups[group.raft_group] = group

    async def command(self, command: MetadataCommand) -> None:
        payload = command.SerializeToString()
        self.log.driver.propose(self.groups[METADATA_GROUP], EntryType.COMMAND, payload, lambda _: None)
        await self.settle()

    async def append(self, *values: bytes, raft_group: int = PARTITION) -> None:
        for value in values:
            self.log.driver.propose(self.groups[raft_group], BATCH, batch_of(value), lambda _: None)
            await self.settle()

    def end(self) -> None:
        """End the node as a crash does."""
        assert self.faults == []
        self.log.abandon()


def registration(node_id: int, level: int = 1) -> MetadataCommand:
    """The command of a node that joins."""
    secret = bytes([node_id]) * 16
    return MetadataCommand(
        register_node=RegisterNode(secret=secret, address=f"10.0.0.{node_id}:19094", feature_level=level)
    )


async def formed(directory: Path, nodes: tuple[int, ...] = ALL, level: int = 1) -> Survivor:
    """A cluster with the topic `topic`, of one partition with a replica on all nodes.

    Args:
        level: feature level of the nodes.
    """
    survivor = Survivor(directory, nodes)
    metadata = await survivor.state_group(METADATA_GROUP, "metadata", MetadataState())
    first = NodeRecord(
        node_id=1, secret=bytes(16), address="10.0.0.1:19094", incarnation=1, feature_level=level
    )
    await survivor.command(MetadataCommand(init_cluster=InitCluster(groups_count=1, first_node=first)))
    for node_id in nodes[1:]:
        command = registration(node_id, level)
        await survivor.command(command)
        start = StartNode(
            node_id=node_id,
            secret=command.register_node.secret,
            address=command.register_node.address,
            incarnation=1,
            feature_level=level,
        )
        await survivor.command(MetadataCommand(start_node=start))
    await survivor.command(
        MetadataCommand(create_topic=CreateTopic(name="topic", topic_id=b"t" * 16, partitions=1))
    )
    assert isinstance(metadata.machine, MetadataState)
    assert metadata.machine.topics["topic"].replicas[0] == nodes
    survivor.metadata = metadata.machine
    return survivor


async def formed_with_records(directory: Path, *values: bytes) -> Survivor:
    survivor = await formed(directory)
    await survivor.state_group(FIRST_GROUPS_GROUP, "groups-0", GroupsState())
    await survivor.state_group(SINKS_GROUP, "sinks", SinksState())
    await survivor.partition()
    await survivor.append(*values)
    return survivor
