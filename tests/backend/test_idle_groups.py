"""Consumer groups at rest are small."""

from pathlib import Path

import pytest

from tests.backend.idle_groups import bytes_of_idle_group


@pytest.mark.long
@pytest.mark.parametrize(
    ("polls_s", "partitions", "most"),
    [
        pytest.param(3.0, 1, 20_000, id="subscribed lately"),
        pytest.param(1800.0, 1, 20_000, id="waiting"),
        pytest.param(3.0, 4, 20_000, id="four partitions, subscribed lately"),
        pytest.param(1800.0, 4, 33_000, id="four partitions, waiting"),
    ],
)
def test_a_group_at_rest_takes_little_memory_of_each_node(
    polls_s: float, partitions: int, most: int, tmp_path: Path
) -> None:
    assert bytes_of_idle_group(tmp_path, polls_s, 60, partitions) <= most
