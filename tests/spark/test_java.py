"""The machine's Java is preferred, with the one of the extra `spark` as fallback."""

import subprocess
from pathlib import Path

import pytest

from pixy.spark import use_java


def test_java_home_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/somewhere")
    assert use_java() == "/somewhere"


def test_a_java_on_the_path_is_preferred(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    java = tmp_path / "java"
    java.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert use_java() == str(java)


@pytest.mark.process
def test_a_machine_without_java_gets_one_that_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", "")  # restored at the end
    monkeypatch.setenv("PATH", str(tmp_path))
    java = Path(use_java()) / "bin" / "java"
    arguments = [
        "-Dname=with space",
        "--add-modules=jdk.incubator.vector",
        "-XshowSettings:properties",
        "-version",
    ]
    done = subprocess.run([java, *arguments], check=True, capture_output=True, text=True)
    assert "name = with space" in done.stderr
    assert "Runtime Environment" in done.stderr
