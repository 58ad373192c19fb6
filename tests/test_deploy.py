"""The examples in `deploy` are configurations that a daemon accepts."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from pixy.config import Config, load_config
from pixy.errors import ConfigError
from tests.conftest import require
from tests.test_documentation import unknown_words

DEPLOY = Path(__file__).parents[1] / "deploy"
COMPOSE: Any = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
NODES = ["pixy-1", "pixy-2", "pixy-3"]


@pytest.fixture
def secret(tmp_path: Path) -> str:
    path = tmp_path / "secret"
    path.write_text("0123456789abcdef" * 2)
    path.chmod(0o600)
    return str(path)


def of_image() -> dict[str, str]:
    """The environment that the image sets."""
    (line,) = re.findall(r"^ENV (.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    return dict(variable.split("=", 1) for variable in line.split())


def of_container(name: str, secret: str) -> Config:
    environment = of_image()
    environment |= COMPOSE["services"][name]["environment"]
    assert environment["PIXY_CLUSTER__SECRET_FILE"] == "/secret/peers"
    return load_config(None, {**environment, "PIXY_CLUSTER__SECRET_FILE": secret}, {})


def test_each_container_is_one_of_the_three_nodes(secret: str) -> None:
    configs = [of_container(name, secret) for name in NODES]
    assert {config.cluster.join for config in configs} == {tuple(f"{name}:19094" for name in NODES)}
    assert [config.advertised.peer for config in configs] == [f"{name}:19094" for name in NODES]
    assert [config.advertised.grpc for config in configs] == [f"{name}:19091" for name in NODES]


def test_the_image_says_that_it_serves_everybody() -> None:
    """Whoever runs it without that has to require client certificates."""
    config = load_config(None, of_image(), {})
    served, over_http, shown = config.warnings
    assert served.startswith("insecure is true: whoever reaches grpc_addr 0.0.0.0:19091")
    assert over_http.startswith("insecure is true: whoever reaches tcp_addr 0.0.0.0:19092")
    assert shown.startswith("insecure is true: whoever reaches management_addr 0.0.0.0:19093")
    with pytest.raises(ConfigError, match=r"tls\.client_ca_path"):
        load_config(None, {**of_image(), "PIXY_INSECURE": "false"}, {})


def test_no_container_shares_its_data_or_its_port() -> None:
    services = [COMPOSE["services"][name] for name in NODES]
    data = {volume for service in services for volume in service["volumes"] if volume.endswith(":/data")}
    assert len(data) == len({port for service in services for port in service["ports"]}) == len(NODES)
    assert {volume.partition(":")[0] for volume in data} < set(COMPOSE["volumes"])


def test_the_configuration_of_a_node_is_accepted_without_a_warning(tmp_path: Path, secret: str) -> None:
    file = tmp_path / "node.yaml"
    file.write_text((DEPLOY / "node.yaml").read_text().replace("/etc/pixy/peers.secret", secret))
    config = load_config(file, {}, {})
    assert config.warnings == ()
    assert config.peer_addr in config.cluster.join


UNIT = (DEPLOY / "pixy.service").read_text()
HARDENED = [
    "NoNewPrivileges=true",
    "CapabilityBoundingSet=",
    "ProtectSystem=strict",
    "ProtectHome=true",
    "PrivateTmp=true",
    "PrivateDevices=true",
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
    "SystemCallFilter=@system-service",
    "UMask=0077",
    "StateDirectoryMode=0700",
]


@pytest.mark.parametrize("directive", HARDENED)
def test_the_unit_gives_the_daemon_no_more_than_it_needs(directive: str) -> None:
    assert directive in UNIT.splitlines()


@pytest.mark.process
@pytest.mark.slow
def test_systemd_finds_the_unit_little_exposed() -> None:
    analyze = require("systemd-analyze", "apt-get install systemd")
    command = [analyze, "security", "--offline=true", "--no-pager", str(DEPLOY / "pixy.service")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    exposure = re.search(r"Overall exposure level for pixy\.service: ([0-9.]+)", found.stdout)
    assert exposure is not None, found.stderr
    assert float(exposure[1]) <= 3


def test_the_unit_runs_a_command_that_exists() -> None:
    (command,) = re.findall(r"^ExecStart=\S*/(pixy .*)$", UNIT, re.MULTILINE)
    assert unknown_words(command) == []
    (variable,) = re.findall(r"^Environment=(\w+)=(\S+)$", UNIT, re.MULTILINE)
    assert load_config(None, dict([variable]), {}).data_dir == "/var/lib/pixy"
