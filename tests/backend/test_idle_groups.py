"""Consumer groups at rest are small."""

from pathlib import Path

import pytest

from tests.backend.idle_groups import bytes_of_idle_group


@pytest.mark.long
@pytest.mark.parametrize("polls_s", [3.0, 1800.0], ids=["subscribed lately", "waiting"])
def test_a_group_at_rest_takes_little_memory_of_each_node(polls_s: float, tmp_path: Path) -> None:
    assert bytes_of_idle_group(tmp_path, polls_s, 60) <= 20_000
