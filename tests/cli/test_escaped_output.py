"""Texts of clients are printed on one line, and give no commands to a terminal."""

import json
from collections.abc import Callable

import grpc
import pytest

from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto import pixy_log_pb2 as log_pb
from pixy.proto import pixy_topics_pb2 as topics_pb
from pixy.records import NewRecord, build_batch

from .conftest import Run
from .fake_server import FakePixy, Refused

HOSTILE = "a\nb\r\x1b]0;c\x07\x1b[2J\x9bd\u2028e\u202ef\x7f\x00"
ESCAPED = r"a\nb\r\x1b]0;c\x07\x1b[2J\x9bd\u2028e\u202ef\x7f\x00"


def peeked(pixy: FakePixy, key: str, value: str, name: str, header: str) -> list[str]:
    batch = build_batch([NewRecord(key.encode(), value.encode(), [(name, header.encode())], 0)])
    pixy.append(log_pb.AppendRequest(partitions=[log_pb.PartitionBatches(batches=bytes(batch))]))
    return ["peek", "foo"]


def consumed(pixy: FakePixy, key: str, value: str, name: str, header: str) -> list[str]:
    headers = [pb.RecordHeader(key=name, value=header.encode())]
    pixy.queue = [pb.ConsRs(message=value.encode(), key_value=key.encode(), headers=headers)]
    return ["consume", "foo", "-g", "g"]


def assert_one_safe_line(text: str) -> str:
    line, rest = text.split("\n")
    assert not rest
    assert line.replace("\t", "").isprintable()
    return line


@pytest.mark.slow
@pytest.mark.parametrize("place", range(4), ids=["key", "value", "header name", "header value"])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_peek_shows_a_message_on_one_line(pixy: FakePixy, run: Run, place: int, options: list[str]) -> None:
    texts = ["x"] * 4
    texts[place] = HOSTILE
    line = assert_one_safe_line(run(*peeked(pixy, *texts), *options).stdout)
    if options:
        found = json.loads(line)
        (header,) = found["headers"]
        assert [found["key"], found["value"], header["key"], header["value"]] == texts
    else:
        assert ESCAPED in line


@pytest.mark.parametrize("options", [[], ["-v"], ["--json"]])
def test_consume_shows_a_message_on_one_line(pixy: FakePixy, run: Run, options: list[str]) -> None:
    line = assert_one_safe_line(run(*consumed(pixy, HOSTILE, HOSTILE, HOSTILE, HOSTILE), *options).stdout)
    if options == ["--json"]:
        assert json.loads(line)["value"] == HOSTILE
    else:
        assert line.count(ESCAPED) == len(["value", *options])


@pytest.mark.parametrize("make", [peeked, consumed])
def test_a_tab_in_a_value_stays_and_one_in_a_key_is_not_taken_for_the_end_of_the_fields(
    pixy: FakePixy, run: Run, make: Callable[..., list[str]]
) -> None:
    args = make(pixy, "k\tforged", "a\tb", "h", "")
    line = assert_one_safe_line(run(*args, *(["-v"] if args[0] == "consume" else [])).stdout)
    assert line.split("\t")[1:] == ["a", "b"]
    assert "key=k\\tforged" in line


@pytest.mark.parametrize("options", [[], ["foo"]])
def test_tables_keep_their_rows(pixy: FakePixy, run: Run, options: list[str]) -> None:
    held = pb.ConsumerGroups(consumers={HOSTILE: pb.ConsumerPartitions(partitions=[0])})
    pixy.answers = {
        "ListTopics": pb.ListTopicRs(topics={"foo": pb.GetTopicMetadataRs()}),
        "ListGroups": topics_pb.ListGroupsResponse(groups=[HOSTILE]),
        "ListConsumers": pb.ListConsumersRs(groups={HOSTILE: held}),
    }
    titles, row, rest = run("consumers", *options).stdout.split("\n")
    assert row.count(ESCAPED) == 2
    assert titles.index("PARTITIONS") == row.rindex("0")
    assert not rest


@pytest.mark.parametrize("command", [["topics", "list"], ["produce", "foo", "x"], ["produce", "foo"]])
def test_the_text_of_an_error_is_one_line(pixy: FakePixy, run: Run, command: list[str]) -> None:
    def refuse(_: object) -> None:
        raise Refused(grpc.StatusCode.NOT_FOUND, f"no topic {HOSTILE}")

    pixy.answers = {"ListTopics": refuse, "Produce": refuse, "DescribeTopics": refuse}
    result = run(*command, stdin="x\n")
    assert result.exit_code == 1
    assert assert_one_safe_line(result.stderr).startswith("pixy: ")


def test_a_configuration_with_hostile_keys_gives_one_line_for_each_problem(
    run_alone: Run, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("config") / "c.yaml"
    file.write_text('"a\\nforged: 1\\e[2J": 1\ngrpc_addr: "b\\u2028\\e"\n')
    lines = run_alone("config", "check", str(file)).stderr.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("pixy: ") and line.isprintable() for line in lines)
