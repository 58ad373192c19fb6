import json
from pathlib import Path

import pytest
import yaml

from .conftest import Run


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("c.yaml")


def test_a_valid_file_is_reported_as_valid_with_its_warnings(file: Path, run_alone: Run) -> None:
    file.write_text("unix_addr: /run/pixy.sock\nunix_access: all\n")
    result = run_alone("config", "check", "c.yaml")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == (
        "c.yaml is valid\nwarning: unix_access is all: every user of this machine may read, write and delete every "
        "topic at /run/pixy.sock\n"
    )


def test_every_problem_of_a_file_is_reported_with_exit_code_2(file: Path, run_alone: Run) -> None:
    file.write_text("grpc_adr: x\nshutdown_timeout: 5\n")
    result = run_alone("config", "check", "c.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        "pixy: c.yaml:1: grpc_adr is not an option; did you mean grpc_addr?",
        "pixy: c.yaml:2: shutdown_timeout is 5; a duration needs a unit: 5s, 5ms or 5m",
    ]


def test_a_variable_can_name_the_file(file: Path, run_alone: Run) -> None:
    file.write_text("")
    assert run_alone("config", "check", PIXY_CONFIG="c.yaml").stdout == "c.yaml is valid\n"


def test_without_a_file_the_environment_is_checked(file: Path, run_alone: Run) -> None:
    assert run_alone("config", "check").stdout == "the configuration is valid\n"
    assert run_alone("config", "check", PIXY_DATADIR="x").exit_code == 2


def test_the_effective_configuration_is_printed_as_yaml_and_json(file: Path, run_alone: Run) -> None:
    file.write_text("proxies:\n  a:\n    consumer: {ack_timeout: 90s}\n")
    text = run_alone("config", "print", "--config", "c.yaml", PIXY_DATA_DIR="elsewhere").stdout
    printed = yaml.safe_load(text)
    assert printed["data_dir"] == "elsewhere"
    assert printed["proxies"]["a"]["consumer"]["ack_timeout"] == "1m30s"
    as_json = run_alone("config", "print", "--config", "c.yaml", "--json", PIXY_DATA_DIR="elsewhere").stdout
    assert json.loads(as_json) == printed


def test_print_takes_the_file_as_check_does(file: Path, run_alone: Run) -> None:
    file.write_text("data_dir: elsewhere\n")
    assert yaml.safe_load(run_alone("config", "print", "c.yaml").stdout)["data_dir"] == "elsewhere"
    assert run_alone("config", "print", "c.yaml", "--config", "c.yaml").exit_code == 2
