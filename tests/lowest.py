"""`make test-lowest`: the tests that use dependencies, with the lowest version of each that
`pyproject.toml` allows.

The versions are read from there, so that they cannot drift. They are installed into an environment
of their own, `.cache/lowest`, which is rebuilt when one of them changes; the test tools have their
usual versions.
"""

import os
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

from packaging.requirements import Requirement

_ROOT = Path(__file__).parent.parent
_PLACE = _ROOT / ".cache" / "lowest"
_PYTHON = _PLACE / "bin" / "python"
_INSTALLED = _PLACE / "installed.txt"
_TOOLS = frozenset(
    {
        "h2",
        "hpack",
        "hypothesis",
        "openapi-spec-validator",
        "prometheus-client",
        "pytest",
        "pytest-asyncio",
        "pytest-timeout",
        "pytest-xdist",
    }
)
"""Requirements of the extra `dev` that the tests below import."""

_WITHOUT_PROCESSES = (
    "tests/api",
    "tests/backend",
    "tests/cli",
    "tests/config",
    "tests/http1",
    "tests/records",
    "tests/spark",
    "tests/test_daemon.py",
    "tests/web",
)
_WITH_PROCESSES = (
    "tests/backend/kafka/test_produce.py",
    "tests/integration/test_grpc_server.py",
    "tests/spark/test_source.py",
)
"""Tests with real brokers, daemons with TLS clients, and a Spark."""


def lowest(requirement: str) -> str:
    """The requirement pinned to its lowest allowed version.

    Raises:
        ValueError: the requirement has no lower bound.
    """
    parsed = Requirement(requirement)
    for bound in parsed.specifier:
        if bound.operator in (">=", "=="):
            marker = f"; {parsed.marker}" if parsed.marker else ""
            return f"{parsed.name}=={bound.version}{marker}"
    raise ValueError(f"{requirement} has no lower bound: nobody could say what works")


def _wanted() -> list[str]:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    tools = [each for each in extras["dev"] if Requirement(each).name in _TOOLS]
    return [*map(lowest, project["dependencies"] + extras["spark"]), *tools]


def _install(wanted: list[str]) -> None:
    text = "\n".join(wanted)
    if _INSTALLED.exists() and _INSTALLED.read_text() == text:
        return
    shutil.rmtree(_PLACE, ignore_errors=True)
    venv.create(_PLACE, with_pip=True)
    pip = [str(_PYTHON), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    # PySpark is published as source only.
    subprocess.run([*pip, "--only-binary", ":all:", "--no-binary", "pyspark", *wanted], check=True)
    _INSTALLED.write_text(text)


def main() -> int:
    """Install and run; returns the exit status."""
    wanted = _wanted()
    _install(wanted)
    print(*(each for each in wanted if "==" in each), flush=True)
    pytest = [str(_PYTHON), "-m", "pytest", "-q"]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    runs = (
        [*pytest, "-n", "auto", "-m", "not process and not slow and not long", *_WITHOUT_PROCESSES],
        [*pytest, "-m", "not long", *_WITH_PROCESSES],
    )
    return max(subprocess.run(run, cwd=_ROOT, env=environment, check=False).returncode for run in runs)


if __name__ == "__main__":
    sys.exit(main())
