from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pixy.config import Config, LoggingConfig, load_config
from pixy.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("config.yaml")


def problems_of(path: Path | None, environment: Mapping[str, str] | None = None, **flags: Any) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        load_config(path, environment or {}, flags)
    return str(raised.value).splitlines()


def test_without_any_source_the_defaults_apply() -> None:
    config = load_config(None, {}, {})
    assert config == Config()
    assert config.warnings == ()
    assert config.effective_default_cluster == "default"


@pytest.mark.parametrize("content", ["", "# nothing\n", "proxies:\n", "~\n"])
def test_an_empty_file_changes_nothing(file: Path, content: str) -> None:
    file.write_text(content)
    assert load_config(file, {}, {}) == Config()


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(file: Path) -> None:
    file.write_text("grpc_addr: 127.0.0.1:1\ndata_dir: from-file\nshutdown_timeout: 1s\n")
    environment = {"PIXY_GRPC_ADDR": "127.0.0.1:2", "PIXY_DATA_DIR": "from-environment"}
    config = load_config(file, environment, {"grpc_addr": "127.0.0.1:3", "unix_addr": None})
    assert config.grpc_addr == "127.0.0.1:3"
    assert config.data_dir == "from-environment"
    assert config.shutdown_timeout == 1.0
    assert config.unix_addr == ""


def test_a_variable_can_name_the_file(file: Path) -> None:
    file.write_text("data_dir: elsewhere\n")
    assert load_config(None, {"PIXY_CONFIG": "config.yaml"}, {}).data_dir == "elsewhere"


def test_a_missing_file_is_an_error_that_names_it(file: Path) -> None:
    assert problems_of(file) == ["config.yaml: cannot be read: No such file or directory"]


@pytest.mark.parametrize(("written", "shown"), [("\\0", r"\x00"), ("\\ud800", r"\ud800")])
@pytest.mark.parametrize(
    ("path", "yaml"),
    [
        ("data_dir", 'data_dir: "ab{}"'),
        ("peers", 'peers: ["a:1", "ab{}"]'),
        ("cluster.second_secret_file", 'cluster: {{second_secret_file: "ab{}"}}'),
        (
            "proxies.a.net.sasl.password",
            'proxies: {{a: {{kind: embedded, net: {{sasl: {{password: "ab{}"}}}}}}}}',
        ),
    ],
)
def test_a_text_that_can_be_no_path_is_refused_and_not_shown(
    file: Path, path: str, yaml: str, written: str, shown: str
) -> None:
    file.write_text(yaml.format(written))
    assert problems_of(file) == [
        f"config.yaml:1: {path} has the character {shown} at position 2; expected a text in UTF-8 without NUL"
    ]


def test_a_file_that_is_not_a_mapping_is_an_error(file: Path) -> None:
    file.write_text("\n- a\n")
    assert problems_of(file) == [
        "config.yaml:2: the file must consist of options, such as grpc_addr: 127.0.0.1:19091"
    ]


def test_all_problems_are_reported_together_in_the_order_of_their_lines(file: Path) -> None:
    file.write_text("default_cluster: x\ngrpc_adr: a\nproxies:\n  a:\n    consumer:\n      ack_timeout: 5\n")
    assert problems_of(file, {"PIXY_DATADIR": "1"}, grpc_addr="x") == [
        'config.yaml:1: default_cluster is "x", which is not under proxies; allowed: a',
        "config.yaml:2: grpc_adr is not an option; did you mean grpc_addr?",
        "config.yaml:6: proxies.a.consumer.ack_timeout is 5; a duration needs a unit: 5s, 5ms or 5m",
        "PIXY_DATADIR: datadir is not an option; did you mean data_dir?",
        '--grpc-addr: grpc_addr is "x"; expected host:port, such as 127.0.0.1:19091',
    ]


def test_a_flag_of_a_proxy_sets_the_default_cluster(file: Path) -> None:
    file.write_text("default_cluster: b\nproxies:\n  a:\n  b:\n")
    config = load_config(file, {}, {"proxy.default_partitions": 7, "proxy.auto_create_topics": False})
    assert config.proxies["a"].default_partitions == 4
    assert config.proxies["b"].default_partitions == 7
    assert config.proxies["b"].auto_create_topics is False


def test_the_default_cluster_may_itself_be_set_by_a_flag(file: Path) -> None:
    file.write_text("proxies:\n  a:\n  b:\n")
    config = load_config(file, {}, {"proxy.default_partitions": 7, "default_cluster": "b"})
    assert [proxy.default_partitions for proxy in config.proxies.values()] == [4, 7]
    assert config.effective_default_cluster == "b"


def test_a_mistake_in_a_flag_is_reported_with_the_flag() -> None:
    flags = {"proxy.default_partitions": "x", "tls.key_path": "k"}
    with pytest.raises(ConfigError) as raised:
        load_config(None, {}, flags)
    assert str(raised.value).splitlines() == [
        '--default-partitions: proxies.default.default_partitions is "x"; expected a whole number',
        "--tls-key-path: tls.certificate_path and tls.key_path must be set together",
    ]


def test_the_logging_flags_change_format_and_severity(file: Path) -> None:
    file.write_text("logging:\n  - {name: console, severity: warning}\n  - {name: json, severity: error}\n")
    assert load_config(file, {}, {"log_format": "json"}).logging == (LoggingConfig("json", "warning"),)
    both = load_config(file, {}, {"log_level": "debug"}).logging
    assert both == (LoggingConfig("console", "debug"), LoggingConfig("json", "debug"))
    assert problems_of(None, {}, log_level="loud") == [
        '--log-level: is "loud"; allowed: debug, info, warning, error'
    ]


def test_kafka_pixys_logging_flag_is_a_list_in_json() -> None:
    config = load_config(None, {}, {"logging": '[{"name": "json", "severity": "warn"}]'})
    assert config.logging == (LoggingConfig("json", "warning"),)


def test_the_clusters_keep_the_order_of_the_file(file: Path) -> None:
    file.write_text("proxies:\n  zebra:\n  ant:\n")
    config = load_config(file, {}, {})
    assert list(config.proxies) == ["zebra", "ant"]
    assert config.effective_default_cluster == "zebra"


def test_an_option_of_the_file_that_a_variable_changes_is_told(tmp_path: Path) -> None:
    file = tmp_path / "pixy.yaml"
    file.write_text(
        "data_dir: /srv/pixy\ngrpc_addr: 127.0.0.1:1\nproxies: {p: {producer: {max_headers: 7}}}\n"
    )
    variables = {
        "PIXY_DATA_DIR": "/var/lib/pixy",
        "PIXY_GRPC_ADDR": "127.0.0.1:1",
        "PIXY_PROXIES__p__PRODUCER__MAX_HEADERS": "8",
    }
    warnings = load_config(file, variables, {}).warnings
    assert [each for each in warnings if "has no effect: the environment" in each] == [
        f"{file}:1: data_dir has no effect: the environment variable PIXY_DATA_DIR sets it to another value",
        f"{file}:3: proxies.p.producer.max_headers has no effect: the environment variable "
        "PIXY_PROXIES__p__PRODUCER__MAX_HEADERS sets it to another value",
    ]
