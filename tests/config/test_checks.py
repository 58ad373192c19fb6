from pathlib import Path
from typing import Any

import pytest

from pixy.config import load_config
from pixy.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("config.yaml")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("proxies: {}\n", "config.yaml:1: at least one proxy must be configured"),
        (
            "default_cluster: defualt\n",
            'config.yaml:1: default_cluster is "defualt", which is not under proxies; did you mean default?',
        ),
        (
            "grpc_addr: pixy.sock\n",
            'config.yaml:1: grpc_addr is "pixy.sock"; expected host:port, such as 127.0.0.1:19091',
        ),
        (
            'grpc_addr: ""\ntcp_addr: ""\nkafka_addr: ""\n',
            "config.yaml:1: grpc_addr, tcp_addr, kafka_addr and unix_addr must not all be empty",
        ),
        (
            "tcp_addr: pixy.sock\n",
            'config.yaml:1: tcp_addr is "pixy.sock"; expected host:port, such as 127.0.0.1:19091',
        ),
        (
            "tls:\n  certificate_path: a.pem\n",
            "config.yaml:2: tls.certificate_path and tls.key_path must be set together",
        ),
        (
            "proxies:\n  a:\n  ..:\n",
            'config.yaml:3: ".." cannot be the name of a cluster: letters, digits, ".", "_" and "-", at most 100',
        ),
        (
            "proxies:\n  a/b:\n",
            'config.yaml:2: "a/b" cannot be the name of a cluster: letters, digits, ".", "_" and "-", at most 100',
        ),
        (
            "grpc:\n  output_buffer_bytes: 1MB\n",
            "config.yaml:2: grpc.output_buffer_bytes must be >= grpc.max_message_bytes = 4194304, is 1000000",
        ),
        (
            "grpc:\n  buffer_bytes: 8MB\n",
            "config.yaml:2: grpc.buffer_bytes must be >= grpc.output_buffer_bytes = 8388608, is 8000000",
        ),
        (
            "grpc:\n  max_message_bytes: 1MB\n",
            "config.yaml:2: grpc.max_message_bytes must be >= proxies.default.producer.max_message_bytes + 65536 "
            "= 1065536, is 1000000",
        ),
        (
            "proxies:\n  a:\n    producer:\n      max_message_bytes: 4194304\n",
            "config.yaml:4: grpc.max_message_bytes must be >= proxies.a.producer.max_message_bytes + 65536 "
            "= 4259840, is 4194304",
        ),
        (
            "proxies:\n  a:\n    producer:\n      buffer_bytes: 999999\n",
            "config.yaml:4: proxies.a.producer.buffer_bytes must be >= proxies.a.producer.max_message_bytes = 1000000, "
            "is 999999",
        ),
    ],
)
def test_contradicting_options_are_reported_where_one_was_set(file: Path, text: str, problem: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load_config(file, {}, {})
    assert str(raised.value) == problem


PUBLIC = ["0.0.0.0:19091", "[::]:19091", ":19091", "10.1.2.3:1", "pixy.example:1"]
TLS = {"tls.certificate_path": "c.pem", "tls.key_path": "k.pem"}
CLIENT_CERTIFICATES = {**TLS, "tls.client_ca_path": "ca.pem"}


TOLD = {"advertised.kafka": "10.0.0.1:19095"}
"""The address that Kafka's clients are told."""


def problem_of(flags: dict[str, Any], environment: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as raised:
        load_config(None, environment or {}, flags)
    return str(raised.value)


@pytest.mark.parametrize("address", PUBLIC)
@pytest.mark.parametrize("tls", [{}, TLS], ids=["plaintext", "TLS of the server alone"])
@pytest.mark.parametrize(("name", "port"), [("grpc_addr", 19091), ("tcp_addr", 19092), ("kafka_addr", 19095)])
def test_an_address_that_other_machines_reach_is_refused_unless_clients_have_certificates(
    name: str, port: int, address: str, tls: dict[str, str]
) -> None:
    problem = problem_of({name: address, **TOLD, **tls})
    flag = "--" + name.replace("_", "-")
    assert problem.startswith(f"{flag}: {name} {address} can be reached from other machines")
    for way_out in (f"127.0.0.1:{port}", "tls.client_ca_path", "insecure: true"):
        assert way_out in problem
    assert load_config(None, {}, {name: address, **TOLD, **CLIENT_CERTIFICATES}).warnings == ()


@pytest.mark.parametrize("address", PUBLIC)
def test_users_and_tls_let_other_machines_in_to_the_kafka_api_alone(address: str) -> None:
    users = {"sasl.users_file": "users", **TOLD}
    assert load_config(None, {}, {"kafka_addr": address, **users, **TLS}).warnings == ()
    problem = problem_of({"kafka_addr": address, **users})
    assert f"kafka_addr {address} can be reached from other machines" in problem
    assert "passwords" in problem
    assert "tls.certificate_path" in problem
    (warning,) = load_config(None, {}, {"kafka_addr": address, "insecure": True, **users}).warnings
    assert f"at kafka_addr {address} gets passwords" in warning
    assert "can be reached from other machines" in problem_of({"grpc_addr": address, **users, **TLS})


def test_kafkas_clients_are_told_an_address_that_they_can_connect_to() -> None:
    flags = {"kafka_addr": "0.0.0.0:19095", "insecure": True}
    assert "set advertised.kafka to the one that clients are told" in problem_of(flags)
    assert load_config(None, {}, {**flags, **TOLD}).advertised.kafka == "10.0.0.1:19095"
    wrong = problem_of({**flags, "advertised.kafka": "0.0.0.0:19095"})
    assert "advertised.kafka" in wrong
    assert "expected host:port that others can connect to" in wrong


@pytest.mark.parametrize("address", PUBLIC)
@pytest.mark.parametrize("tls", [{}, TLS], ids=["plaintext", "TLS of the server alone"])
@pytest.mark.parametrize("name", ["grpc_addr", "tcp_addr", "kafka_addr"])
def test_insecure_allows_it_with_one_warning(name: str, address: str, tls: dict[str, str]) -> None:
    (warning,) = load_config(None, {}, {name: address, "insecure": True, **TOLD, **tls}).warnings
    assert warning.startswith(
        f"insecure is true: whoever reaches {name} {address} may read, write and delete"
    )
    assert ("there is no TLS" in warning) == (not tls)


@pytest.mark.parametrize("address", PUBLIC)
@pytest.mark.parametrize(
    "tls", [{}, TLS, CLIENT_CERTIFICATES], ids=["plaintext", "TLS", "without management.tls"]
)
def test_a_management_address_that_other_machines_reach_is_refused_unless_clients_have_certificates(
    address: str, tls: dict[str, str]
) -> None:
    problem = problem_of({"management_addr": address, **tls})
    assert problem.startswith(
        f"--management-addr: management_addr {address} can be reached from other machines"
    )
    own = {**CLIENT_CERTIFICATES, "management.tls": True}
    assert load_config(None, {}, {"management_addr": address, **own}).warnings == ()
    (warning,) = load_config(None, {}, {"management_addr": address, "insecure": True, **tls}).warnings
    assert warning.startswith(
        f"insecure is true: whoever reaches management_addr {address} may read the metrics"
    )


def test_management_with_tls_needs_certificates() -> None:
    assert "management.tls needs tls.certificate_path" in problem_of({"management.tls": True})
    assert 'management_addr is "x"' in problem_of({"management_addr": "x"})


def test_insecure_is_an_option_like_others(file: Path) -> None:
    file.write_text("grpc_addr: 0.0.0.0:1\n")
    with pytest.raises(ConfigError, match=r"^config.yaml:1: grpc_addr 0.0.0.0:1 can be reached"):
        load_config(file, {}, {})
    assert load_config(file, {"PIXY_INSECURE": "true"}, {}).insecure
    file.write_text("grpc_addr: 0.0.0.0:1\ninsecure: true\n")
    assert load_config(file, {}, {}).insecure
    assert "can be reached" in problem_of({"grpc_addr": "0.0.0.0:1"}, {"PIXY_INSECURE": "false"})


@pytest.mark.parametrize(
    "address", ["127.0.0.1:0", "127.1.2.3:1", "[::1]:1", "localhost:1", "/run/pixy.sock"]
)
@pytest.mark.parametrize("insecure", [False, True])
def test_loopback_needs_no_warning(address: str, insecure: bool) -> None:
    assert load_config(None, {}, {"grpc_addr": address, "insecure": insecure}).warnings == ()


def test_a_unix_socket_alone_is_enough() -> None:
    config = load_config(None, {}, {"grpc_addr": "", "unix_addr": "/run/pixy.sock"})
    assert (config.grpc_addr, config.warnings) == ("", ())


def test_grpc_addr_may_be_the_path_of_a_unix_socket() -> None:
    config = load_config(None, {}, {"grpc_addr": "/run/pixy.sock"})
    assert (config.grpc_addr, config.warnings) == ("/run/pixy.sock", ())


KAFKA = "proxies:\n  a:\n    kafka:\n"
SASL = KAFKA + "    net:\n      sasl:\n        enable: true\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (KAFKA + "      seed_peers: []\n", "proxies.a.kafka.seed_peers must name a broker"),
        (
            KAFKA + "      seed_peers: [a:1, kafka]\n",
            'proxies.a.kafka.seed_peers is "kafka"; expected host:port, such as 127.0.0.1:19091',
        ),
        (
            KAFKA + "      seed_peers: [':9092']\n",
            'proxies.a.kafka.seed_peers is ":9092"; expected host:port of a broker, such as kafka-1:9092',
        ),
        (
            KAFKA + "      client_key_file: key.pem\n",
            "proxies.a.kafka.client_key_file needs proxies.a.kafka.client_certificate_file",
        ),
        (
            SASL,
            "proxies.a.net.sasl.mechanism PLAIN needs proxies.a.net.sasl.user and proxies.a.net.sasl.password",
        ),
        (
            SASL + "        mechanism: OAUTHBEARER\n",
            "proxies.a.net.sasl.mechanism OAUTHBEARER needs proxies.a.net.sasl.token_path",
        ),
        (
            SASL + "        mechanism: SCRAM\n",
            'proxies.a.net.sasl.mechanism is "SCRAM"; allowed: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER',
        ),
    ],
)
def test_incomplete_settings_of_a_kafka_cluster_are_rejected(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load_config(file, {}, {})
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("tls", "mechanism", "warns"),
    [(False, "PLAIN", True), (True, "PLAIN", False), (False, "SCRAM-SHA-512", False)],
)
def test_credentials_sent_in_the_clear_give_a_warning(
    tmp_path: Path, tls: bool, mechanism: str, warns: bool
) -> None:
    file = tmp_path / "config.yaml"
    login = f"{SASL}        mechanism: {mechanism}\n        user: me\n        password: secret\n"
    file.write_text(login.replace("    kafka:\n", f"    kafka:\n      tls: {str(tls).lower()}\n"))
    warned = [each for each in load_config(file, {}, {}).warnings if "without TLS" in each]
    assert bool(warned) == warns


@pytest.mark.parametrize(("tls", "warns"), [("true", True), ("false", False)])
def test_brokers_that_are_not_verified_give_a_warning(file: Path, tls: str, warns: bool) -> None:
    file.write_text(f"{KAFKA}      tls: {tls}\n      insecure: true\n")
    warned = [each for each in load_config(file, {}, {}).warnings if "certificates are not verified" in each]
    assert len(warned) == warns
