"""Durations of polls in the tests of the APIs."""

import pytest

QUICK_POLLS = pytest.mark.parametrize("served", [2], indirect=True, ids=["quick-polls"])
"""For tests of polls that find nothing: the others wait for long, as a busy machine may."""
