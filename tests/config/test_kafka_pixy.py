import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pixy.config import KAFKA_PIXY_FLAGS, Config, load_config
from pixy.errors import ConfigError

EVERY_OPTION = """\
grpc_addr: 127.0.0.1:19091
tcp_addr: 127.0.0.1:19092
unix_addr: /run/kafka-pixy.sock
default_cluster: main
proxies:
  main:
    {kind}
    client_id: worker
    kafka:
      seed_peers:
        - localhost:9092
      version: 0.10.2.1
      tls: false
      ca_certificate_file: ca.pem
      client_certificate_file: cert.pem
      client_key_file: key.pem
      insecure: false
    zoo_keeper:
      seed_peers: [localhost:2181]
      chroot: /kafka
      session_timeout: 15s
    net:
      dial_timeout: 30s
      read_timeout: 30s
      write_timeout: 30s
      sasl:
        enable: false
        handshake: true
        user: me
        password: secret
    producer:
      channel_buffer_size: 4096
      max_message_bytes: 1000000
      compression: snappy
      flush_bytes: 1048576
      flush_frequency: 500ms
      retry_backoff: 10s
      retry_max: 6
      required_acks: wait_for_all
      shutdown_timeout: 30s
      partitioner: hash
      timeout: 10s
    consumer:
      disabled: false
      ack_timeout: 5m
      channel_buffer_size: 64
      fetch_max_bytes: 1048576
      fetch_max_wait: 250ms
      long_polling_timeout: 3s
      max_pending_messages: 300
      max_retries: -1
      offsets_commit_interval: 500ms
      rebalance_delay: 250ms
      retry_backoff: 500ms
      subscription_timeout: 15s
  other:
    kafka:
    zoo_keeper:
      seed_peers: [localhost:2181]
tls:
  certificate_path: cert.pem
  key_path: key.pem
logging:
  - name: console
    severity: info
  - name: syslog
    severity: warn
    hostname: logs
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("config.yaml")


def load(file: Path, text: str) -> Config:
    file.touch(mode=0o600)
    file.write_text(text)
    return load_config(file, {}, {})


def test_a_file_with_brokers_configures_a_kafka_cluster_and_never_an_empty_log(file: Path) -> None:
    config = load(file, EVERY_OPTION.format(kind=""))
    assert config.proxies["main"].kind == "kafka"
    assert config.proxies["main"].kafka.seed_peers == ("localhost:9092",)
    assert config.warnings[2:] == (
        "proxies.main is kind: kafka, where producer.flush_frequency, kafka.version, net.write_timeout, "
        "net.sasl.handshake have no effect",
    )


def test_required_acks_no_response_gives_a_warning(file: Path) -> None:
    config = load(file, "proxies:\n  a:\n    kafka:\n    producer:\n      required_acks: no_response\n")
    assert config.warnings == (
        "proxies.a.producer.required_acks: no_response is treated as wait_for_all: pixy answers with the offset of a message. "
        "Produce with async_mode does not wait",
    )


def test_every_option_of_kafka_pixy_is_known_and_those_without_effect_are_named(file: Path) -> None:
    config = load(file, EVERY_OPTION.format(kind="kind: embedded"))
    proxy = config.proxies["main"]
    assert proxy.producer.compression == "snappy"
    assert proxy.producer.flush_frequency == 0.5
    assert proxy.consumer.channel_buffer_size == 64
    assert config.warnings == (
        "config.yaml:66: logging to syslog is not available and is ignored",
        "config.yaml:18: zoo_keeper is ignored: pixy needs no ZooKeeper",
        "proxies.main is kind: embedded, where producer.required_acks, "
        "consumer.fetch_max_wait, consumer.retry_backoff, consumer.rebalance_delay, kafka.seed_peers, "
        "kafka.version, kafka.tls, kafka.ca_certificate_file, kafka.client_certificate_file, kafka.client_key_file, "
        "kafka.insecure, net.dial_timeout, net.read_timeout, net.write_timeout, net.sasl.enable, net.sasl.handshake, "
        "net.sasl.user, net.sasl.password have no effect",
    )


@pytest.mark.parametrize(
    "text", ["proxies:\n  a:\n    kafka:\n", "proxies:\n  a:\n    kind:\n    kafka: {}\n"]
)
def test_an_empty_kafka_section_configures_a_kafka_cluster_too(file: Path, text: str) -> None:
    assert load(file, text).proxies["a"].kind == "kafka"


def documented() -> set[str]:
    """Options with a row in the table of the migration guide.

    A name without a section belongs to the section of the name before it.
    """
    text = (Path(__file__).parents[2] / "docs" / "migrating-from-kafka-pixy.md").read_text()
    table = text.partition("| option | on `kind: kafka` |\n")[2].partition("\n\n")[0]
    found = set()
    for row in table.splitlines():
        section = ""
        for name in re.findall(r"`([^`]+)`", row.split(" | ", maxsplit=1)[0]):
            section = name.rpartition(".")[0] or section
            found.add(name if "." in name or not section else f"{section}.{name}")
    return found


def options(tree: Any, path: str = "") -> Iterator[str]:
    """The paths of all options of a file."""
    for name, node in tree.items():
        if name == "proxies":
            yield from options(node["main"])
        elif isinstance(node, dict):
            yield from options(node, f"{path}{name}.")
        else:
            yield f"{path}{name}"


def test_every_option_of_kafka_pixy_has_a_row_in_the_documentation() -> None:
    every = set(options(yaml.safe_load(EVERY_OPTION.format(kind=""))))
    assert {path for path in every if not path.startswith("zoo_keeper.")} <= documented()
    assert "zoo_keeper.*" in documented()


def test_embedded_and_kafka_clusters_are_configured_side_by_side(file: Path) -> None:
    config = load(file, "proxies:\n  a:\n  b:\n    kind: kafka\n  c:\n    kafka:\n")
    assert [proxy.kind for proxy in config.proxies.values()] == ["embedded", "kafka", "kafka"]


@pytest.mark.parametrize("flag", [flag for flag in KAFKA_PIXY_FLAGS if flag != "zookeeperPeers"])
def test_a_broker_flag_selects_a_kafka_cluster_whatever_the_file_says(file: Path, flag: str) -> None:
    file.write_text("proxies:\n  a:\n    kind: embedded\n")
    value = True if "tls" in flag.lower() else "x:1"
    if flag == "clientCertKeyFile":
        file.write_text("proxies:\n  a:\n    kind: embedded\n    kafka:\n      client_certificate_file: x\n")
    config = load_config(file, {}, {KAFKA_PIXY_FLAGS[flag]: value})
    assert config.proxies["a"].kind == "kafka"


def test_the_zookeeper_flag_is_ignored_with_a_warning() -> None:
    config = load_config(None, {}, {KAFKA_PIXY_FLAGS["zookeeperPeers"]: "localhost:2181/kafka"})
    assert config.warnings == ("--zookeeperPeers: zoo_keeper is ignored: pixy needs no ZooKeeper",)


REASON = (
    "names no brokers: is it a Kafka cluster? Then set kafka.seed_peers (kafka-pixy's default is localhost:9092); "
    "for pixy's own log, which would be empty, set kind: embedded"
)


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ("zoo_keeper", "zoo_keeper:\n      seed_peers: [localhost:2181]\n"),
        ("net", "net:\n      dial_timeout: 30s\n"),
        ("net", "kind:\n    net:\n"),
    ],
)
def test_a_cluster_of_kafka_pixy_without_brokers_is_never_served_from_an_empty_log(
    file: Path, section: str, text: str
) -> None:
    with pytest.raises(ConfigError) as error:
        load(file, f"proxies:\n  a:\n    {text}")
    assert str(error.value).partition(": ")[2] == f"proxies.a has {section} and {REASON}"
    assert load(file, f"proxies:\n  a:\n    kafka:\n    {text}").proxies["a"].kind == "kafka"


def test_an_entry_of_kind_embedded_may_have_sections_of_kafka_pixy(file: Path) -> None:
    text = "proxies:\n  a:\n    kind: embedded\n    zoo_keeper:\n      chroot: /x\n"
    assert load(file, text).proxies["a"].kind == "embedded"


def test_brokers_from_a_flag_are_enough_for_a_file_that_names_none(file: Path) -> None:
    file.write_text("proxies:\n  a:\n    zoo_keeper:\n")
    assert load_config(file, {}, {KAFKA_PIXY_FLAGS["kafkaPeers"]: "x:1"}).proxies["a"].kind == "kafka"


@pytest.mark.parametrize(
    ("word", "severity"),
    [
        ("warn", "warning"),
        ("WARNING", "warning"),
        ("err", "error"),
        ("fatal", "error"),
        ("panic", "error"),
        ("trace", "debug"),
    ],
)
def test_kafka_pixys_spellings_of_severities_are_understood(file: Path, word: str, severity: str) -> None:
    config = load(file, f"logging:\n  - name: console\n    severity: {word}\n")
    assert config.logging[0].severity == severity


@pytest.mark.parametrize("sink", ["syslog", "udplog", "kafkahook"])
def test_with_unsupported_sinks_only_it_logs_to_the_console(file: Path, sink: str) -> None:
    config = load(file, f"logging:\n  - name: {sink}\n    server: x\n")
    assert config.logging == Config().logging
    assert config.warnings == (f"config.yaml:2: logging to {sink} is not available and is ignored",)


def test_an_unknown_sink_is_an_error(file: Path) -> None:
    with pytest.raises(ConfigError, match="allowed: console, json"):
        load(file, "logging:\n  - name: sislog\n")


def test_a_single_option_without_effect_is_named_in_the_singular(file: Path) -> None:
    config = load(file, "proxies:\n  a:\n    producer:\n      required_acks: wait_for_all\n")
    assert config.warnings == ("proxies.a is kind: embedded, where producer.required_acks has no effect",)
