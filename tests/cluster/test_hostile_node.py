"""A registered node that sends what no correct one does, by its own connections: the others go on,
and start again.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from pixy.backend import TopicPartition
from pixy.cluster.peering.peer_messages import (
    Beat,
    MessageKind,
    PeerMethod,
    encode_beat,
    encode_proposal,
    encode_raft,
)
from pixy.cluster.state.groups import FIRST_GROUPS_GROUP
from pixy.cluster.state.metadata import METADATA_GROUP
from pixy.entry_ids import TERM_JUMP_MAX, TERM_MAX, ProposalId
from pixy.errors import InvalidArgument, PixyError, ResourceExhausted, Unavailable
from pixy.multiraft.dedup_table import WINDOW
from pixy.multiraft.proposals import Forwarded
from pixy.multiraft.raft_group import FIRST_PARTITION_GROUP
from pixy.proto.node_calls_pb2 import (
    FetchRequest,
    GetPieceRequest,
    GetPieceResponse,
    JoinRequest,
    LeadersRequest,
    OffsetsRequest,
    PieceBytes,
    ProposeRequest,
    ProposeResponse,
    PutPiecesRequest,
    RangesRequest,
    Relayed,
)
from pixy.proto.pixy_cluster_pb2 import RaftGroupStatus, StatusResponse
from pixy.proto.state_pb2 import (
    CommitOffsets,
    CommittedOffset,
    GroupsCommand,
    MetadataCommand,
    OpenStage,
    PartitionDescriptor,
    ProposerRow,
    SinksCommand,
    StartNode,
)
from pixy.raft import ConfState, Message, MessageType, Snapshot
from pixy.records import crc32c
from pixy.storage import EntryType
from tests.cluster.drivers import batch_of
from tests.cluster.node_clusters import ClusterNode, NodeCluster, host_of, run_cluster
from tests.cluster.peering.test_forwarded_proposals import large
from tests.cluster.test_poisoned_entries import NOISE, REFUSED
from tests.fakes.batches import BROKEN_RECORD, bomb, raw_batch, raw_record
from tests.fakes.waiting import until
from tests.sim.loop import VirtualLoop

pytestmark = pytest.mark.slow

TOPIC = TopicPartition("topic", 0)
TERMS = (2**64 - 1, TERM_MAX + 1, TERM_MAX, TERM_JUMP_MAX + 10, TERM_JUMP_MAX, 5)
KINDS = (MessageType.HEARTBEAT, MessageType.VOTE, MessageType.APP, MessageType.PRE_VOTE_RESP)


def send(hostile: ClusterNode, to: ClusterNode, kind: MessageKind, payload: bytes) -> None:
    assert hostile.node.peers is not None
    hostile.node.peers.channel.send(to.id, kind, (payload,))


def terms_of(node: ClusterNode) -> list[int]:
    groups = node.node._log.driver.groups.values()
    return [group.storage.hard_state.term for group in groups]


async def goes_on(cluster: NodeCluster, *values: bytes) -> None:
    """Everybody serves the same values; also after a restart of all."""

    async def has_them() -> bool:
        return all([await node.values() == [*values] for node in cluster.nodes.values()])

    await until(has_them)
    for node in cluster.nodes.values():
        assert node.faults == []
        assert max(terms_of(node)) < TERM_MAX


def test_terms_and_messages_of_a_registered_node_stop_nobody(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await cluster[1].append(b"before")
        for term in TERMS:
            for kind in KINDS:
                for to in (cluster[1], cluster[2]):
                    for raft_group in list(to.node._log.driver.groups):
                        message = Message(kind, to.id, cluster[3].id, term, 0, 0, [], 0)
                        payload = b"".join(encode_raft([(raft_group, message)], 1))
                        send(cluster[3], to, MessageKind.RAFT, payload)
                await asyncio.sleep(0.5)
        await cluster[1].append(b"after")
        await goes_on(cluster, b"before", b"after")
        await cluster.stop()
        await cluster.start()
        await cluster[2].append(b"again")
        await goes_on(cluster, b"before", b"after", b"again")

    run_cluster(scenario, tmp_path)


GARBAGE = (b"", b"\xff", b"\xff" * 100, bytes(100), bytes(range(256)), b"\x0a\x7f")


def test_messages_and_calls_that_are_none_end_a_connection_with_a_line_a_minute(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await cluster[1].append(b"before")
        peers = cluster[3].node.peers
        assert peers is not None
        ended = 0
        with capture_logs() as logs:
            for payload in GARBAGE:
                for kind in MessageKind:
                    await until(lambda: peers.channel.is_connected(1))
                    send(cluster[3], cluster[1], kind, payload)
                    await asyncio.sleep(0.01)
                    ended += not peers.channel.is_connected(1)
                for method in PeerMethod:
                    await until(lambda: not peers.channel.trouble(1))
                    with suppress(PixyError):
                        await peers.channel.call(1, method, payload, 0.5)
                    await asyncio.sleep(0.01)
                    ended += not peers.channel.is_connected(1)
        lines = [each for each in logs if "the peer has sent what no node sends" in each["event"]]
        assert {each["peer"] for each in lines} == {"node 3"}
        assert sum(1 + each["others_before"] for each in lines) <= ended
        assert 1 <= len(lines) <= 3, "a line a minute"
        assert ended > 10
        assert not [each for each in logs if "internal" in str(each)]
        await cluster[1].append(b"after")
        await goes_on(cluster, b"before", b"after")

    run_cluster(scenario, tmp_path)


EXTREMES = (2**64 - 1, 2**62, 2**40, 2**32, 2**32 - 1, 2**31)


def test_numbers_of_a_registered_node_stop_nobody(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await cluster[1].append(b"before")
        peers = cluster[3].node.peers
        assert peers is not None
        for number in EXTREMES:
            for to in (cluster[1], cluster[2]):
                for beat in (
                    Beat(number, 1, 0),
                    Beat(1, number, 0),
                    Beat(1, 1, number),
                    Beat(number, number, number),
                ):
                    send(cluster[3], to, MessageKind.BEAT, encode_beat(beat))
                    sender = replace(peers._hello(), incarnation=beat.incarnation, flush_number=number)
                    relayed = Relayed(
                        target=to.id,
                        sender=sender.to_message(),
                        kind=MessageKind.BEAT,
                        payload=encode_beat(beat),
                    )
                    send(cluster[3], to, MessageKind.RELAYED, relayed.SerializeToString())
                    with suppress(PixyError):
                        await peers.channel.call(to.id, PeerMethod.RELAY, relayed.SerializeToString(), 1.0)
                send(cluster[3], to, MessageKind.RAFT, b"".join(encode_raft([], number)))
                request = JoinRequest(
                    secret=bytes(16), address="127.0.0.77:1", feature_level=min(number, 2**32 - 1)
                )
                if number >= 2**32:
                    with suppress(PixyError):
                        await peers.channel.call(to.id, PeerMethod.JOIN, request.SerializeToString(), 5.0)
            await asyncio.sleep(2.5)  # a record of starts rides with a flush, once a second
            await cluster[1].append(b"after")
        # Greetings, and beats of the same start.
        assert peers._log is not None
        number, peers._log.incarnation.number = peers._log.incarnation.number, 2**40
        for split in ((3,), ()):
            cluster.network.heal()
            cluster.split(*split)
            await asyncio.sleep(20)
            await cluster[1].append(b"after")
        peers._log.incarnation.number = number
        await until(lambda: not cluster[3].node.why_no_majority)
        await goes_on(cluster, b"before", *[b"after"] * (len(EXTREMES) + 2))
        await cluster.stop()
        await cluster.start()
        await cluster[2].append(b"again")
        await goes_on(cluster, b"before", *[b"after"] * (len(EXTREMES) + 2), b"again")

    run_cluster(scenario, tmp_path)


def test_a_registered_node_says_nothing_of_others_that_is_kept(tmp_path: Path) -> None:
    """Neither start, flush nor address of another node, as a message passed on or as a command."""

    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await cluster[1].append(b"before")
        hostile = cluster.by_id(3)
        peers = hostile.node.peers
        assert peers is not None
        others = [cluster.by_id(node_id) for node_id in (1, 2)]
        for to, other in (others, reversed(others)):
            assert other.node.peers is not None
            own = other.node.peers._hello()
            for incarnation in (own.incarnation, own.incarnation + 5):
                sender = replace(
                    own, incarnation=incarnation, flush_number=1 << 40, address="127.0.0.77:1"
                ).to_message()
                beat = encode_beat(Beat(incarnation, 1 << 40, 0))
                raft = b"".join(encode_raft([], 1 << 40))
                for kind, payload in ((MessageKind.BEAT, beat), (MessageKind.RAFT, raft)):
                    relayed = Relayed(target=to.id, sender=sender, kind=kind, payload=payload)
                    send(hostile, to, MessageKind.RELAYED, relayed.SerializeToString())
            node = to.node.metadata.nodes[other.id]
            command = MetadataCommand(
                start_node=StartNode(
                    node_id=node.node_id, secret=node.secret, address=node.address, incarnation=1 << 20
                )
            ).SerializeToString()
            for leader in others:
                proposal = ProposalId(hostile.id, hostile.node.incarnation, 1000 + to.id)
                forwarded = Forwarded(METADATA_GROUP, EntryType.COMMAND, command, proposal)
                send(hostile, leader, MessageKind.PROPOSALS, b"".join(map(bytes, encode_proposal(forwarded))))
        await asyncio.sleep(2.5)
        for to, other in (others, reversed(others)):
            assert to.node.peers is not None
            member = to.node.peers.members.get(other.id)
            assert member is not None
            assert (member.incarnation, member.address) == (
                other.node.incarnation,
                to.node.metadata.nodes[other.id].address,
            )
            assert to.node.metadata.nodes[other.id].incarnation == other.node.incarnation
        await cluster[1].append(b"after")
        await goes_on(cluster, b"before", b"after")
        await cluster.stop()
        await cluster.start()
        await cluster[2].append(b"again")
        await goes_on(cluster, b"before", b"after", b"again")

    run_cluster(scenario, tmp_path)


def test_proposals_of_a_registered_node_poison_no_log(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await cluster[1].append(b"before")
        peers = cluster[3].node.peers
        assert peers is not None
        refused = 0
        for number, (raft_group, kind, payload) in enumerate(REFUSED, 1000):
            for to in (cluster[1], cluster[2]):
                proposal = ProposalId(cluster[3].id, cluster[3].node.incarnation, number)
                forwarded = Forwarded(raft_group, kind, payload, proposal)
                send(cluster[3], to, MessageKind.PROPOSALS, b"".join(map(bytes, encode_proposal(forwarded))))
                request = ProposeRequest(
                    raft_group=raft_group, kind=kind, payload=payload, incarnation=1, sequence=number
                ).SerializeToString()
                try:
                    await peers.relays.call(to.id, PeerMethod.PROPOSE, request, 5.0)
                except PixyError:
                    refused += 1
        assert refused
        await cluster[1].append(b"after")
        await goes_on(cluster, b"before", b"after")
        await cluster.stop()
        await cluster.start()
        await cluster[2].append(b"again")
        await goes_on(cluster, b"before", b"after", b"again")

    run_cluster(scenario, tmp_path)


@pytest.mark.parametrize("codec", [0, 4], ids=["plain", "zstd"])
def test_large_batches_of_a_registered_node_are_checked_to_the_last_record(
    tmp_path: Path, codec: int
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await cluster[1].append(b"before")
        peers = cluster[3].node.peers
        assert peers is not None
        lie, refusals = large(7, codec), []
        for number, to in enumerate((cluster[1], cluster[2]), 1000):
            proposal = ProposalId(cluster[3].id, cluster[3].node.incarnation, number)
            forwarded = Forwarded(1000, EntryType.RECORD_BATCH, lie, proposal)
            send(cluster[3], to, MessageKind.PROPOSALS, b"".join(map(bytes, encode_proposal(forwarded))))
            request = ProposeRequest(
                raft_group=1000,
                kind=EntryType.RECORD_BATCH,
                payload=lie,
                incarnation=cluster[3].node.incarnation,
                sequence=number + 10,
            ).SerializeToString()
            try:
                answer = await peers.relays.call(to.id, PeerMethod.PROPOSE, request, 5.0)
                assert ProposeResponse.FromString(answer).not_leader
            except PixyError as error:
                refusals.append(str(error))
        assert all("has offset delta 7, expected" in each for each in refusals)
        await cluster[1].append(b"after")
        await goes_on(cluster, b"before", b"after")

    run_cluster(scenario, tmp_path)


def proposals_frame(hostile: ClusterNode, leader: ClusterNode, count: int) -> bytes:
    """Empty entries for all state groups."""
    groups = [each for each in leader.node._log.driver.groups if each < FIRST_PARTITION_GROUP]
    id = ProposalId(hostile.id, hostile.node.incarnation, 0)
    return b"".join(
        bytes(part)
        for number in range(1, count + 1)
        for part in encode_proposal(
            Forwarded(groups[number % len(groups)], EntryType.EMPTY, b"", id._replace(sequence=1000 + number))
        )
    )


def raft_frame(hostile: ClusterNode, leader: ClusterNode, count: int) -> bytes:
    """Answers to heartbeats of all groups."""
    groups = list(leader.node._log.driver.groups.values())
    messages = [
        (
            group.raft_group,
            Message(MessageType.HEARTBEAT_RESP, leader.id, hostile.id, group.term or 1, 0, 0, [], 0),
        )
        for group in groups
    ]
    return b"".join(encode_raft([messages[number % len(groups)] for number in range(count)], 1))


@pytest.mark.parametrize(
    ("kind", "frame", "method", "most"),
    [
        (MessageKind.PROPOSALS, proposals_frame, "has_place", 20),
        (MessageKind.RAFT, raft_frame, "step", 110),
    ],
    ids=["proposals", "raft"],
)
@pytest.mark.parametrize("relayed", [False, True], ids=["direct", "relayed"])
def test_a_frame_of_many_messages_does_not_stop_a_node(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: MessageKind,
    frame: Callable[[ClusterNode, ClusterNode, int], bytes],
    method: str,
    most: int,
    relayed: bool,
) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await cluster[1].append(b"before")
        hostile, leader = cluster.by_id(3), cluster.by_id(1)
        driver = leader.node._log.driver
        counts = [0]
        original = getattr(driver, method)

        def counted(*arguments: Any) -> Any:
            counts[-1] += 1
            return original(*arguments)

        payload = frame(hostile, leader, 5000)
        assert hostile.node.peers is not None
        if relayed:
            sender = hostile.node.peers._hello().to_message()
            payload = Relayed(target=1, sender=sender, kind=kind, payload=payload).SerializeToString()
        monkeypatch.setattr(driver, method, counted)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.before_turns(lambda: counts.append(0))
        send(hostile, leader, MessageKind.RELAYED if relayed else kind, payload)
        await until(lambda: sum(counts) >= 5000)
        assert max(counts) <= most
        for group in driver.groups.values():
            assert len(group.tail_ids) <= 3 * WINDOW
        await cluster[1].append(b"after")
        await goes_on(cluster, b"before", b"after")

    run_cluster(scenario, tmp_path)


def test_a_commit_of_more_offsets_than_a_cluster_has_partitions_is_not_taken(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await cluster[1].append(b"before")
        hostile = cluster.by_id(3)
        sent = {}
        for number, count in enumerate((21_000, 5), 1000):
            offsets = [
                CommittedOffset(topic="t", topic_id=bytes(16), partition=each % 10_000, offset=1)
                for each in range(count)
            ]
            command = CommitOffsets(group=f"group {count}", offsets=offsets, timestamp_ms=1)
            payload = GroupsCommand(commit_offsets=command).SerializeToString()
            proposal = ProposalId(hostile.id, hostile.node.incarnation, number)
            sent[count] = b"".join(
                map(
                    bytes,
                    encode_proposal(Forwarded(FIRST_GROUPS_GROUP, EntryType.COMMAND, payload, proposal)),
                )
            )
        for to in (cluster.by_id(1), cluster.by_id(2)):
            for frame in sent.values():
                send(hostile, to, MessageKind.PROPOSALS, frame)
        states = cluster[1].node.state_groups.groups_states()
        await until(lambda: any(each.has_offsets("group 5") for each in states))
        await asyncio.sleep(2)
        assert not any(each.has_offsets("group 21000") for each in states)
        await goes_on(cluster, b"before")

    run_cluster(scenario, tmp_path)


def test_nodes_that_a_registered_node_tells_of_are_not_dialled(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        hostile, other = cluster.by_id(3), cluster.by_id(1).node.peers
        assert hostile.node.peers is not None
        assert other is not None
        template = hostile.node.metadata.nodes[3]
        fakes = {id: replace(template, node_id=id, address=f"127.0.0.77:{id}") for id in range(50, 150)}
        hostile.node.peers._nodes = lambda: fakes  # type: ignore[method-assign]  # what it tells
        for _ in range(10):
            other.members.met_unknown = True
            await asyncio.sleep(0.5)
            assert {each.node_id for each in other.members} == {2, 3}
        other.members.tell(fakes.values())
        assert len([*other.members]) == 102
        await until(lambda: {each.node_id for each in other.members} == {2, 3})
        assert other.channel.hosts == {host_of(2), host_of(3)}

    run_cluster(scenario, tmp_path)


def test_calls_that_wait_do_not_fill_those_between_others(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        one, two, hostile = cluster.nodes.values()
        await one.backend.create_topic("topic", 1)
        peers, victim = hostile.node.peers, one.node.peers
        assert peers is not None
        assert victim is not None
        fetch = FetchRequest(raft_group=FIRST_PARTITION_GROUP, max_bytes=1000, max_wait_ms=2**32 - 1)
        call = Relayed(
            target=two.id,
            sender=peers._hello().to_message(),
            kind=PeerMethod.FETCH,
            payload=fetch.SerializeToString(),
            timeout_ms=2**32 - 1,
        )

        async def fill(bulk: bool) -> list[object]:
            call.bulk = bulk
            payload = call.SerializeToString()
            calls = (
                peers.channel.call(one.id, PeerMethod.RELAY, payload, 1e6, bulk=bulk) for _ in range(4096)
            )
            return await asyncio.gather(*calls, return_exceptions=True)

        filling = [asyncio.create_task(fill(bulk)) for bulk in (False, True)]
        await asyncio.sleep(10)
        for bulk in (False, True):
            await victim.channel.call(two.id, PeerMethod.STATUS, b"", 5.0, bulk=bulk)
        await asyncio.sleep(51)
        assert all(task.done() for task in filling), "after a minute, whatever the caller says"

    run_cluster(scenario, tmp_path)


async def put_piece(cluster: NodeCluster, stage: int, *pieces: bytes, raft_group: int = 1000) -> None:
    """Bring pieces of a record to node 1, in the name of node 3."""
    peers = cluster[3].node.peers
    assert peers is not None
    some = [
        PieceBytes(raft_group=raft_group, number=0, records=1, crc=crc32c(each), batches=each)
        for each in pieces
    ]
    request = PutPiecesRequest(stage=stage, pieces=some).SerializeToString()
    await peers.relays.call(cluster[1].id, PeerMethod.PUT_PIECES, request, 5.0, bulk=True)


def open_stage() -> SinksCommand:
    return SinksCommand(open_stage=OpenStage(sink_id="sink", stage_id="stage", timestamp_ms=1))


@pytest.mark.parametrize(
    "batches",
    [
        b"",
        NOISE,
        bytes(batch_of(b"value")) + NOISE,
        bytes(batch_of(b"value")) * 2,
        raw_batch([raw_record(7, b"value")]),
        raw_batch([BROKEN_RECORD], codec=2),
        raw_batch([raw_record(0, b"value")], max_timestamp=2**63 - 1),
        large(7),
        large(7, codec=1),
        bomb(),
    ],
    ids=lambda batches: f"{len(batches)} bytes",
)
def test_a_piece_that_is_not_what_it_says_is_not_taken(tmp_path: Path, batches: bytes) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        assert await cluster[3].node.staging._command(open_stage()) == 1
        with pytest.raises(PixyError, match=r"came from node \d are not taken: piece 0"):
            await put_piece(cluster, 1, batches)
        with suppress(PixyError):
            await cluster[1].append(b"value")

    run_cluster(scenario, tmp_path)


def test_a_piece_that_comes_twice_in_a_call_is_not_taken(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        assert await cluster[3].node.staging._command(open_stage()) == 1
        batches = bytes(batch_of(b"value"))
        with pytest.raises(PixyError, match=r"a piece came from node \d twice"):
            await put_piece(cluster, 1, batches, batches)
        await put_piece(cluster, 1, batches)
        await put_piece(cluster, 1)
        asked = GetPieceRequest(
            stage=1, raft_group=1000, crc=crc32c(batches), position=2**64 - 1, max_bytes=2**32 - 1
        )
        peers = cluster[3].node.peers
        assert peers is not None
        answer = await peers.relays.call(
            cluster[1].id, PeerMethod.GET_PIECE, asked.SerializeToString(), 5.0, bulk=True
        )
        assert GetPieceResponse.FromString(answer) == GetPieceResponse(found=True)
        await goes_on(cluster)

    run_cluster(scenario, tmp_path)


def test_a_piece_of_a_stage_that_nobody_opened_is_not_taken(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        batches = bytes(batch_of(b"value"))
        for stage in (1, 2, 1000, 2**64 - 1, 0):
            with pytest.raises(PixyError, match=r"was never opened|was published or discarded"):
                await put_piece(cluster, stage, batches)
        # At once, whether node 1 has applied that or not.
        assert await cluster[3].node.staging._command(open_stage()) == 1
        await put_piece(cluster, 1, batches)
        with pytest.raises(PixyError, match="number 2 was never opened"):
            await put_piece(cluster, 2, batches)

    run_cluster(scenario, tmp_path)


def test_pieces_that_no_stage_has_here_are_not_taken(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        assert await cluster[3].node.staging._command(open_stage()) == 1
        for raft_group in (0, 1, 900, 1001, 2**64 - 1):
            with pytest.raises(Unavailable, match=f"has no replica of raft group {raft_group}"):
                await put_piece(cluster, 1, bytes(batch_of(b"value")), raft_group=raft_group)
        with pytest.raises(ResourceExhausted, match=r"more than 2000 elements of PutPiecesRequest.pieces"):
            await put_piece(cluster, 1, *([b""] * 5000))
        assert not cluster[1].node.staging._retention.pieces.stages

    run_cluster(scenario, tmp_path)


def test_a_call_with_millions_of_elements_is_not_worked_on(tmp_path: Path) -> None:
    leaders = LeadersRequest(raft_groups=[1000] * 4_000_000).SerializeToString()
    ranges = OffsetsRequest(ranges=RangesRequest(raft_groups=[1000] * 2_000_000)).SerializeToString()
    twice = OffsetsRequest(ranges=RangesRequest(raft_groups=[1000] * 2)).SerializeToString()

    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        peers = cluster[3].node.peers
        assert peers is not None
        for method, payload in ((PeerMethod.LEADERS, leaders), (PeerMethod.OFFSETS, ranges)):
            with pytest.raises(
                ResourceExhausted, match=r"more than 20000 elements of \w+.raft_groups in a call"
            ):
                await peers.relays.call(cluster[1].id, method, payload, 5.0, bulk=True)
        with pytest.raises(InvalidArgument, match="2 raft groups, of which some are there twice"):
            await peers.relays.call(cluster[1].id, PeerMethod.OFFSETS, twice, 5.0)

    run_cluster(scenario, tmp_path)


def test_a_status_of_hundreds_of_thousands_of_raft_groups_is_not_taken(tmp_path: Path) -> None:
    lie = StatusResponse(groups=[RaftGroupStatus(raft_group=9000 + number) for number in range(400_000)])
    few = StatusResponse(groups=[RaftGroupStatus(raft_group=9000 + number) for number in range(3)])

    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        for status in (lie, few):
            answer = status.SerializeToString()

            async def tell(caller: int, payload: bytes, answer: bytes = answer) -> bytes:
                return answer

            peers = cluster[3].node.peers
            assert peers is not None
            peers._duties.methods[PeerMethod.STATUS] = tell  # type: ignore[index]  # a dict
            found = await cluster[1].node.status()
            assert max(group.raft_group for group in found.groups) == 1000

    run_cluster(scenario, tmp_path)


def test_a_node_without_a_replica_leads_no_partition(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await cluster[1].append(b"before")
        topic = cluster[1].node.metadata.topics["topic"]
        (raft_group,), (replicas,) = topic.raft_groups, topic.replicas
        nodes = {node.id: node for node in cluster.nodes.values()}
        (other,) = set(nodes) - {*replicas}
        row = ProposerRow(node_id=9, incarnation=1, sequences=[2**63], values=[1])
        descriptor = PartitionDescriptor(end_offset=1, rows=[row]).SerializeToString()
        for to in (nodes[node_id] for node_id in replicas):
            for term in (to.node._log.driver.groups[raft_group].term, 60):
                snapshot = Snapshot(500, term, ConfState((*replicas, other)), descriptor)
                for kind, data in ((MessageType.SNAP, snapshot), *((kind, None) for kind in KINDS)):
                    message = Message(kind, to.id, other, term, 0, 0, [], 0, snapshot=data)
                    payload = b"".join(encode_raft([(raft_group, message)], 1))
                    send(nodes[other], to, MessageKind.RAFT, payload)
        await asyncio.sleep(5)
        for node_id in replicas:
            assert nodes[node_id].node._log.driver.groups[raft_group].term < 60
        await cluster[1].append(b"after")
        await goes_on(cluster, b"before", b"after")

    run_cluster(scenario, tmp_path, 4)
