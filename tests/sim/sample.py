"""A sample of many similar tests for quick runs; the long suite has all."""

from collections.abc import Iterable
from typing import Any

import pytest


def sample(values: Iterable[str], every: int) -> list[Any]:
    """Parameters of tests: each `every`-th value, and the others marked `long`."""
    return [
        pytest.param(value, marks=pytest.mark.long if number % every else ())
        for number, value in enumerate(values)
    ]
