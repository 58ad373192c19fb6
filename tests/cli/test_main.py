import subprocess
import sys

import pytest

import pixy

from .conftest import Run


def test_the_version_is_printed(run_alone: Run) -> None:
    assert run_alone("--version").stdout == f"pixy {pixy.__version__}\n"


def test_help_names_every_command(run_alone: Run) -> None:
    text = run_alone("--help").stdout
    for command in ("serve", "produce", "consume", "ack", "offsets", "topics", "consumers", "config"):
        assert f"\n  {command} " in text


@pytest.mark.parametrize("args", [["nosuch"], ["produce"], ["consume", "foo"], ["serve", "--nosuch"]])
def test_wrong_usage_exits_with_2(run_alone: Run, args: list[str]) -> None:
    assert run_alone(*args).exit_code == 2


@pytest.mark.slow
def test_help_imports_no_slow_modules() -> None:
    heavy = "[name for name in ('grpc', 'google.protobuf', 'yaml', 'structlog', 'asyncio') if name in sys.modules]"
    code = f"import sys, pixy.cli; print({heavy})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
