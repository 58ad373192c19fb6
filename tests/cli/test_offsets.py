import json

import pytest

from pixy.proto import kafkapixy_pb2 as pb

from .conftest import Run
from .fake_server import FakePixy

OFFSETS = pb.GetOffsetsRs(
    offsets=[
        pb.PartitionOffset(
            partition=0, begin=0, end=120, count=120, offset=100, lag=20, metadata="BC", sparse_acks="1-3"
        ),
        pb.PartitionOffset(partition=1, begin=0, end=0, count=0, offset=-1, lag=0),
    ]
)


def test_offsets_get_shows_a_table(pixy: FakePixy, run: Run) -> None:
    pixy.answers["GetOffsets"] = OFFSETS
    assert run("offsets", "get", "foo", "-g", "bar").stdout == (
        "PARTITION  BEGIN  END  COUNT  OFFSET  LAG  SPARSE_ACKS\n"
        "        0      0  120    120     100  20   1-3\n"
        "        1      0    0      0      -1  -\n"
    )
    assert pixy.calls == [("GetOffsets", pb.GetOffsetsRq(topic="foo", group="bar"))]


def test_offsets_get_prints_json(pixy: FakePixy, run: Run) -> None:
    pixy.answers["GetOffsets"] = OFFSETS
    found = json.loads(run("offsets", "get", "foo", "-g", "bar", "--json").stdout)
    assert found[0] == {
        "partition": 0,
        "begin": 0,
        "end": 120,
        "count": 120,
        "offset": 100,
        "lag": 20,
        "metadata": "BC",
        "sparse_acks": "1-3",
    }
    assert [entry["lag"] for entry in found] == [20, None]


def test_offsets_set_takes_numbers_and_words(pixy: FakePixy, run: Run) -> None:
    pixy.answers["SetOffsets"] = pb.SetOffsetsRs()
    result = run("offsets", "set", "foo", "-g", "bar", "0=42", "1=oldest", "2=newest")
    assert (result.exit_code, result.stdout) == (0, "set 3 partitions of foo for bar\n")
    (request,) = pixy.named("SetOffsets")
    assert [(entry.partition, entry.offset) for entry in request.offsets] == [(0, 42), (1, -2), (2, -1)]


@pytest.mark.parametrize("position", ["0=121", "*=121"])
def test_an_offset_beyond_the_end_is_set_with_a_warning(pixy: FakePixy, run: Run, position: str) -> None:
    pixy.answers |= {
        "SetOffsets": pb.SetOffsetsRs(),
        "GetOffsets": pb.GetOffsetsRs(offsets=OFFSETS.offsets[:1]),
    }
    result = run("offsets", "set", "foo", "-g", "bar", position)
    assert (result.exit_code, len(pixy.named("SetOffsets"))) == (0, 1)
    assert result.stderr == (
        "pixy: warning: partition 0 of foo ends at 120: messages that are written there below offset 121 may be "
        "skipped\n"
    )
    assert run("offsets", "set", "foo", "-g", "bar", position.replace("121", "120")).stderr == ""


@pytest.mark.parametrize(
    ("option", "said"), [("--json", "{}\n"), ("--timeout=30", "TOPIC  PARTITION  BEGIN")]
)
def test_a_group_without_offsets_is_told(pixy: FakePixy, run: Run, option: str, said: str) -> None:
    pixy.answers["ListTopics"] = pb.ListTopicRs()
    result = run("offsets", "get", "-g", "nosuch", option)
    assert (result.exit_code, result.stdout.startswith(said)) == (0, True)
    assert result.stderr == "pixy: consumer group nosuch has no offsets in any topic\n"


def test_offsets_set_prints_json(pixy: FakePixy, run: Run) -> None:
    pixy.answers["SetOffsets"] = pb.SetOffsetsRs()
    result = run("offsets", "set", "foo", "-g", "bar", "0=oldest", "--json")
    assert json.loads(result.stdout) == [{"partition": 0, "offset": -2}]


@pytest.mark.parametrize(
    "position", ["0", "0=", "=1", "0=--1", "x=1", "0=last", "**=1", f"0={1 << 63}", f"{1 << 31}=0"]
)
def test_an_invalid_position_is_wrong_usage(run: Run, pixy: FakePixy, position: str) -> None:
    assert run("offsets", "set", "foo", "-g", "bar", position).exit_code == 2
    assert pixy.calls == []
