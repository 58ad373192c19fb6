"""Conventions of the tests: no patched private names, one fake clock, one in-memory cluster, and
one way to wait.
"""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent

PATCH = re.compile(
    r"""(?:setattr|patch\.object)\(\s*(?:[^()"]*,\s*"_(?!_)|"[^"]*\._(?!_)|[^()",]*\._(?!_))""", re.MULTILINE
)
"""A patch of a private name, or of an attribute below one."""

PATCHES_MAX = {
    "api/grpc/conftest.py": 1,
    "rpc/test_faults.py": 1,
    "api/grpc/test_kafkapixy.py": 1,
    "api/grpc/test_sparse_acks.py": 1,
    "rpc/conftest.py": 1,
    "serving/conftest.py": 1,
    "serving/test_listeners.py": 1,
    "rpc/test_stream.py": 1,
    "backend/kafka/test_staged_writes.py": 1,
    "backend/test_embedded.py": 1,
    "cli/test_consume.py": 2,
    "cluster/consumer_groups/test_group_coordinator.py": 3,
    "cluster/log/test_journal_retention.py": 2,
    "fakes/steps.py": 1,
    "cluster/test_large_topics.py": 2,
    "cluster/test_node.py": 1,
    "cluster/test_node_full_disk.py": 3,
    "cluster/replicas/test_partitions.py": 1,
    "cluster/publications/test_lone_publisher.py": 5,
    "cluster/log/test_relocation.py": 1,
    "cluster/log/test_disk_reserve.py": 2,
    "cluster/state/test_join_request_checks.py": 1,
    "cluster/replicas/test_retention.py": 4,
    "peers/test_link.py": 1,
    "proxy/test_proxy.py": 2,
    "spark/test_stream.py": 1,
    "staging/test_stages_sharing.py": 1,
    "storage/test_disk_background.py": 2,
    "storage/test_io_uring.py": 6,
    "storage/test_journal.py": 4,
    "storage/test_journal_units.py": 1,
    "storage/test_segment.py": 1,
    "storage/test_staged_part.py": 2,
    "test_daemon.py": 7,
}
"""Patches that are not worth a constructor argument, mostly limits of iterations and retries: the
maximum per file; others have none. The simulations, which break code on purpose, may have any.
"""

FAKES = re.compile(r"^class (\w*(?:Clock|Backend))\b(?!\(Fake)", re.MULTILINE)
WAITS = re.compile(r"^\s+while [^\n]*\n\s+(?:await asyncio|time)\.sleep\((?!0\))", re.MULTILINE)
"""A loop that only sleeps; `tests.fakes.waiting` has the shared one."""


def sources() -> dict[str, str]:
    paths = [path for path in TESTS.rglob("*.py") if path != Path(__file__)]
    return {path.relative_to(TESTS).as_posix(): path.read_text() for path in paths}


def test_private_names_are_patched_only_in_listed_files() -> None:
    counts = {name: len(PATCH.findall(text)) for name, text in sources().items()}
    more = {name: count for name, count in counts.items() if count > PATCHES_MAX.get(name, 0)}
    assert [name for name in more if not name.startswith("sim/")] == []


def test_a_patch_is_detected() -> None:
    for text in (
        'monkeypatch.setattr(module, "_RETRY_S", 0)',
        'monkeypatch.setattr("pixy.daemon._STOP_S", 1)',
        'monkeypatch.setattr(\n    proxy._backend, "append", none\n)',
        'patch.object(Journal, "_write", write)',
    ):
        assert PATCH.search(text), text
    assert not PATCH.search('setattr(node.publisher, "committed", none)')


def test_there_is_one_fake_clock_and_one_in_memory_cluster() -> None:
    found = {(name, fake) for name, text in sources().items() for fake in FAKES.findall(text)}
    assert found == {("fakes/clock.py", "FakeClock"), ("fakes/backend.py", "FakeBackend")}


def test_there_is_one_way_to_wait() -> None:
    assert [name for name, text in sources().items() if WAITS.search(text)] == []
