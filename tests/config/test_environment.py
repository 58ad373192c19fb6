from pathlib import Path

import pytest

from pixy.config import Config, load_config
from pixy.errors import ConfigError


def problem_of(environment: dict[str, str], path: Path | None = None) -> str:
    with pytest.raises(ConfigError) as raised:
        load_config(path, environment, {})
    return str(raised.value)


@pytest.mark.parametrize(
    "name",
    [
        "PIXY_PROXIES__default__PRODUCER__COMPRESSION",
        "PIXY_PROXIES__DEFAULT__PRODUCER__COMPRESSION",
        "pixy_proxies__default__producer__compression",
    ],
)
def test_a_variable_sets_an_option_whatever_its_case(name: str) -> None:
    assert load_config(None, {name: "zstd"}, {}).proxies["default"].producer.compression == "zstd"


def test_every_type_of_value_can_come_from_a_variable() -> None:
    environment = {
        "PIXY_SHUTDOWN_TIMEOUT": "1m",
        "PIXY_UNIX_ADDR": "",
        "PIXY_GRPC__MAX_MESSAGE_BYTES": "8MiB",
        "PIXY_PROXIES__default__AUTO_CREATE_TOPICS": "false",
        "PIXY_PROXIES__default__CONSUMER__MAX_RETRIES": "3",
        "PIXY_LOGGING": "[{name: json, severity: err}]",
        "HOME": "/root",
    }
    config = load_config(None, environment, {})
    assert config.shutdown_timeout == 60.0
    assert config.grpc.max_message_bytes == 8 << 20
    assert config.proxies["default"].auto_create_topics is False
    assert config.proxies["default"].consumer.max_retries == 3
    assert [(entry.name, entry.severity) for entry in config.logging] == [("json", "error")]


def test_an_unknown_variable_is_an_error_with_a_suggestion() -> None:
    assert (
        problem_of({"PIXY_GRPC_ADR": "x"})
        == "PIXY_GRPC_ADR: grpc_adr is not an option; did you mean grpc_addr?"
    )


def test_a_bad_value_is_reported_with_the_variable() -> None:
    assert problem_of({"PIXY_SHUTDOWN_TIMEOUT": "5"}).startswith(
        "PIXY_SHUTDOWN_TIMEOUT: shutdown_timeout is 5; a duration"
    )


def test_the_environment_adds_no_cluster() -> None:
    name = "PIXY_PROXIES__defalt__KIND"
    assert problem_of({name: "embedded"}) == f'{name}: there is no cluster "defalt"; did you mean default?'


def test_a_cluster_whose_name_has_two_underscores_is_found(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("proxies:\n  a:\n  a__b:\n  A:\n")
    environment = {"PIXY_PROXIES__a__b__CLIENT_ID": "x", "PIXY_PROXIES__A__CLIENT_ID": "y"}
    proxies = load_config(path, environment, {}).proxies
    assert [proxies[name].client_id for name in ("a", "a__b", "A")] == ["", "x", "y"]


@pytest.mark.parametrize(
    "name",
    [
        "PIXY_PORT",
        "PIXY_SERVICE_HOST",
        "PIXY_SERVICE_PORT_GRPC",
        "PIXY_PORT_19091_TCP_ADDR",
        "PIXY_DB_SERVICE_HOST",
    ],
)
def test_service_variables_of_kubernetes_are_ignored(name: str) -> None:
    assert load_config(None, {name: "10.0.0.1"}, {}) == Config()


def test_variables_of_the_commands_are_ignored() -> None:
    assert load_config(None, {"PIXY_ADDRESS": "localhost:1", "PIXY_CONFIG": ""}, {}) == Config()


PASSWORD = "PIXY_PROXIES__default__NET__SASL__PASSWORD"


def test_a_secret_may_be_in_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("hunter2\n")
    config = load_config(None, {f"{PASSWORD}_FILE": str(secret)}, {})
    assert config.proxies["default"].net.sasl.password == "hunter2"


def test_a_secret_from_a_file_that_is_missing_is_an_error() -> None:
    assert problem_of({f"{PASSWORD}_FILE": "/no/such"}) == (
        f"{PASSWORD}_FILE: names a file that cannot be read: No such file or directory"
    )


def test_a_file_of_a_secret_that_never_ends_is_an_error() -> None:
    assert "has more than 65536 bytes" in problem_of({f"{PASSWORD}_FILE": "/dev/zero"})


def test_a_secret_under_the_name_of_its_file_is_not_shown() -> None:
    assert "hunter2" not in problem_of({f"{PASSWORD}_FILE": "hunter2"})


def test_a_secret_given_twice_is_an_error(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("x")
    both = {PASSWORD: "y", f"{PASSWORD}_FILE": str(secret)}
    assert problem_of(both) == f"{PASSWORD}_FILE: sets the same option as {PASSWORD}"


def test_only_secrets_can_be_read_from_files() -> None:
    assert "data_dir_file is not an option" in problem_of({"PIXY_DATA_DIR_FILE": "/x"})
