"""Spark's own Kafka connector beside pixy: one real broker, and an interpreter with the connector's
PySpark.

The connector is a set of jars for one version of Spark, which is older than the one that pixy
needs. So it has a virtual environment of its own in `.cache/spark-kafka` of the repository, created
once, under a lock, and marked complete at the end. The jars are copied one by one, because Spark's
poms name repositories of their own. The broker is that of the tests, with a sufficient heap.
"""

import asyncio
import fcntl
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tests.kafka.cluster import KafkaCluster

_CACHE = Path(__file__).parents[2] / ".cache"
_PYTHON_PACKAGES = ("pyspark==4.0.0",)
_JARS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
    "org.scala-lang.modules:scala-parallel-collections_2.13:1.2.0",
)
_FETCH_SECONDS_MAX = 580
# Kafka's defaults: the tests have a tenth of them, with which the only broker is presumed dead on a
# busy machine.
PATIENCE = """\
broker.session.timeout.ms=9000
broker.heartbeat.interval.ms=2000
controller.quorum.election.timeout.ms=1000
controller.quorum.fetch.timeout.ms=2000
"""


@dataclass(frozen=True, slots=True)
class Connector:
    """An interpreter with PySpark, and the connector's jars."""

    python: Path
    jars: tuple[Path, ...]


def kafka_connector() -> Connector:
    """The connector; fetched if missing.

    Raises:
        SystemExit: Java or Maven is missing, or something could not be fetched.
    """
    for program, package in (("java", "openjdk-17-jre-headless"), ("mvn", "maven")):
        if shutil.which(program) is None:
            raise SystemExit(f"{program} is missing; get it with: apt-get install {package}")
    folder = _CACHE / "spark-kafka"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = "\n".join((*_PYTHON_PACKAGES, *_JARS))
    with (_CACHE / "spark-kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        complete = folder / "complete"
        if not complete.exists() or complete.read_text() != wanted:
            _fetch(folder)
            complete.write_text(wanted)
    return Connector(folder / "venv" / "bin" / "python", tuple(sorted((folder / "jars").iterdir())))


def _fetch(folder: Path) -> None:
    print(f"fetching Spark's Kafka connector into {folder} ...", file=sys.stderr, flush=True)
    shutil.rmtree(folder)
    folder.mkdir()
    _run([sys.executable, "-m", "venv", str(folder / "venv")])
    _run([str(folder / "venv" / "bin" / "pip"), "install", "--quiet", *_PYTHON_PACKAGES])
    for jar in _JARS:
        _run(
            [
                "mvn",
                "-q",
                "-B",
                "dependency:copy",
                f"-Dartifact={jar}",
                f"-DoutputDirectory={folder / 'jars'}",
            ]
        )


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_SECONDS_MAX, check=False)
    if done.returncode:
        raise SystemExit(f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")


@contextmanager
def kafka_broker(folder: Path, topics: Sequence[str], partitions: int) -> Iterator[tuple[str, int]]:
    """A broker with its data in `folder`, and these topics; yields its address and process id."""
    cluster = KafkaCluster(folder, properties=PATIENCE, java=("-Xmx512m",))
    try:
        cluster.start()
        asyncio.run(_create(cluster.addresses, topics, partitions))
        yield cluster.addresses[0], cluster.broker(1).pid
    finally:
        cluster.kill()


async def _create(addresses: list[str], topics: Sequence[str], partitions: int) -> None:
    """Create the topics before the writes, which would otherwise see errors until leaders are
    known, for minutes on a busy machine.
    """
    admin = AIOKafkaAdminClient(bootstrap_servers=addresses)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, partitions, 1) for topic in topics])
    finally:
        await admin.close()
