"""A topic some of whose partitions have no leader, as the only node with a replica of them is down:
clients have all that can be told and consumed of the others.
"""

from collections import defaultdict
from pathlib import Path

import grpc
import pytest

from pixy.proto import pixy_topics_pb2 as topics_pb
from pixy.proto.pixy_topics_pb2_grpc import TopicsStub
from tests.fakes.waiting import until_blocking
from tests.integration.clusters import Cluster, ClusterNode
from tests.integration.daemon import proxy_config
from tests.integration.group_clients import GroupClient, code_of

pytestmark = pytest.mark.process

PARTITIONS = 6
POLL_S = 5
"""Half of what a group would wait that wants the ends of all partitions."""
SECONDS_MAX = 60.0


def described(node: ClusterNode) -> dict[int, topics_pb.PartitionDescription]:
    """The partitions of the topic, as a node describes them."""
    with grpc.insecure_channel(node.address) as channel:
        request = topics_pb.DescribeTopicRequest(topic="t")
        found = TopicsStub(channel).DescribeTopic(request, timeout=SECONDS_MAX)
    return {each.partition: each for each in found.partitions}


def test_partitions_without_a_leader_hold_up_no_others(tmp_path: Path) -> None:
    config = proxy_config(consumer={"long_polling_timeout": f"{POLL_S}s", "ack_timeout": "60s"})
    with Cluster(tmp_path, config=config) as cluster:
        cluster.start()
        first, _, lost = cluster.nodes
        with grpc.insecure_channel(first.address) as channel:
            request = topics_pb.CreateTopicRequest(
                topic="t", partitions=PARTITIONS, config={"replication": "1"}
            )
            TopicsStub(channel).CreateTopic(request, timeout=SECONDS_MAX)
        lost_id = cluster.id_of(lost)
        gone = {number for number, each in described(first).items() if list(each.replicas) == [lost_id]}
        assert 0 < len(gone) < PARTITIONS

        with (
            GroupClient(first.address, "t", "before") as client,
            GroupClient(first.address, "t", "g") as late,
        ):
            values: dict[int, set[bytes]] = defaultdict(set)
            for number in range(100):
                value = b"%d" % number
                values[client.produce(value).partition].add(value)
            assert len(values) == PARTITIONS
            reachable = set[bytes]().union(*(found for each, found in values.items() if each not in gone))
            lost.kill()
            # Half the time in which whoever asks for the ends of all has no answer.
            got = [late.consume(timeout=SECONDS_MAX)]
            while len(got) < len(reachable):
                got.append(late.consume(timeout=SECONDS_MAX))
            assert {each.value for each in got if each is not None} == reachable

            partitions = described(first)
            assert {number for number, each in partitions.items() if each.leader == -1} == gone
            assert {number for number, each in partitions.items() if not each.HasField("offsets")} == gone
            ends = {number: partitions[number].offsets.end for number in partitions.keys() - gone}
            assert ends == {number: len(values[number]) for number in ends}
            with pytest.raises(grpc.RpcError) as refused:
                late.offsets()
            assert code_of(refused.value) is grpc.StatusCode.UNAVAILABLE
            assert f"partition {min(gone)} of topic t" in str(refused.value)

            lost.start()
            rest = set[bytes]().union(*values.values()) - reachable
            found = set[bytes]()

            def are_all_there() -> bool:
                message = late.consume(timeout=SECONDS_MAX)
                found.update(() if message is None else {message.value})
                return found == rest

            until_blocking(are_all_there, lambda: f"{found} of {rest}; logs:\n{cluster.logs()}")
            assert {each.partition: each.end for each in late.offsets()} == {
                number: len(each) for number, each in values.items()
            }
