"""Functions of the product with one rule left out; `rules` says which."""

import asyncio
from collections.abc import Mapping
from typing import Any

from pixy.aio.retries import Backoff
from pixy.cluster.consumer_groups.group_coordinator import GroupCoordinator
from pixy.cluster.log.peer_starts import PeerStart, StartClaim
from pixy.cluster.log.replica import PartitionReplica
from pixy.cluster.peering import bootstrap_decision
from pixy.cluster.peering.bootstrap_decision import Found, Join, Wait
from pixy.cluster.peering.cluster_nodes import ClusterNodes
from pixy.cluster.peering.propose_answers import ProposeAnswers
from pixy.cluster.publications.replicated_staging import ReplicatedStaging
from pixy.cluster.state.groups import GroupsState
from pixy.cluster.state.nodes import NodeTable
from pixy.consume.acks.ack_lane import AckLane
from pixy.consume.acks.waiting_acks import WaitingAcks
from pixy.consume.group.group import ConsumerGroup
from pixy.consume.group.subscription import Subscription
from pixy.consume.partition.partition import LivePartition
from pixy.errors import PixyError
from pixy.multiraft.proposal_waiters import LeadershipLost
from pixy.multiraft.proposals import Forwarded
from pixy.multiraft.raft_group import RaftGroup
from pixy.peers import Address, Claim, Hello, NotYet
from pixy.peers.hello import Greeting, LinkPurpose
from pixy.proto.state_pb2 import PublishStages, RegisterNode
from pixy.raft import Message, reads
from pixy.raft.raft import Raft
from pixy.staging import Published
from pixy.storage import CheckpointId, CheckpointStore

_decide = bootstrap_decision.decide
_register = NodeTable.register
_propose = ProposeAnswers._propose
_look_elsewhere = WaitingAcks._look_elsewhere
_publish = ReplicatedStaging.publish


async def not_closed(*_: object, **__: object) -> None:
    """As `NodeCommands._close_elsewhere`, without the wait."""


def adopt_without_sync(self: CheckpointStore, id: CheckpointId) -> list[CheckpointId]:
    """A snapshot counts as durable, and is not."""
    self.disk.rename(self.directory / id.part_name, self.directory / id.file_name)
    return self._remove_old()


def takes_any_cluster(own: Greeting, peer: Greeting, purpose: LinkPurpose) -> str | None:
    """A handshake does not compare the clusters."""
    if purpose is LinkPurpose.PASSING:
        return None
    for each in (own.hello, peer.hello):
        if not each.cluster_id or not each.node_id:
            return NotYet(f"{each} has not joined the cluster yet")
    return None


def knows_any_secret(_: ClusterNodes, claim: Claim) -> None:
    """A node is taken for one of the cluster with another secret than it was registered with."""
    del claim


def admits_any_start(self: ClusterNodes, claim: Claim) -> str | None:
    """A node is admitted whatever metadata knows of it."""
    hello = claim.hello
    return self._starts.admit(
        StartClaim(hello.node_id, PeerStart(hello.incarnation, hello.flush_number), hello.process)
    )


def serve_unconfirmed(raft: Raft, m: Message) -> None:
    """A leader answers a read without asking anybody whether it still is one (Raft §8)."""
    reads._answer_read(raft, m, raft.log.committed)


def found_without_answers(own: Hello, answers: Mapping[Address, Hello | str]) -> Found | Join | Wait:
    """A cluster is founded without the answers of all nodes of the join list."""
    return _decide(
        own, {address: answer for address, answer in answers.items() if not isinstance(answer, str)}
    )


def same_id_again(self: NodeTable, command: RegisterNode) -> int | PixyError:
    """The next node gets the same id."""
    next_node_id = self.next_node_id
    node_id = _register(self, command)
    self.next_node_id = next_node_id
    return node_id


async def answer_of_a_lost_term(
    self: ProposeAnswers, group: RaftGroup, forwarded: Forwarded
) -> int | PixyError | LeadershipLost:
    """A leader that has lost its term answers with the offset that it has given a batch."""
    replica = group.application
    offset = replica.proposed_end if isinstance(replica, PartitionReplica) else 0
    led = group.leads
    result = await _propose(self, group, forwarded)
    return offset if led and isinstance(result, LeadershipLost) else result


async def not_confirmed(*_: Any) -> None:
    """Nobody is asked whether this node is behind."""


async def none_is_late(*_: Any) -> dict[Any, PixyError]:
    """The same for some partitions, each on its own."""
    return {}


async def answers_as_a_former_owner(self: WaitingAcks, lane: AckLane, backoff: Backoff) -> float:
    """A node that does not own the partition of an ack answers it."""
    if not self._target.is_elsewhere(lane.partition):
        return await _look_elsewhere(self, lane, backoff)
    await lane.answer(None)
    return 0.0


async def gives_on_at_once(self: ConsumerGroup, *_: Any) -> None:
    """A partition goes while its records are with clients."""
    del self


async def commits_once(self: ConsumerGroup) -> list[str]:
    """A topic is given up although positions of it are left over."""
    if self._commits.leftover:
        await self._commits.commit()
    return sorted(self._subscriptions)


def keeps_what_is_lost(self: Subscription, partition: int, **_: bool) -> LivePartition:
    """Records read from a partition are still handed out when another node owns it."""
    return next(live for live in self.partitions if live.partition == partition)


def coordinates_everywhere(self: GroupCoordinator) -> None:
    """Every node puts out of consumer groups whom it does not hear."""
    now = self._loop.time()
    self._sessions.tick(now - self._ticked_at, self._heard_at())
    self._ticked_at = now
    for replica in self._groups.groups:
        self._sessions.lead(replica.group.raft_group, 0)
        if not self._stopped:
            assert isinstance(replica.machine, GroupsState)
            self._expel_ended(replica, replica.machine)


async def answers_before_the_commit_point(self: ReplicatedStaging, command: PublishStages) -> Published:
    """A publication is answered as soon as it is proposed."""
    epoch = command.epoch
    publishing = asyncio.ensure_future(_publish(self, command))
    publishing.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    await asyncio.sleep(0)
    return publishing.result() if publishing.done() else Published(True, epoch)
