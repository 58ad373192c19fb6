"""Options of a topic: rejected values, and the defaults of the cluster."""

from collections.abc import Callable

import pytest

from pixy.cluster.state.topic_config import check_forwarded_config, check_topic_config, log_options
from pixy.config import StorageConfig
from pixy.errors import InvalidArgument
from pixy.storage import LogOptions


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"retention_ms": "-1", "retention_bytes": "-1"},
        {"retention_ms": "0", "retention_bytes": "0", "segment_bytes": "65536", "segment_ms": "60000"},
        {"retention_ms": str(2**63 - 1)},
        {"segment_bytes": str(1 << 30)},
        {"replication": "1"},
        {"replication": "7"},
        {"cleanup_policy": "delete"},
        {"cleanup_policy": "compact"},
        {"cleanup_policy": "compact,delete"},
        {"cleanup_policy": "delete,compact"},
    ],
)
def test_valid_options_are_accepted(config: dict[str, str]) -> None:
    check_topic_config(config)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention_ms", "-2"),
        ("retention_bytes", "-2"),
        ("segment_bytes", "0"),
        ("segment_ms", "0"),
        ("segment_bytes", "-1"),
        ("segment_bytes", "1"),
        ("segment_bytes", "65535"),
        ("segment_ms", "1"),
        ("segment_ms", "59999"),
        ("replication", "0"),
        ("replication", "8"),
        ("segment_bytes", str((1 << 30) + 1)),
        ("retention_ms", str(2**63)),
        ("retention_ms", ""),
        ("retention_ms", " 1"),
        ("retention_ms", "1\n"),
        ("retention_ms", "+1"),
        ("retention_ms", "1.5"),
        ("retention_ms", "1h"),
        ("retention_ms", "\u0661"),
        ("retention_ms", "9" * 4301),
    ],
)
def test_a_value_out_of_range_is_refused_with_the_allowed_range(name: str, value: str) -> None:
    with pytest.raises(
        InvalidArgument,
        match=rf"topic option {name} is .*; a whole number from (-1|1|65536|60000) to \d+ is allowed",
    ):
        check_topic_config({name: value})


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        InvalidArgument,
        match=r"retention\.ms is unknown; known options are retention_bytes, retention_ms, segment_bytes, "
        "segment_ms, replication, cleanup_policy",
    ):
        check_topic_config({"retention.ms": "1"})


@pytest.mark.parametrize("check", [check_topic_config, check_forwarded_config])
@pytest.mark.parametrize("value", ["", "1", "compacted", "compact,compact", "x" * 5000])
def test_an_unknown_policy_is_refused(check: Callable[[dict[str, str]], None], value: str) -> None:
    with pytest.raises(
        InvalidArgument, match=r"cleanup_policy is '.{0,60}'; .* delete, compact, "
    ) as refused:
        check({"cleanup_policy": value})
    assert len(str(refused.value)) < 200


def test_what_would_be_compacted_is_kept_whole_unless_it_is_deleted_too() -> None:
    storage, own = StorageConfig(retention=2, retention_bytes=7), {"retention_ms": "1000"}
    whole = log_options(storage, own | {"cleanup_policy": "compact"})
    assert (whole.retention_bytes, whole.retention_ms) == (None, None)
    for policy in ("delete", "compact,delete", "delete,compact"):
        assert log_options(storage, own | {"cleanup_policy": policy}) == log_options(storage, own)


def test_unset_options_default_to_those_of_the_cluster() -> None:
    storage = StorageConfig(segment_bytes=1 << 20, segment_age=0.5, retention=2, retention_bytes=7)
    assert log_options(storage, {}) == LogOptions(1 << 20, 500, 7, 2000)


def test_each_option_of_a_topic_overrides_that_of_the_cluster() -> None:
    storage = StorageConfig(segment_bytes=1 << 20, segment_age=0.5, retention=2, retention_bytes=7)
    own = {"retention_bytes": "8", "segment_ms": "90000"}
    assert log_options(storage, own) == LogOptions(1 << 20, 90_000, 8, 2000)
    own = {"retention_ms": "3", "segment_bytes": "400000"}
    assert log_options(storage, own) == LogOptions(400_000, 500, 7, 3)


def test_the_number_of_replicas_is_no_option_of_a_log() -> None:
    assert log_options(StorageConfig(), {"replication": "2"}) == log_options(StorageConfig(), {})


def test_unlimited_is_0_in_the_configuration_and_minus_1_in_a_topic_where_0_keeps_nothing() -> None:
    assert log_options(StorageConfig(retention=0, retention_bytes=0), {})[2:] == (None, None)
    assert log_options(
        StorageConfig(retention=9, retention_bytes=9), {"retention_ms": "-1", "retention_bytes": "-1"}
    )[2:] == (None, None)
    assert log_options(StorageConfig(), {"retention_ms": "0", "retention_bytes": "0"})[2:] == (0, 0)


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({"segment_bytes": str(1 << 40)}, LogOptions(1 << 30, 500, 7, 2000)),
        ({"segment_bytes": "1", "segment_ms": "1"}, LogOptions(64 << 10, 60_000, 7, 2000)),
        ({"segment_bytes": "-1", "retention_ms": "-9"}, LogOptions(64 << 10, 500, 7, None)),
        ({"segment_ms": "9" * 19}, LogOptions(1 << 20, 2**63 - 1, 7, 2000)),
        ({"segment_ms": "9" * 5000, "segment_bytes": "x", "other": "1"}, LogOptions(1 << 20, 500, 7, 2000)),
    ],
)
def test_values_of_earlier_releases_and_impossible_ones_count_as_the_nearest_allowed(
    config: dict[str, str], options: LogOptions
) -> None:
    storage = StorageConfig(segment_bytes=1 << 20, segment_age=0.5, retention=2, retention_bytes=7)
    assert log_options(storage, config) == options
