"""Commands of topics: their contents, and what is rejected before it becomes one."""

import pytest

from pixy.cluster.state.topic_commands import alter_command, create_command, delete_command
from pixy.errors import InvalidArgument

ID = b"i" * 16


def test_a_creation_contains_the_requested_topic() -> None:
    made = create_command("topic", ID, 3, {"retention_ms": "5"}).create_topic
    assert (made.name, made.topic_id, made.partitions, dict(made.config)) == (
        "topic",
        ID,
        3,
        {"retention_ms": "5"},
    )


def test_an_alteration_sets_and_unsets_options() -> None:
    altered = alter_command("topic", None, {"retention_ms": "5", "segment_bytes": None}).alter_topic
    assert (altered.name, altered.partitions) == ("topic", 0)
    assert (dict(altered.set_config), list(altered.unset_config)) == (
        {"retention_ms": "5"},
        ["segment_bytes"],
    )
    assert alter_command("topic", 7, {}).alter_topic.partitions == 7


def test_a_deletion_names_the_topic() -> None:
    assert delete_command("topic").delete_topic.name == "topic"


@pytest.mark.parametrize("partitions", [0, -1, 1_000_000])
def test_a_number_of_partitions_out_of_range_is_refused(partitions: int) -> None:
    with pytest.raises(InvalidArgument, match="partitions"):
        create_command("topic", ID, partitions, {})
    with pytest.raises(InvalidArgument, match="partitions"):
        alter_command("topic", partitions, {})


@pytest.mark.parametrize("config", [{"retention": "1"}, {"retention_ms": "long"}])
def test_an_invalid_option_is_refused(config: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match="retention"):
        create_command("topic", ID, 1, config)
    with pytest.raises(InvalidArgument, match="retention"):
        alter_command("topic", None, dict(config))


def test_an_unknown_option_cannot_be_unset() -> None:
    with pytest.raises(InvalidArgument, match="nonsense"):
        alter_command("topic", None, {"nonsense": None})
