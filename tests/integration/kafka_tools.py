"""Apache Kafka's JVMs: brokers, and its own tools, with which Kafka itself verifies pixy's files.

The jars are fetched once, by Maven, into `.cache/kafka-libs` of the repository, those of single
tests into directories beside it. They are fetched into a sibling directory, under a lock, and moved
when complete: a killed test leaves no incomplete directory, and concurrent test processes do not
conflict. A changed pom.xml fetches them again.

Half of the start of a JVM goes to loading and verifying classes. The first broker dumps them to an
archive beside the jars (class data sharing, JEP 350), which later JVMs map. Without one, or if Java
rejects it because of another version, classes are loaded as usual.
"""

import fcntl
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import require

_POMS = Path(__file__).parent / "kafka_tools"
_CACHE = Path(__file__).parents[2] / ".cache"
QUICK_START = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options of a JVM that starts quickly, and is slow in the long run."""
_FETCH_SECONDS_MAX = 600
_TOOL_SECONDS_MAX = 120


@dataclass(frozen=True)
class DumpedBatch:
    """One batch as read by Kafka. `is_valid`: Kafka accepted its checksum."""

    base_offset: int
    last_offset: int
    count: int
    leader_epoch: int
    is_control: bool
    position: int
    size: int
    codec: str
    crc: int
    is_valid: bool


@dataclass(frozen=True)
class DumpedRecord:
    """One record as read by Kafka; a null key or value is None. Control records have neither."""

    batch: DumpedBatch
    offset: int
    timestamp_ms: int
    header_names: tuple[str, ...]
    key: str | None
    value: str | None


def kafka_libs() -> Path:
    """The directory of the jars of Kafka's brokers and tools."""
    return fetched_jars("kafka-libs", "pom.xml")


def kafka_apps() -> Path:
    """The directory of what Connect and Streams need beside `kafka_libs`."""
    return fetched_jars("kafka-apps", "apps.xml")


def fetched_jars(name: str, pom: str) -> Path:
    """A directory of jars, which are fetched if missing. Skips the test without Java or Maven.

    Args:
        name: of the directory.
        pom: file that names the jars.
    """
    require("java", "apt-get install openjdk-17-jre-headless")
    place, wanted = _CACHE / name, _POMS / pom
    with _lock():
        present = place / pom
        if not present.exists() or present.read_bytes() != wanted.read_bytes():
            _fetch(require("mvn", "apt-get install maven"), wanted, place)
    return place


def class_archive() -> Path:
    """The archive of the classes of a broker, if there is one yet."""
    return kafka_libs() / "classes.jsa"


def kafka_java(
    options: Sequence[str] = QUICK_START, new_archive: Path | None = None, more: Sequence[Path] = ()
) -> list[str]:
    """The command of a JVM with Kafka's classes, without the class to run.

    Args:
        options: of the JVM.
        new_archive: file to which it dumps its classes in the end.
        more: further directories of jars.
    """
    java = require("java", "apt-get install openjdk-17-jre-headless")
    share = ("ArchiveClassesAtExit", new_archive) if new_archive else ("SharedArchiveFile", class_archive())
    return [
        java,
        *options,
        "-XX:{}={}".format(*share),
        "-Xlog:disable",  # what it does not archive, or why it rejects an archive
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-cp",
        ":".join(f"{each}/*" for each in (kafka_libs(), *more)),
    ]


@contextmanager
def _lock() -> Iterator[None]:
    _CACHE.mkdir(exist_ok=True)
    with (_CACHE / "kafka-libs.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(mvn: str, pom: Path, place: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=f"{place.name}-", dir=_CACHE) as folder:
        fetched = Path(folder) / "libs"
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={fetched}"]
        _run([mvn, "-q", "-B", "-f", str(pom), *goal], _FETCH_SECONDS_MAX)
        shutil.copy(pom, fetched)
        shutil.rmtree(place, ignore_errors=True)
        fetched.rename(place)


def run_tool(main_class: str, *arguments: str) -> str:
    """Run one of Kafka's tools; returns its output. The test fails with the output if the tool
    fails.
    """
    return _run([*kafka_java(), main_class, *arguments], _TOOL_SECONDS_MAX)


def _run(command: list[str], timeout: float) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def dump_log_segment_text(path: Path) -> str:
    """Output of `kafka-dump-log` for a segment file, with all records."""
    return run_tool(
        "org.apache.kafka.tools.DumpLogSegments", "--files", str(path), "--print-data-log", "--deep-iteration"
    )


def dump_log_segments(path: Path) -> list[DumpedRecord]:
    """The records that Kafka reads from a segment file. Keys and values must be text without line
    breaks.
    """
    return parse_dump(dump_log_segment_text(path))


_BATCH = re.compile(
    r"baseOffset: (?P<base_offset>\d+) lastOffset: (?P<last_offset>\d+) count: (?P<count>\d+) .*"
    r"partitionLeaderEpoch: (?P<leader_epoch>-?\d+) .*isControl: (?P<is_control>\w+) .*"
    r"position: (?P<position>\d+) .*size: (?P<size>\d+) .*compresscodec: (?P<codec>\w+) "
    r"crc: (?P<crc>\d+) isvalid: (?P<is_valid>\w+)"
)
_RECORD = re.compile(
    r"\| offset: (?P<offset>\d+) \w+: (?P<timestamp_ms>-?\d+) keySize: (?P<key_size>-?\d+) "
    r"valueSize: (?P<value_size>-?\d+) sequence: -?\d+ headerKeys: \[(?P<header_names>[^]]*)\](?P<rest>.*)"
)


def parse_dump(text: str) -> list[DumpedRecord]:
    """Parse the records in the output of `kafka-dump-log`; fails on malformed record lines."""
    records: list[DumpedRecord] = []
    batch: DumpedBatch | None = None
    for line in text.split("\n"):
        if found := _BATCH.fullmatch(line):
            batch = _batch(found.groupdict())
        elif found := _RECORD.fullmatch(line):
            assert batch is not None, f"a record before the first batch: {line}"
            records.append(_record(batch, found.groupdict()))
        else:
            assert not line.startswith(("baseOffset:", "|")), f"a line of unknown form: {line}"
    return records


def _batch(fields: dict[str, str]) -> DumpedBatch:
    names = ("base_offset", "last_offset", "count", "leader_epoch", "position", "size", "crc")
    return DumpedBatch(
        **{name: int(fields[name]) for name in names},
        codec=fields["codec"],
        is_control=fields["is_control"] == "true",
        is_valid=fields["is_valid"] == "true",
    )


def _record(batch: DumpedBatch, fields: dict[str, str]) -> DumpedRecord:
    key = value = None
    if not batch.is_control:
        rest = fields["rest"].encode()
        key, rest = _take(rest, b" key: ", int(fields["key_size"]))
        value, rest = _take(rest, b" payload: ", int(fields["value_size"]))
        assert not rest, f"{rest!r} behind the record at offset {fields['offset']}"
    names = tuple(fields["header_names"].split(",")) if fields["header_names"] else ()
    return DumpedRecord(batch, int(fields["offset"]), int(fields["timestamp_ms"]), names, key, value)


def _take(rest: bytes, label: bytes, size: int) -> tuple[str | None, bytes]:
    """The text of `size` bytes after `label`, and the rest; None if the size is -1 and there is no
    label.
    """
    if size < 0:
        return None, rest
    assert rest.startswith(label), f"expected {label!r}, found {rest[:40]!r}"
    end = len(label) + size
    return rest[len(label) : end].decode(), rest[end:]
