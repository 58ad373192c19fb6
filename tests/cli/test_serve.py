import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest

from pixy.cli.serve import two_dashes
from pixy.config import Config
from pixy.errors import DataDirectoryError

from .conftest import Run


@dataclass
class Daemon:
    """A stand-in for pixy.daemon: records the configuration, gets ready and stops."""

    configs: list[Config] = field(default_factory=list)
    while_running: Callable[[], None] = lambda: None

    def run(
        self,
        config: Config,
        on_ready: Callable[[Mapping[str, str]], None],
        read_again: Callable[[], Config],
        set_up_log: Callable[[Config], None],
    ) -> None:
        self.configs.append(config)
        on_ready({"grpc": "127.0.0.1:19091", "unix": "/run/pixy.sock"})
        self.while_running()


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Daemon:
    fake, module = Daemon(), ModuleType("pixy.daemon")
    module.run = fake.run  # type: ignore[attr-defined]  # a module created here
    monkeypatch.setitem(sys.modules, "pixy.daemon", module)
    monkeypatch.chdir(tmp_path)
    return fake


def test_serve_runs_the_daemon_and_prints_one_line_when_it_is_ready(daemon: Daemon, run_alone: Run) -> None:
    result = run_alone("serve")
    assert (result.exit_code, result.stdout) == (0, "pixy ready grpc=127.0.0.1:19091 unix=/run/pixy.sock\n")
    assert daemon.configs == [Config()]


def test_every_flag_sets_its_option(
    daemon: Daemon, run_alone: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text("a secret of this test alone")
    monkeypatch.setenv("PIXY_CLUSTER__SECRET_FILE", str(secret))
    result = run_alone(
        "serve",
        *("--data-dir", "d"),
        *("--grpc-addr", "127.0.0.1:0"),
        *("--unix-addr", "u.sock"),
        *("--peer-addr", "127.0.0.1:1"),
        *("--join", "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"),
        *("--default-cluster", "default"),
        *("--shutdown-timeout", "5s"),
        *("--log-format", "json"),
        *("--log-level", "error"),
        "--no-auto-create-topics",
        *("--default-partitions", "9"),
        *("--tls-certificate-path", "c.pem"),
        *("--tls-key-path", "k.pem"),
        "--insecure",
    )
    assert result.exit_code == 0, result.stderr
    (config,) = daemon.configs
    assert (config.data_dir, config.grpc_addr, config.unix_addr) == ("d", "127.0.0.1:0", "u.sock")
    assert config.peer_addr == "127.0.0.1:1"
    assert config.cluster.join == ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")
    assert (config.default_cluster, config.shutdown_timeout) == ("default", 5.0)
    assert [(entry.name, entry.severity) for entry in config.logging] == [("json", "error")]
    assert (config.proxies["default"].auto_create_topics, config.proxies["default"].default_partitions) == (
        False,
        9,
    )
    assert (config.tls.certificate_path, config.tls.key_path) == ("c.pem", "k.pem")
    assert config.insecure


@pytest.mark.parametrize("dash", ["-", "--"])
def test_kafka_pixys_flags_are_understood_with_one_dash_and_two(
    daemon: Daemon, run_alone: Run, tmp_path: Path, dash: str
) -> None:
    (tmp_path / "c.yaml").write_text("data_dir: from-file\n")
    result = run_alone(
        "serve",
        *(f"{dash}config", "c.yaml"),
        f"{dash}grpcAddr=127.0.0.1:1",
        *(f"{dash}unixAddr", "u.sock"),
        *(f"{dash}tcpAddr", "127.0.0.1:2"),
        *(f"{dash}zookeeperPeers", "localhost:2181"),
        *(f"{dash}pidFile", "pid"),
        *(f"{dash}logging", '[{"name": "json", "severity": "warn"}]'),
    )
    assert result.exit_code == 0, result.stderr
    (config,) = daemon.configs
    assert (config.data_dir, config.grpc_addr, config.unix_addr) == ("from-file", "127.0.0.1:1", "u.sock")
    assert config.tcp_addr == "127.0.0.1:2"
    assert [(entry.name, entry.severity) for entry in config.logging] == [("json", "warning")]
    assert config.warnings == ("--zookeeperPeers: zoo_keeper is ignored: pixy needs no ZooKeeper",)


@pytest.mark.parametrize("args", [["-kafkaPeers", "localhost:9092"], ["-tls"], ["--insecureTLS"]])
def test_broker_flags_make_the_default_cluster_a_kafka_cluster(
    daemon: Daemon, run_alone: Run, args: list[str]
) -> None:
    assert run_alone("serve", *args).exit_code == 0
    (config,) = daemon.configs
    assert config.proxies["default"].kind == "kafka"


def test_only_kafka_pixys_flags_get_a_second_dash() -> None:
    args = ["-grpcAddr=x", "--grpcAddr", "-h", "-x", "grpcAddr", "-grpcAddrs", "--", "-config"]
    assert two_dashes(args) == [
        "--grpcAddr=x",
        "--grpcAddr",
        "-h",
        "-x",
        "grpcAddr",
        "-grpcAddrs",
        "--",
        "-config",
    ]


def test_a_bad_configuration_exits_with_2_and_a_line_per_problem(daemon: Daemon, run_alone: Run) -> None:
    result = run_alone("serve", "--shutdown-timeout", "5", "--default-cluster", "x")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        "pixy: --shutdown-timeout: shutdown_timeout is 5; a duration needs a unit: 5s, 5ms or 5m",
        'pixy: --default-cluster: default_cluster is "x", which is not under proxies; allowed: default',
    ]
    assert daemon.configs == []


def test_a_daemon_that_cannot_start_exits_with_1(daemon: Daemon, run_alone: Run) -> None:
    def fail() -> None:
        raise DataDirectoryError("./pixy-data is in use by process 1")

    daemon.while_running = fail
    result = run_alone("serve", "--pid-file", "pid")
    assert (result.exit_code, result.stderr) == (1, "pixy: ./pixy-data is in use by process 1\n")
    assert not Path("pid").exists()


def test_the_pid_file_is_there_while_the_daemon_runs(daemon: Daemon, run_alone: Run) -> None:
    seen = []
    daemon.while_running = lambda: seen.append(Path("pid").read_text())
    assert run_alone("serve", "--pid-file", "pid").exit_code == 0
    assert seen == [f"{os.getpid()}\n"]
    assert not Path("pid").exists()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_pid_file_is_for_its_user_alone(daemon: Daemon, run_alone: Run, umask: int) -> None:
    seen: list[int] = []
    daemon.while_running = lambda: seen.append(Path("pid").stat().st_mode & 0o777)
    before = os.umask(umask)
    try:
        assert run_alone("serve", "--pid-file", "pid").exit_code == 0
    finally:
        os.umask(before)
    assert seen == [0o600]


def test_a_pid_file_that_cannot_be_written_is_an_error(daemon: Daemon, run_alone: Run) -> None:
    result = run_alone("serve", "--pid-file", "no/such/pid")
    assert result.exit_code == 1
    assert result.stderr == "pixy: cannot write the process id to no/such/pid: No such file or directory\n"
    assert daemon.configs == []


@pytest.mark.parametrize("flag", ["--grpc-addr", "-grpcAddr"])
def test_a_public_address_needs_a_word(daemon: Daemon, run_alone: Run, flag: str) -> None:
    """The daemon says the ways out, and `config check` says the same of the same settings."""
    refused = run_alone("serve", flag, "0.0.0.0:19091")
    assert (refused.exit_code, daemon.configs) == (2, [])
    assert refused.stderr.startswith("pixy: --grpc-addr: grpc_addr 0.0.0.0:19091 can be reached from other")
    checked = run_alone("config", "check", PIXY_GRPC_ADDR="0.0.0.0:19091")
    assert checked.exit_code == 2
    assert checked.stderr == refused.stderr.replace("--grpc-addr:", "PIXY_GRPC_ADDR:")
    assert run_alone("serve", flag, "0.0.0.0:19091", "--insecure").exit_code == 0
    assert len(daemon.configs) == 1


def test_variables_configure_the_daemon_too(daemon: Daemon, run_alone: Run) -> None:
    assert run_alone("serve", PIXY_DATA_DIR="elsewhere").exit_code == 0
    assert daemon.configs[0].data_dir == "elsewhere"


def test_an_interrupted_daemon_exits_quietly(daemon: Daemon, run_alone: Run) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    daemon.while_running = interrupt
    result = run_alone("serve", "--pid-file", "pid")
    assert (result.exit_code, result.stderr) == (130, "")
    assert not Path("pid").exists()
