"""Staged writes in a cluster of several nodes."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from pixy.backend import Published, TopicPartition
from pixy.config import JournalConfig
from pixy.errors import FailedPrecondition, InvalidArgument, Unavailable, UnknownPartition
from pixy.proto.state_pb2 import SinksCommand
from tests.backend.test_nodes_that_leave import until_left
from tests.cluster.node_clusters import ClusterNode, NodeCluster, run_cluster
from tests.conformance.staged import piece_of, publish_values, seal_of, stage_values
from tests.fakes.waiting import until

pytestmark = pytest.mark.slow

TOPIC = TopicPartition("topic", 0)
PIECES = [
    {TopicPartition("topic", each): [b"%d%d" % (number, each)] for each in range(3)} for number in range(3)
]
"""Three pieces, each with a record for three partitions."""


def pieces_on(node: ClusterNode) -> list[str]:
    """Names of the files with pieces of stages."""
    directory = node.cluster.directory / str(node.number) / "pieces"
    return sorted(path.stem.lstrip("0") for path in directory.iterdir()) if directory.exists() else []


async def pass_hours(nodes: Sequence[ClusterNode], hours: int) -> None:
    """Advance the time of nodes, until all of them know of it."""
    for node in nodes:
        node.clock.advance(hours * 3600)
    await asyncio.sleep(1)


async def all_values(cluster: NodeCluster, partitions: int = 3) -> list[list[bytes]]:
    """The records of each partition, the same at every node."""
    found = [
        [await node.values(partition=number) for number in range(partitions)]
        for node in cluster.nodes.values()
    ]
    assert all(each == found[0] for each in found)
    return found[0]


@pytest.mark.parametrize("pause_s", [0, 2])
def test_publications_go_on_while_the_last_other_node_is_removed(tmp_path: Path, pause_s: int) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        one, two = cluster[1], cluster[2]
        await one.backend.create_topic("topic", 3, {"replication": "2"})
        published: list[bytes] = []
        publishing = asyncio.create_task(publish_on(one, published))
        await until(lambda: len(published) > 3 or publishing.done())
        removing = asyncio.create_task(one.backend.remove_node(two.id))
        await until(lambda: one.node.is_alone)
        if pause_s:
            cluster.network.split([one.host], [two.host])
            await asyncio.sleep(pause_s)
            cluster.network.heal()
        await removing
        await publishing
        assert one.node.is_alone
        for partition in range(3):
            assert await one.values(partition=partition) == published

    run_cluster(scenario, tmp_path, 2)


async def publish_on(node: ClusterNode, published: list[bytes], sink: str = "sink") -> None:
    """Publish a record to each of three partitions again and again, and add them to `published`."""
    for epoch in range(1, 30):
        value = b"%s-%d" % (sink.encode(), epoch)
        piece = piece_of({TopicPartition("topic", each): [value] for each in range(3)})
        for attempt in range(50):
            try:
                await node.backend.stage(sink, f"{epoch}", 0, piece, seal_of(piece))
                assert (await node.backend.publish(sink, epoch, "query", [f"{epoch}"])).published
                break
            except Unavailable:
                assert attempt < 49
                await asyncio.sleep(0.2)
        published.append(value)
        await asyncio.sleep(0.05)


def test_publications_go_on_while_all_other_nodes_are_removed_at_once(tmp_path: Path) -> None:
    """The nodes that leave need the pieces of entries which they have not applied yet."""

    async def scenario(cluster: NodeCluster) -> None:
        one, two, three = (cluster[each] for each in (1, 2, 3))
        await one.backend.create_topic("topic", 3, {"replication": "3"})
        published: list[list[bytes]] = [[] for _ in range(3)]
        publishing = [
            asyncio.create_task(publish_on(one, each, f"sink-{number}"))
            for number, each in enumerate(published)
        ]
        await until(lambda: all(len(each) > 4 for each in published))
        # Without the check that the others can do without them.
        removing = [asyncio.create_task(one.node.commands.remove_node(each.id)) for each in (two, three)]
        await asyncio.gather(*removing)
        await asyncio.gather(*publishing)
        for partition in range(3):
            assert sorted(await one.values(partition=partition)) == sorted(chain(*published))
        await until_left(one, two.id)
        await until_left(one, three.id)

    run_cluster(scenario, tmp_path)


def test_a_discard_that_comes_late_leaves_the_next_stage_of_the_name(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        one, two = cluster[1].backend, cluster[2]
        await one.create_topic("topic", 3)
        await one.stage("sink", "stage", 0, piece_of(PIECES[0]))
        begun, go_on = asyncio.Event(), asyncio.Event()
        discard = two.node.staging._replicated.discard

        async def discard_late(sink_id: str, stage_ids: Sequence[str], next_stage: int) -> None:
            begun.set()
            await go_on.wait()
            await discard(sink_id, stage_ids, next_stage)

        two.node.staging._replicated.discard = discard_late  # type: ignore[method-assign]
        discarding = asyncio.create_task(two.backend.discard("sink", ["stage"]))
        await begun.wait()
        await one.discard("sink", ["stage"])
        pieces = [piece_of(PIECES[1])]
        await one.stage("sink", "stage", 0, pieces[0], seal_of(*pieces))
        go_on.set()
        await discarding
        assert await one.publish("sink", 5, "query", ["stage"]) == Published(True, 5)
        assert await all_values(cluster) == [[b"10"], [b"11"], [b"12"]]

    run_cluster(scenario, tmp_path)


def test_a_publish_that_comes_late_leaves_the_next_stage_of_the_name(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        one, two = cluster[1].backend, cluster[2]
        await one.create_topic("topic", 3)
        pieces = [piece_of(each) for each in PIECES[:2]]
        await one.stage("sink", "stage", 0, pieces[0], seal_of(pieces[0]))
        begun, go_on = asyncio.Event(), asyncio.Event()
        propose = two.node.staging._command

        async def propose_late(command: SinksCommand) -> object:
            begun.set()
            await go_on.wait()
            return await propose(command)

        parts = replace(two.node.staging._replicated._parts, command=propose_late)
        two.node.staging._replicated._parts = parts
        publishing = asyncio.create_task(two.backend.publish("sink", 1, "query", ["stage"]))
        await begun.wait()
        await one.discard("sink", ["stage"])
        await one.stage("sink", "stage", 0, pieces[1], seal_of(pieces[1]))
        go_on.set()
        with pytest.raises(FailedPrecondition, match="stage stage of sink sink was staged anew since"):
            await publishing
        assert await all_values(cluster) == [[], [], []]
        assert await one.publish("sink", 1, "query", ["stage"]) == Published(True, 1)
        assert await all_values(cluster) == [[b"10"], [b"11"], [b"12"]]

    run_cluster(scenario, tmp_path)


def test_each_request_may_go_to_another_node(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        one, two, three = (node.backend for node in cluster.nodes.values())
        await one.create_topic("topic", 3)
        pieces = [piece_of(each) for each in PIECES]
        for backend, number in ((three, 2), (one, 0), (two, 1)):
            await backend.stage("sink", "stage", number, pieces[number])
        assert await all_values(cluster) == [[], [], []]
        assert [pieces_on(node) for node in cluster.nodes.values()] == [["1"]] * 3
        size = sum(len(each.batches) for piece in pieces for each in piece)
        assert await two.stage("sink", "stage", 0, [], seal_of(*pieces)) == size
        assert await three.publish("sink", 5, "query", ["stage"]) == Published(True, 5)
        expected = [[b"%d%d" % (number, each) for number in range(3)] for each in range(3)]
        assert await all_values(cluster) == expected
        for backend in (one, two, three):
            assert await backend.publish("sink", 5, "query", ["stage"]) == Published(False, 5)
            with pytest.raises(FailedPrecondition, match="stage stage of sink sink does not exist"):
                await backend.publish("sink", 6, "query", ["stage"])
        assert await all_values(cluster) == expected

    run_cluster(scenario, tmp_path)


def test_a_request_that_comes_again_elsewhere_changes_nothing(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        pieces = [piece_of({TOPIC: [b"a"]}), piece_of({TOPIC: [b"b"]})]
        for node in cluster.nodes.values():
            for number, piece in enumerate(pieces):
                await asyncio.gather(*(node.backend.stage("sink", "stage", number, piece) for _ in range(2)))
        for node in cluster.nodes.values():
            with pytest.raises(InvalidArgument, match="piece 1 of stage stage has CRC-32C"):
                await node.backend.stage("sink", "stage", 1, piece_of({TOPIC: [b"c"]}))
            with pytest.raises(FailedPrecondition, match="must have 3 pieces, but piece 2 is missing"):
                await node.backend.stage("sink", "stage", 0, [], seal_of(*pieces, piece_of({TOPIC: [b"c"]})))
        for node in cluster.nodes.values():
            await node.backend.stage("sink", "stage", 0, [], seal_of(*pieces))
            await node.backend.stage("sink", "stage", 0, pieces[0])
            with pytest.raises(FailedPrecondition, match="is sealed with 2 pieces, and 2 is not among them"):
                await node.backend.stage("sink", "stage", 2, piece_of({TOPIC: [b"c"]}))
        publish = [node.backend.publish("sink", 1, "query", ["stage"]) for node in cluster.nodes.values()]
        answers = await asyncio.gather(*publish)
        assert sorted(answers) == [Published(False, 1), Published(False, 1), Published(True, 1)]
        assert await all_values(cluster, 1) == [[b"a", b"b"]]

    run_cluster(scenario, tmp_path)


def test_what_does_not_exist_is_refused_at_every_node(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await cluster[1].backend.stage("sink", "open", 0, piece_of({TOPIC: [b"a"]}))
        for node in cluster.nodes.values():
            with pytest.raises(UnknownPartition):
                await node.backend.stage("sink", "stage", 0, piece_of({TopicPartition("other", 0): [b"a"]}))
            with pytest.raises(FailedPrecondition, match="there is no stage stage of sink sink"):
                await node.backend.stage("sink", "stage", 0, [], seal_of(piece_of({TOPIC: [b"a"]})))
            with pytest.raises(FailedPrecondition, match="stage stage of sink sink does not exist"):
                await node.backend.publish("sink", 1, "query", ["stage"])
            with pytest.raises(FailedPrecondition, match="stage open of sink sink is not sealed"):
                await node.backend.publish("sink", 1, "query", ["open"])
        await cluster[3].backend.publish("sink", 0, "query", [])
        for node in cluster.nodes.values():
            with pytest.raises(FailedPrecondition, match="belongs to query 'query'"):
                await node.backend.publish("sink", 1, "another", [])
        assert await all_values(cluster, 1) == [[]]

    run_cluster(scenario, tmp_path)


def test_topics_with_any_number_of_replicas_take_stages_at_every_node(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 3, {"replication": "1"})
        await cluster[1].backend.create_topic("two", 3, {"replication": "2"})
        for node in cluster.nodes.values():
            values = {
                TopicPartition(topic, each): [b"%d" % node.number]
                for topic in ("topic", "two")
                for each in range(3)
            }
            await publish_values(node.backend, 1, values, f"sink-{node.number}")
        for node in cluster.nodes.values():
            for topic in ("topic", "two"):
                for number in range(3):
                    assert await node.values(topic=topic, partition=number) == [b"1", b"2", b"3"]

    run_cluster(scenario, tmp_path)


def test_sealed_stages_outlive_every_node(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 3)
        await stage_values(cluster[1].backend, "sink", "stage", *PIECES)
        await cluster[1].kill()
        assert (await cluster[2].backend.publish("sink", 1, "query", ["stage"])).published
        await stage_values(cluster[2].backend, "sink", "later", *PIECES)
        await cluster.stop()
        await cluster.start()
        assert (await cluster[1].backend.publish("sink", 2, "query", ["later"])).published
        assert await all_values(cluster) == [
            [b"%d%d" % (number, each) for number in range(3)] * 2 for each in range(3)
        ]

    run_cluster(scenario, tmp_path)


def test_a_node_that_was_away_fetches_the_pieces_that_it_lacks(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 3)
        await cluster[3].kill()
        await publish_values(cluster[1].backend, 1, PIECES[0])
        await stage_values(cluster[2].backend, "sink", "sealed", PIECES[1])
        assert pieces_on(cluster[3]) == []
        await cluster[3].start()
        await until(lambda: pieces_on(cluster[3]) == ["1", "2"])
        await cluster[1].kill()
        assert (await cluster[3].backend.publish("sink", 2, "query", ["sealed"])).published
        for number in range(3):
            assert await cluster[3].values(partition=number) == [b"0%d" % number, b"1%d" % number]

    run_cluster(scenario, tmp_path)


def test_stages_are_discarded_at_any_node_and_their_files_go_everywhere(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 3)
        for stage in ("a", "b"):
            await stage_values(cluster[1].backend, "sink", stage, PIECES[0])
        await cluster[2].backend.discard("sink", ["a", "never"])
        await until(lambda: all(pieces_on(node) == ["2"] for node in cluster.nodes.values()))
        with pytest.raises(FailedPrecondition, match="does not exist"):
            await cluster[3].backend.publish("sink", 1, "query", ["a", "b"])
        assert (await cluster[3].backend.publish("sink", 1, "query", ["b"])).published
        await cluster[1].backend.discard("sink", ["b"])
        assert await all_values(cluster) == [[b"00"], [b"01"], [b"02"]]

    run_cluster(scenario, tmp_path)


def test_stages_of_idle_sinks_expire_once_whoever_leads(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        for sink in ("idle", "alive"):
            await stage_values(cluster[1].backend, sink, "stage", {TOPIC: [b"a"]})
        hour_ms = 3600 * 1000
        for _ in range(5):
            for node in cluster.nodes.values():
                node.clock.advance(6 * hour_ms / 1000)
            await asyncio.sleep(1)
            await cluster[3].backend.discard("alive", [])
            for node in cluster.nodes.values():
                node.node.staging.expire(node.node.now_ms())
            await asyncio.sleep(1)
        for node in cluster.nodes.values():
            table = node.node.state_groups.sinks.table
            assert [stage.name.sink_id for stage in table.stages.values()] == ["alive"]
            assert pieces_on(node) == ["2"]

    run_cluster(scenario, tmp_path)


def test_stages_expire_by_the_decision_of_the_leader_alone(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        nodes = list(cluster.nodes.values())
        await nodes[0].backend.create_topic("topic", 1)
        await stage_values(nodes[0].backend, "sink", "stage", {TOPIC: [b"a"]})
        await pass_hours(nodes, 25)
        leader = next(node for node in nodes if node.node.state_groups.sinks_replica.group.leads)
        for node in nodes:
            if node is not leader:
                node.node.staging.expire(node.node.now_ms())
        await asyncio.sleep(1)
        assert [pieces_on(node) for node in nodes] == [["1"]] * 3
        leader.node.staging.expire(leader.node.now_ms())
        await until(lambda: [pieces_on(node) for node in nodes] == [[]] * 3)

    run_cluster(scenario, tmp_path)


def test_the_next_leader_lets_stages_expire_and_a_node_that_was_away_removes_them(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        nodes = list(cluster.nodes.values())
        groups = {node: node.node.state_groups.sinks_replica.group for node in nodes}
        await nodes[0].backend.create_topic("topic", 1)
        for stage in ("old", "new"):
            await stage_values(nodes[0].backend, stage, stage, {TOPIC: [b"a"]})
        leader = next(node for node in nodes if groups[node].leads)
        others = [node for node in nodes if node is not leader]
        await leader.kill()
        await until(lambda: any(groups[node].leads for node in others))
        await pass_hours(others, 20)
        await others[0].backend.discard("new", [])
        await pass_hours(others, 5)
        for node in others:
            node.node.staging.expire(node.node.now_ms())
        await until(lambda: [pieces_on(node) for node in others] == [["2"]] * 2)
        assert pieces_on(leader) == ["1", "2"]
        await leader.start()
        await until(lambda: pieces_on(leader) == ["2"])
        for node in nodes:
            with pytest.raises(FailedPrecondition, match="stage old of sink old does not exist"):
                await node.backend.publish("old", 1, "query", ["old"])
        assert (await leader.backend.publish("new", 1, "query", ["new"])).published
        assert await all_values(cluster, 1) == [[b"a"]]

    # Whatever has become of a stage that a start finds gone, its file may stay as a published one.
    run_cluster(scenario, tmp_path, journal=JournalConfig(file_bytes=1 << 20, retain_bytes=0))


def test_a_topic_with_staged_records_is_deleted_at_no_node_without_force(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await cluster[1].backend.create_topic("other", 1)
        both = {TOPIC: [b"a"], TopicPartition("other", 0): [b"b"]}
        await stage_values(cluster[1].backend, "sink", "stage", both)
        for node in cluster.nodes.values():
            with pytest.raises(
                FailedPrecondition, match=r"records of topic topic are staged .* by 1 sinks: sink"
            ):
                await node.backend.delete_topic("topic")
        await cluster[3].backend.delete_topic("topic", force=True)
        for node in cluster.nodes.values():
            with pytest.raises(
                FailedPrecondition, match="topic topic was deleted since records of it were staged"
            ):
                await node.backend.publish("sink", 1, "query", ["stage"])
        await cluster[2].backend.discard("sink", ["stage"])
        for node in cluster.nodes.values():
            assert await node.values(topic="other") == []

    run_cluster(scenario, tmp_path)


def test_nothing_is_staged_without_a_majority(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        cluster.split(1)
        await asyncio.sleep(3)
        with pytest.raises(Unavailable):
            async with asyncio.timeout(60):
                await cluster[1].backend.stage("sink", "stage", 0, piece_of({TOPIC: [b"a"]}))
        await stage_values(cluster[2].backend, "sink", "stage", {TOPIC: [b"b"]})
        cluster.network.heal()
        await until(lambda: not cluster[1].node.why_no_majority)
        assert (await cluster[1].backend.publish("sink", 1, "query", ["stage"])).published
        assert await all_values(cluster, 1) == [[b"b"]]

    run_cluster(scenario, tmp_path)


# --- clusters that grow ---------------------------------------------------------------------------


def test_stages_from_the_time_alone_are_published_where_they_are(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        first = cluster[1]
        await first.backend.create_topic("topic", 1)
        await stage_values(first.backend, "sink", "early", {TOPIC: [b"early"]})
        piece = piece_of({TOPIC: [b"open"]})
        await first.backend.stage("sink", "open", 0, piece)
        second = await cluster.add()
        await second.backend.create_topic("two", 1)
        with pytest.raises(FailedPrecondition, match="stage open was begun while its node was alone"):
            await first.backend.stage("sink", "open", 1, piece_of({TopicPartition("two", 0): [b"a"]}))
        await first.backend.stage("sink", "open", 0, [], seal_of(piece))
        assert pieces_on(first) == []
        with pytest.raises(FailedPrecondition, match="stage early of sink sink does not exist"):
            await second.backend.publish("sink", 1, "query", ["early"])
        await stage_values(
            second.backend, "sink", "late", {TOPIC: [b"late"], TopicPartition("two", 0): [b"two"]}
        )
        with pytest.raises(
            FailedPrecondition, match="stage early of sink sink was begun while its node was alone"
        ):
            await first.backend.publish("sink", 1, "query", ["early", "late"])
        assert (await first.backend.publish("sink", 1, "query", ["early", "open"])).published
        assert (await first.backend.publish("sink", 2, "query", ["late"])).published
        assert not (await second.backend.publish("sink", 2, "query", ["late"])).published
        for node in (first, second):
            assert await node.values() == [b"early", b"open", b"late"]
            assert await node.values(topic="two") == [b"two"]
        assert len(second.node.publisher._roll_forward) == 0, "only the node with the stages"
        await second.stop()
        await second.start()
        await until(lambda: not second.node.state_groups.sinks.publications)
        assert await second.values() == [b"early", b"open", b"late"]

    run_cluster(scenario, tmp_path, 1)


@pytest.mark.parametrize("grows", [True, False])
def test_publications_of_both_kinds_of_stages_at_once_are_all_there(tmp_path: Path, grows: bool) -> None:
    """Before a node joins, or when the other one has left, stages have no replicas."""

    async def scenario(cluster: NodeCluster) -> None:
        first = cluster[1]
        await first.backend.create_topic("topic", 3)

        async def stage(sink: str) -> None:
            values = {TopicPartition("topic", each): [sink.encode()] for each in range(3)}
            await stage_values(first.backend, sink, "stage", values)

        sinks = [f"{when} {number}" for number in range(10) for when in ("before", "after")]
        for sink in sinks[::2]:
            await stage(sink)
        if grows:
            await cluster.add()
        else:
            await first.backend.remove_node(cluster[2].id)
            await until_left(first, cluster[2].id)
        for sink in sinks[1::2]:
            await stage(sink)
        publishing = (first.backend.publish(sink, 1, "query", ["stage"]) for sink in sinks)
        assert await asyncio.gather(*publishing) == [Published(True, 1)] * len(sinks)
        for partition in range(3):
            values = await first.values(partition=partition)
            assert sorted(values) == sorted(sink.encode() for sink in sinks)

    run_cluster(scenario, tmp_path, 1 if grows else 2)


def test_a_node_that_joins_later_knows_of_all_stages(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        await cluster[1].backend.create_topic("topic", 1)
        await stage_values(cluster[1].backend, "sink", "stage", {TOPIC: [b"a"]})
        fourth = await cluster.add()
        assert (await fourth.backend.publish("sink", 1, "query", ["stage"])).published
        await publish_values(fourth.backend, 2, {TOPIC: [b"b"]})
        for node in cluster.nodes.values():
            assert await node.values() == [b"a", b"b"]
        assert pieces_on(fourth) == [], "it has no replica"

    run_cluster(scenario, tmp_path)


def test_the_deletion_of_a_topic_looks_for_stages_that_one_node_has(tmp_path: Path) -> None:
    async def scenario(cluster: NodeCluster) -> None:
        first = cluster[1]
        await first.backend.create_topic("topic", 1)
        await stage_values(first.backend, "sink", "stage", {TOPIC: [b"a"]})
        second = await cluster.add()
        await cluster.add()
        with pytest.raises(
            FailedPrecondition, match=r"records of topic topic are staged .* by 1 sinks: sink"
        ):
            await second.backend.delete_topic("topic")
        metadata = second.node.state_groups.metadata_replica.group
        await until(lambda: len(metadata.storage.conf_state.voters) == 3)
        cluster.split(1)
        await until(lambda: metadata.leader in (2, 3))
        with pytest.raises(Unavailable, match="node 1 may have staged records of topic topic"):
            await second.backend.delete_topic("topic")
        cluster.network.heal()
        await until(lambda: second.node.unreachable() == [])
        await second.backend.delete_topic("topic", force=True)
        await until(lambda: first.backend.topic("topic") is None)

    run_cluster(scenario, tmp_path, 1)
