"""pixy/backup/target.py: a directory, and file systems of fsspec, behave alike."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from pixy.backup.object_names import RangeName
from pixy.backup.target import DirectoryTarget, FsspecTarget, Target, open_target, put, read_object
from pixy.errors import CorruptData, FailedPrecondition, NotFound, Unavailable
from pixy.records import crc32c


@pytest.fixture(params=["directory", "memory", "local"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    if request.param == "directory":
        yield open_target(str(tmp_path / "a" / "b"))
    elif request.param == "local":
        yield FsspecTarget(f"local://{tmp_path}/a/b")
    else:
        yield open_target("memory://backups/x")
        fsspec.filesystem("memory").store.clear()


def test_objects_are_written_replaced_and_removed(target: Target) -> None:
    assert target.sizes("data") == {}
    put(target, "data/a/b", [b"12", memoryview(b"345")])
    put(target, "data/c", [])
    put(target, "other/d", [b"x"])
    target.flush()
    assert target.sizes("data") == {"data/a/b": 5, "data/c": 0}
    assert target.get("data/a/b") == b"12345"
    put(target, "data/a/b", [b"new"])
    assert target.get("data/a/b") == b"new"
    target.remove("data/a/b")
    target.remove("data/a/b")
    assert target.sizes("data") == {"data/c": 0}
    with pytest.raises(NotFound):
        target.get("data/a/b")


def test_an_object_is_compared_with_its_name(target: Target) -> None:
    path = f"data/{RangeName(0, 1, 3, crc32c(b'abc'))}"
    with pytest.raises(CorruptData, match="is missing"):
        read_object(target, path)
    put(target, path, [b"abc"])
    assert read_object(target, path) == b"abc"
    for other in (b"abd", b"ab", b"abcd", b""):
        put(target, path, [other])
        with pytest.raises(CorruptData, match="expected 3"):
            read_object(target, path)


def test_many_pieces_are_written(target: Target) -> None:
    pieces = [b"%d," % number for number in range(5000)]
    put(target, "data/x", pieces)
    assert target.get("data/x") == b"".join(pieces)


def test_a_file_url_is_a_directory(tmp_path: Path) -> None:
    assert isinstance(open_target(f"file://{tmp_path}"), DirectoryTarget)


def test_a_scheme_that_nobody_knows_is_refused() -> None:
    with pytest.raises(FailedPrecondition, match="nowhere"):
        open_target("nowhere://bucket/x")


def test_parts_are_no_objects(tmp_path: Path) -> None:
    target = DirectoryTarget(tmp_path)
    put(target, "data/x", [b"1"])
    (tmp_path / "data" / "y.part").write_bytes(b"half")
    assert target.sizes("data") == {"data/x": 1}
    target.remove_parts()
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["x"]


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = DirectoryTarget(tmp_path)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(Unavailable, match="No space left on device"):
        put(target, "data/x", [b"1"])
    assert list((tmp_path / "data").iterdir()) == []


def test_a_target_that_is_no_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Unavailable, match="file"):
        put(DirectoryTarget(tmp_path / "file"), "data/x", [b"1"])
