import os
from pathlib import Path
from typing import Any

import pytest

from pixy.troubles import disk_space, low_disk

MIB = 1 << 20


def disk(left_mib: int, size_mib: int) -> Any:
    return lambda _: os.statvfs_result((MIB, MIB, size_mib, 0, left_mib, 0, 0, 0, 0, 255))


@pytest.mark.parametrize(
    ("left_mib", "size_mib", "is_low"),
    [(1023, 100_000, True), (1024, 100_000, False), (50, 1000, False), (49, 1000, True), (0, 1000, True)],
)
def test_a_disk_that_gets_full_is_told_before_it_is_full(
    left_mib: int, size_mib: int, is_low: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", disk(left_mib, size_mib))
    told = [f"its disk gets full: {left_mib} MiB of {size_mib} are left for /data"] if is_low else []
    assert list(low_disk(Path("/data"))) == told


def test_a_directory_that_is_not_there_is_no_full_disk(tmp_path: Path) -> None:
    assert list(low_disk(tmp_path / "none")) == []
    assert disk_space(tmp_path / "none") == (0, 0)
