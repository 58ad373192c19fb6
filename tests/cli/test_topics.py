import json

from pixy.proto import kafkapixy_pb2 as pb

from .conftest import Run
from .fake_server import FakePixy

FOO = pb.GetTopicMetadataRs(
    version=1,
    config={"retention.ms": "604800000", "compression.type": "producer"},
    partitions=[
        pb.PartitionMetadata(partition=0, leader=1, replicas=[1, 2], isr=[1]),
        pb.PartitionMetadata(partition=1, leader=-1, replicas=[1, 2], isr=[]),
    ],
)


def test_topics_list_counts_partitions(pixy: FakePixy, run: Run) -> None:
    pixy.answers["ListTopics"] = pb.ListTopicRs(topics={"foo": FOO, "a": pb.GetTopicMetadataRs()})
    assert run("topics", "list").stdout == "TOPIC  PARTITIONS\na               0\nfoo             2\n"


def test_topics_list_of_nothing_is_a_heading(pixy: FakePixy, run: Run) -> None:
    pixy.answers["ListTopics"] = pb.ListTopicRs()
    assert run("topics", "list").stdout == "TOPIC  PARTITIONS\n"
    assert json.loads(run("topics", "list", "--json").stdout) == {}


def test_topics_show_prints_partitions_and_options(pixy: FakePixy, run: Run) -> None:
    pixy.answers["GetTopicMetadata"] = FOO
    assert run("topics", "show", "foo").stdout == (
        "PARTITION  LEADER  REPLICAS  IN SYNC\n"
        "        0       1  1,2       1\n"
        "        1      -1  1,2\n"
        "\n"
        "OPTION            VALUE\n"
        "compression.type  producer\n"
        "retention.ms      604800000\n"
    )
    assert pixy.calls == [("GetTopicMetadata", pb.GetTopicMetadataRq(topic="foo", with_partitions=True))]


def test_topics_show_prints_json(pixy: FakePixy, run: Run) -> None:
    pixy.answers["GetTopicMetadata"] = FOO
    found = json.loads(run("topics", "show", "foo", "--json").stdout)
    assert found["config"]["retention.ms"] == "604800000"
    assert found["partitions"][0] == {"partition": 0, "leader": 1, "replicas": [1, 2], "isr": [1]}


def test_consumers_tells_who_has_which_partitions(pixy: FakePixy, run: Run) -> None:
    held = pb.ConsumerGroups(
        consumers={
            "c2": pb.ConsumerPartitions(partitions=[2]),
            "c1": pb.ConsumerPartitions(partitions=[1, 0]),
        }
    )
    pixy.answers["ListConsumers"] = pb.ListConsumersRs(groups={"g": held})
    assert run("consumers", "foo", "--group", "g").stdout == (
        "GROUP  CLIENT  PARTITIONS\ng      c1      0,1\ng      c2      2\n"
    )
    assert json.loads(run("consumers", "foo", "--json").stdout) == {"g": {"c1": [0, 1], "c2": [2]}}
    assert pixy.calls[0] == ("ListConsumers", pb.ListConsumersRq(topic="foo", group="g"))
