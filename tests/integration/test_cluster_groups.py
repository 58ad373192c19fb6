"""Consumer groups over three nodes, each a process: clients consume and ack at any node, and no
message waits for its ack timeout, which is longer than any test.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import grpc
import pytest

from pixy.cluster.state.groups import groups_index
from tests.fakes.waiting import until_blocking
from tests.integration.balancer import Balancer
from tests.integration.clusters import Cluster, ClusterNode
from tests.integration.daemon import proxy_config
from tests.integration.group_clients import GroupClient, GroupConsumers, Message, code_of
from tests.integration.ledger import Position

pytestmark = pytest.mark.process

PARTITIONS = 6
CONSUMER = {"ack_timeout": "60s", "long_polling_timeout": "1s", "subscription_timeout": "2s"}
CAUGHT_UP_S = 5.0
"""Longest time until everything is acked and committed."""
LOST_S = 5.0
"""Longest time until the partitions of a killed node are consumed elsewhere."""
GAP_S = 0.5
"""Longest time without messages of a partition that stays."""
PAUSE_S = 5.0
"""A pause longer than the session of a member."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    config = proxy_config(consumer=CONSUMER)
    with Cluster(tmp_path_factory.mktemp("cluster"), config=config) as cluster:
        cluster.start()
        yield cluster


class Group:
    """A topic and a consumer group of a test, with a client at each node.

    Args:
        cluster: all of its nodes run.
        name: of both.
    """

    def __init__(self, cluster: Cluster, name: str, stack: ExitStack) -> None:
        self.cluster = cluster
        self.name = name
        cluster.create_topic(name, PARTITIONS)
        self._at = {
            node.number: stack.enter_context(GroupClient(node.address, name, name)) for node in cluster.nodes
        }

    def at(self, node: ClusterNode) -> GroupClient:
        """Calls at a node."""
        return self._at[node.number]

    def join(self, *nodes: ClusterNode) -> None:
        """Have nodes consume until each owns its share; no message is there yet."""
        with ThreadPoolExecutor(len(nodes)) as threads:
            assert list(threads.map(lambda node: self.at(node).consume(), nodes)) == [None] * len(nodes)
        shares = Counter(self.at(nodes[0]).owners(self.cluster).values())
        assert shares == dict.fromkeys(nodes, PARTITIONS // len(nodes))

    def consumers(self, *nodes: ClusterNode) -> GroupConsumers:
        """Two consumers at each of these nodes."""
        addresses = [node.address for node in nodes] * 2
        return GroupConsumers(addresses, self.name, self.name)

    def produce(self, count: int, name: str = "") -> list[bytes]:
        """Produce at all running nodes in turn."""
        return self.produce_at(self.cluster.running, count, name)

    def produce_at(self, nodes: list[ClusterNode], count: int, name: str) -> list[bytes]:
        """Produce at these nodes in turn."""
        values = [f"{name}{number}".encode() for number in range(count)]
        for number, value in enumerate(values):
            self.at(nodes[number % len(nodes)]).produce(value)
        return values


@pytest.fixture
def group(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Group]:
    name = request.node.name.removeprefix("test_").replace("[", "-").rstrip("]")
    with ExitStack() as stack:
        yield Group(cluster, name, stack)


def same_everywhere(group: Group) -> dict[int, int]:
    """The committed offsets, which all nodes tell alike."""
    told = [group.at(node).offsets() for node in group.cluster.running]
    assert all(each == told[0] for each in told)
    return {each.partition: each.offset for each in told[0]}


# --- any node -------------------------------------------------------------------------------------


def test_a_consumer_at_one_node_gets_all_messages(cluster: Cluster, group: Group) -> None:
    group.join(*cluster.nodes)
    values = group.produce(120)
    with group.consumers(cluster[1]) as consumers:
        consumers.wait_got(len(values))
    assert consumers.times() == Counter(values)
    assert consumers.failed == []
    group.at(cluster[2]).wait_acked(len(values), CAUGHT_UP_S)


@pytest.mark.parametrize("connections", ["lasting", "new"])
def test_a_balancer_is_between(cluster: Cluster, group: Group, connections: str) -> None:
    """With new connections each call goes to another node than the one before."""
    reconnects = connections == "new"
    with Balancer([node.address for node in cluster.nodes]) as balancer:
        clients = GroupConsumers([balancer.address] * 6, group.name, group.name, reconnects=reconnects)
        with (
            clients as consumers,
            GroupClient(balancer.address, group.name, group.name, reconnects=reconnects) as producer,
        ):
            values = [b"%d" % number for number in range(300)]
            for value in values:
                producer.produce(value)
            produced = time.monotonic()
            consumers.wait_got(len(values))
        assert consumers.times() == Counter(values)
        assert consumers.failed == []
        assert consumers.got[-1].at - produced < CAUGHT_UP_S
        group.at(cluster[1]).wait_acked(len(values), CAUGHT_UP_S)
        assert min(balancer.accepted) > 0


def test_each_ack_goes_to_another_node_than_its_message(cluster: Cluster, group: Group) -> None:
    group.join(*cluster.nodes)
    values = group.produce(60)
    got: list[bytes] = []
    addresses = [node.address for node in cluster.nodes]
    with (
        Balancer(addresses) as balancer,
        GroupClient(balancer.address, group.name, group.name, reconnects=True) as client,
    ):
        while len(got) < len(values):
            message = client.consume()
            if message is not None:
                got.append(message.value)
                client.ack(message.position)
    assert Counter(got) == Counter(values)
    group.at(cluster[3]).wait_acked(len(values), CAUGHT_UP_S)


def test_offsets_are_set_at_a_node_that_owns_nothing(cluster: Cluster, group: Group) -> None:
    group.join(cluster[1], cluster[2])
    values = group.produce(60)
    with group.consumers(cluster[1], cluster[2]) as consumers:
        consumers.wait_got(len(values))
    assert consumers.times() == Counter(values)
    group.at(cluster[3]).set_offsets(dict.fromkeys(range(PARTITIONS), 0))
    assert same_everywhere(group) == dict.fromkeys(range(PARTITIONS), 0)
    with group.consumers(cluster[1], cluster[2]) as consumers:
        consumers.wait_got(len(values))
    assert consumers.times() == Counter(values)
    group.at(cluster[3]).wait_acked(len(values), CAUGHT_UP_S)


def test_every_node_says_the_same(cluster: Cluster, group: Group) -> None:
    group.join(*cluster.nodes)
    values = group.produce(30)
    with group.consumers(*cluster.nodes) as consumers:
        consumers.wait_got(len(values))
        owned = [group.at(node).consumers() for node in cluster.nodes]
        assert owned[0] == owned[1] == owned[2]
        assert sorted(number for each in owned[0].values() for number in each) == list(range(PARTITIONS))
    group.at(cluster[1]).wait_acked(len(values), CAUGHT_UP_S)
    assert sum(same_everywhere(group).values()) == len(values)


# --- nodes come and go ----------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["member", "coordinator"])
def test_a_node_is_killed(cluster: Cluster, group: Group, role: str) -> None:
    group.join(*cluster.nodes)
    lost = victim(cluster, group, role)
    others = cluster.others(lost)
    gone = {number for number, owner in group.at(lost).owners(cluster).items() if owner is lost}
    before = group.produce(60, "before-")
    with group.consumers(*others) as consumers, group.consumers(lost) as last:
        until_blocking(lambda: len(consumers.times() + last.times()) == len(before), cluster.logs)
        time.sleep(1)  # two commit intervals
        lost.kill()
        killed = time.monotonic()
        with steady(group, others):
            until_blocking(lambda: gone <= partitions_since(consumers, killed), cluster.logs)
        took = max(first_since(consumers, killed, number) for number in gone) - killed
        lost.start()
    cluster.wait_in_sync()
    print(f"consumed elsewhere after {took:.2f} s")
    assert took < LOST_S
    assert consumers.failed == []
    assert all((consumers.times() + last.times())[value] == 1 for value in before)


def victim(cluster: Cluster, group: Group, role: str) -> ClusterNode:
    """A node to kill: the one that decides who owns what in the group, or another one."""
    names = [each.name for each in cluster[1].status().groups if each.name.startswith("groups-")]
    decides = cluster.leader(f"groups-{groups_index(group.name, len(names))}")
    return decides if role == "coordinator" else cluster.others(decides)[0]


def partitions_since(consumers: GroupConsumers, since: float) -> set[int]:
    """Partitions of which messages came after that time."""
    return {message.position.partition for message in list(consumers.got) if message.at > since}


def first_since(consumers: GroupConsumers, since: float, partition: int) -> float:
    """Time of the first message of a partition after that time."""
    return next(
        message.at
        for message in consumers.got
        if message.at > since and message.position.partition == partition
    )


@contextmanager
def steady(group: Group, nodes: list[ClusterNode]) -> Iterator[dict[Position, float]]:
    """A hundred messages a second at these nodes; the time at which each was answered."""
    answered: dict[Position, float] = {}
    stop = threading.Event()

    def produce() -> None:
        number = 0
        while not stop.wait(0.01):
            number += 1
            value = b"steady-%d" % number
            position = group.at(nodes[number % len(nodes)]).produce(value)
            answered[position] = time.monotonic()

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield answered
    finally:
        stop.set()
        thread.join()


def test_a_node_is_paused_for_longer_than_its_session(cluster: Cluster, group: Group) -> None:
    group.join(*cluster.nodes)
    paused = cluster[3]
    others = cluster.others(paused)
    owned = {number for number, owner in group.at(paused).owners(cluster).items() if owner is paused}
    values = group.produce(60)
    held = [taken(group.at(paused)) for _ in range(12)]
    own = [message for message in held if message.position.partition in owned]
    assert own
    for message in own[::2]:
        group.at(paused).ack(message.position)  # accepted, and not committed
    paused.pause()
    try:
        with ThreadPoolExecutor(4) as threads:
            # They are there when it goes on.
            waiting = [threads.submit(outcome, group.at(paused)) for _ in range(4)]
            with group.consumers(*others) as consumers:
                kept = {message.value for message in held if message not in own}
                consumers.wait_got(len(values) - len(kept - consumers.times().keys()))
                for message in held:
                    if message not in own:
                        group.at(others[0]).ack(message.position)
            group.at(others[0]).wait_acked(len(values), CAUGHT_UP_S)
            committed = {each.partition: each.offset for each in group.at(others[0]).offsets()}
            time.sleep(PAUSE_S)
            fresh = group.produce_at(others, 30, "fresh-")
            paused.resume()
            answers = [each.result() for each in waiting]
    finally:
        paused.resume()
    got = [message for message in answers if message is not None]
    assert {message.value for message in got} <= set(fresh)
    with group.consumers(paused) as consumers:
        until_blocking(lambda: paused in group.at(paused).owners(cluster).values(), cluster.logs)
        for message in got:
            group.at(others[0]).ack(message.position)
        consumers.wait_got(len(fresh) - len(got))
    assert consumers.times() + Counter(message.value for message in got) == Counter(fresh)
    group.at(others[1]).wait_acked(len(values) + len(fresh), CAUGHT_UP_S)
    after = {each.partition: each.offset for each in group.at(others[0]).offsets()}
    assert all(after[number] >= offset for number, offset in committed.items())


def taken(client: GroupClient) -> Message:
    """The next message, which is there."""
    message = client.consume()
    assert message is not None
    return message


def outcome(client: GroupClient) -> Message | None:
    """A message, None if the node does not answer with one."""
    try:
        return client.consume()
    except grpc.RpcError as error:
        if code_of(error) is grpc.StatusCode.UNAVAILABLE:
            return None
        raise


@pytest.mark.parametrize("how", ["unsubscribes", "stops"])
def test_a_node_joins_and_leaves(cluster: Cluster, group: Group, how: str) -> None:
    staying, comer = [cluster[1], cluster[2]], cluster[3]
    group.join(*staying)
    client = group.at(cluster[1])
    owners = [client.owners(cluster)]
    with group.consumers(*staying) as consumers, steady(group, staying) as answered:
        consumers.wait_got(50)
        with group.consumers(comer) as more:
            until_blocking(lambda: owns(client, cluster, comer) == PARTITIONS // 3, cluster.logs)
            owners.append(client.owners(cluster))
            more.wait_got(20)
            if how == "stops":
                more.stop()
                comer.stop()
        until_blocking(lambda: sum(owns(client, cluster, node) for node in staying) == PARTITIONS)
        owners.append(client.owners(cluster))
        consumers.wait_got(len(consumers.times()) + 100)
    if how == "stops":
        comer.start()
        cluster.wait_in_sync()
    stay = {number for number in range(PARTITIONS) if len({each[number] for each in owners}) == 1}
    assert len(stay) >= PARTITIONS // 2
    waited: dict[int, float] = {}
    for message in [*consumers.got, *more.got]:
        number = message.position.partition
        if message.position in answered:
            waited[number] = max(waited.get(number, 0.0), message.at - answered[message.position])
    print(f"{stay} stay; longest wait by partition: {waited}")
    assert max(waited[number] for number in stay) <= GAP_S
    assert consumers.failed == []
    assert set((consumers.times() + more.times()).values()) == {1}


def owns(client: GroupClient, cluster: Cluster, node: ClusterNode) -> int:
    """Number of partitions that a node owns."""
    return sum(owner is node for owner in client.owners(cluster).values())
