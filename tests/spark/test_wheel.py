"""The installed wheel works as the README says, in an environment with the dependencies and without
this source tree.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from pixy import __version__
from pixy.spark import use_java
from tests.integration.daemon import Daemon
from tests.integration.pages import blocks_of
from tests.spark.conftest import ROOT
from tests.spark.jvm import jvm_options
from tests.spark.log import Log

pytestmark = [pytest.mark.process, pytest.mark.long]

SECONDS_MAX = 900.0
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
SOURCES = ["pixy", "pyspark_pixy.py", "pyproject.toml", "README.md", "LICENSE"]
PACKAGED = (".py", ".pyi", ".proto", "py.typed", "schemas.txt")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources: setuptools would leave build directories in the
    tree and use stale files in them.
    """
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    tree.mkdir()
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tree)
    run(
        [*PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", ".", "./tree"],
        folder,
    )
    (built,) = folder.glob("*.whl")
    assert built.name == f"pixyd-{__version__}-py3-none-any.whl"
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of an environment with the wheel and all packages of this one except pixy."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    pip = [*PIP, "--python", str(folder / "bin" / "python"), "install", "--no-deps", "--no-index"]
    run([*pip, str(wheel)], folder)
    # A line of a .pth file adds a directory, but not the directories of .pth files in it, such as
    # editable installs.
    own = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    others = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (Path(own) / "dependencies.pth").write_text("".join(f"{each}\n" for each in sorted(others)))
    return folder


def run(command: list[str], folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a command in a directory; returns its output."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME"):
        variables.pop(name, None)
    output, errors = folder / "output", folder / "errors"
    # Spark's workers would keep pipes open
    with output.open("wb") as stdout, errors.open("wb") as stderr:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**variables, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            timeout=SECONDS_MAX,
            check=False,
        )
    assert done.returncode == 0, f"{command} ended with {done.returncode}: {errors.read_text()[-5000:]}"
    return output.read_text()


def example(page: str, log: Log, folder: Path) -> str:
    """The first Spark example of a page, with another address and place for checkpoints."""
    code = next(block.text for block in blocks_of(page) if "SparkSession" in block.text)
    address = log.options["pixy.address"]
    code = code.replace('.option("pixy.address", "127.0.0.1:19091")', "").replace("/tmp/c", f"{folder}/c")
    changed, count = re.subn(r'format\("pixy"\)', rf'\g<0>.option("pixy.address", "{address}")', code)
    assert count >= 2, code
    return changed


def test_the_wheel_has_every_file_of_the_packages_and_nothing_else(wheel: Path) -> None:
    tree = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "pixy").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert [name for name in names if not name.endswith(PACKAGED)] == []
    assert names == {*tree, "pyspark_pixy.py"}


def test_the_command_of_the_wheel_runs(environment: Path, tmp_path: Path) -> None:
    assert run([str(environment / "bin" / "pixy"), "--version"], tmp_path).split()[-1] == __version__


@pytest.mark.parametrize("page", ["README.md", "docs/spark.md"])
def test_spark_finds_the_wheel_and_the_example_of_a_page_runs(
    page: str, environment: Path, daemon: Daemon, log: Log, tmp_path: Path
) -> None:
    """Nobody has activated the environment: the `python3` of the PATH is one without pixy."""
    use_java()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(Path(sys.executable).resolve())
    found = "import pixy\nimport pyspark_pixy\nprint(pixy.__file__, pyspark_pixy.__file__)\n"
    end = ""
    if page == "docs/spark.md":
        log.create_named("events", 1)
        log.append("events", 0, [b"%d" % number for number in range(1000)])
        end = "query.processAllAvailable()\nquery.stop()\n"
    job = tmp_path / "job.py"
    job.write_text(found + example(page, log, tmp_path) + end)
    printed = run(
        [str(environment / "bin" / "python"), str(job)],
        tmp_path,
        {
            "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYSPARK_SUBMIT_ARGS": f"--conf spark.ui.enabled=false --driver-java-options '{jvm_options()}' pyspark-shell",
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
    )
    first, *results = printed.splitlines()
    installed = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    assert first.split() == [str(installed / "pixy" / "__init__.py"), str(installed / "pyspark_pixy.py")]
    if page == "README.md":
        assert re.fullmatch(r"1000 Row\(value='\d+'\)", results[0])
        assert sorted(int(value or b"") for value in log.values("numbers")) == list(range(1000))
    else:
        assert sorted({int(value or b"") for value in log.values("copies")}) == list(range(1000))
