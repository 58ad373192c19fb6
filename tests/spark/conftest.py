"""A real Spark session shared by the test modules, and a real daemon for each of them."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from pixy.spark import use_java
from tests.integration.daemon import Daemon, proxy_config
from tests.kafka.cluster import KafkaCluster
from tests.spark.jvm import ARCHIVE, jvm_options
from tests.spark.log import Log

KEEP_ALL = proxy_config(storage={"retention": "0s", "reserve_bytes": 0, "retention_check": "1s"})
"""Configuration of the daemons: records may be of any age."""

over_both = pytest.mark.parametrize("kafka_addresses", ["embedded", "kafka"], indirect=True, scope="module")
"""Runs the tests of a module on a daemon with the embedded log, and on one in front of a real
Kafka.
"""

ROOT = Path(__file__).parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore PySpark's own warnings: that pandas is too new, and sockets left to the garbage
    collector.
    """
    for item in items:
        if ROOT / "tests" / "spark" in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


def set_environment() -> None:
    """Make JVMs started from now on use this Python interpreter and this source tree."""
    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(ROOT)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def start_session(master: str = "local[2]", **config: str) -> SparkSession:
    """A session whose Python workers use this interpreter and tree; the running one, if any."""
    set_environment()
    builder = SparkSession.builder.master(master).appName("pixy-tests")
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": jvm_options(),
        "spark.sql.session.timeZone": "UTC",
        **config,
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def stop_session() -> None:
    """Stop the session, so that the next one may have another master. The JVM stays."""
    running = SparkSession.getActiveSession()
    if running is not None:
        running.stop()


@pytest.fixture(scope="session", autouse=True)
def _classes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Path of the class archive that the JVMs of this run share."""
    archive = tmp_path_factory.mktemp("classes") / "spark.jsa"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ARCHIVE, str(archive))
        yield
    archive.unlink(missing_ok=True)


@pytest.fixture(scope="session", autouse=True)
def _spark_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The installed Spark without the zip of its Python part, which each of its Python processes
    would compile anew.

    They import the installed package instead, which is the same and already compiled: compiling
    takes three quarters of their start.
    """
    home, installed = tmp_path_factory.mktemp("spark"), Path(pyspark.__file__).parent
    for name in ("bin", "jars"):
        (home / name).symlink_to(installed / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(home))
        yield


@pytest.fixture(scope="session")
def _session() -> Iterator[None]:
    yield
    stop_session()


@pytest.fixture(scope="module")
def spark(_session: None) -> SparkSession:
    """A session that runs each task once. Modules share it, because another one would start new
    Python workers.
    """
    return start_session()


@pytest.fixture(scope="module")
def kafka_addresses(request: pytest.FixtureRequest) -> list[str]:
    """Brokers of the Kafka cluster behind a module's daemon; empty: it has the embedded log."""
    if getattr(request, "param", "embedded") == "embedded":
        return []
    cluster: KafkaCluster = request.getfixturevalue("kafka")
    return cluster.addresses


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, kafka_addresses: list[str]) -> Iterator[Daemon]:
    """The daemon of a module."""
    over_kafka = proxy_config(kafka={"seed_peers": kafka_addresses})
    with Daemon(tmp_path_factory.mktemp("daemon"), over_kafka if kafka_addresses else KEEP_ALL) as running:
        yield running


@pytest.fixture
def log(daemon: Daemon) -> Log:
    """The daemon's log, for access without Spark."""
    return Log(daemon)
