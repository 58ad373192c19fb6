"""pixy/reload.py: what SIGHUP has used, and what waits for a start."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from structlog.testing import capture_logs

from pixy.config import Config, load_config
from pixy.errors import ConfigError
from pixy.reload import maybe_read_again, say_used


def said(folder: Path, before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The fields of the lines of the log."""
    configs = []
    for name, options in (("before", before), ("after", after)):
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(options))
        configs.append(load_config(path, {}, {}))
    with capture_logs() as logs:
        say_used(*configs)
    return [str(value) for line in logs for name, value in line.items() if name not in ("event", "log_level")]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({}, {}, ["logging"]),
        ({}, {"logging": [{"name": "json", "severity": "debug"}]}, ["logging"]),
        ({}, {"grpc": {"idle_timeout": "1m"}}, ["logging", "grpc.idle_timeout"]),
        (
            {"proxies": {"a": {}, "b": {}}},
            {"proxies": {"a": {}, "b": {"default_partitions": 9}}},
            ["logging", "proxies.b.default_partitions"],
        ),
        ({"proxies": {"a": {}}}, {"proxies": {"a": {}, "b": {}}}, ["logging", "proxies"]),
        ({"sasl": {"users_file": "u"}}, {"sasl": {"users_file": "u"}}, ["logging, sasl.users_file"]),
        (
            {"proxies": {"k": {"kafka": {"tls": True, "ca_certificate_file": "ca.pem"}}}},
            {"proxies": {"k": {"kafka": {"tls": True, "ca_certificate_file": "ca.pem"}}}},
            ["logging", "proxies.k.kafka.ca_certificate_file"],
        ),
    ],
)
def test_changed_options_are_named_by_whether_they_need_a_start(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any], expected: list[str]
) -> None:
    assert said(tmp_path, before, after) == expected


def test_a_configuration_with_faults_is_not_used() -> None:
    def read() -> Config:
        raise ConfigError("there is no option a")

    with capture_logs() as logs:
        assert maybe_read_again(read) is None
    assert [line["reason"] for line in logs] == ["there is no option a"]
    assert maybe_read_again(Config) == Config()
