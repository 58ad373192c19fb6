import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def one_core() -> Iterator[None]:
    """Threads that give each other the turn, as those of a simulated process, do so in a third of
    the time on one core. Each worker of pytest-xdist has another one.
    """
    cores = sorted(os.sched_getaffinity(0))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    os.sched_setaffinity(0, {cores[worker % len(cores)]})
    yield
    os.sched_setaffinity(0, cores)
