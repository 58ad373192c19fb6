"""Options of copies."""

import pytest

from pixy.mirror.mirrored_topics import options_of


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {}),
        ({"retention_ms": "5", "replication": "3", "cleanup_policy": "delete"}, {"retention_ms": "5"}),
        ({"segment_bytes": "65536", "segment_ms": "1"}, {"segment_bytes": "1048576", "segment_ms": "60000"}),
        (
            {"cleanup_policy": "compact", "retention_ms": "5"},
            {"retention_ms": "-1", "retention_bytes": "-1"},
        ),
    ],
)
def test_options_that_every_kind_of_cluster_takes(config: dict[str, str], expected: dict[str, str]) -> None:
    assert options_of(config) == expected
