import os
from pathlib import Path
from typing import Any

import pytest

from pixy.config import load_config
from pixy.config.file_access import find_open_files

PASSWORD = "PIXY_PROXIES__default__NET__SASL__PASSWORD"
KAFKA = "proxies:\n  default:\n    kafka: {tls: true}\n    net:\n      sasl:\n        enable: true\n        user: me\n"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("0123456789abcdef")
    return path


def config_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.yaml"
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def warnings_of(text: str, tmp_path: Path, variables: dict[str, str] | None = None) -> list[str]:
    loaded = load_config(config_file(tmp_path, text), variables or {}, {"data_dir": str(tmp_path / "data")})
    return [each for each in loaded.warnings if "open to other users" in each]


FILES: dict[str, Any] = {
    "tls.key_path": ("tls: {{certificate_path: c.pem, key_path: {0}}}\n", {}),
    "cluster.tls.key_file": ("cluster: {{tls: {{cert_file: c, ca_file: c, key_file: {0}}}}}\n", {}),
    "proxies.default.kafka.client_key_file": (
        "proxies: {{default: {{kafka: {{client_certificate_file: c, client_key_file: {0}}}}}}}\n",
        {},
    ),
    "proxies.default.net.sasl.token_path": (
        "proxies: {{default: {{kafka: {{tls: true}}, net: {{sasl: {{token_path: {0}}}}}}}}}\n",
        {},
    ),
    f"{PASSWORD}_FILE": (KAFKA.replace("{", "{{").replace("}", "}}"), {f"{PASSWORD}_FILE": "{0}"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("mode", [0o604, 0o640, 0o644, 0o602, 0o666])
def test_a_file_with_a_secret_that_others_can_open_gives_a_warning(
    tmp_path: Path, secret: Path, name: str, mode: int
) -> None:
    text, variables = FILES[name]
    given = {key: value.format(secret) for key, value in variables.items()}
    secret.chmod(mode)
    assert warnings_of(text.format(secret), tmp_path, given) == [
        f"{name}: {secret} has a secret and mode {mode:04o}, open to other users of this machine: chmod go= {secret}"
    ]
    secret.chmod(0o600)
    assert warnings_of(text.format(secret), tmp_path, given) == []


def test_a_configuration_with_a_password_is_for_few(tmp_path: Path) -> None:
    text = f"{KAFKA}        password: hunter2\n"
    assert warnings_of(text, tmp_path) == []
    (tmp_path / "config.yaml").chmod(0o644)
    (warning,) = warnings_of(text, tmp_path)
    assert warning.startswith(f"configuration file: {tmp_path / 'config.yaml'} has a secret and mode 0644")
    assert warnings_of(KAFKA, tmp_path, {PASSWORD: "hunter2"}) == []


@pytest.mark.parametrize(("mode", "open_"), [(0o640, False), (0o660, True), (0o644, True)])
def test_a_group_may_read_the_file_of_another_user(
    secret: Path, monkeypatch: pytest.MonkeyPatch, mode: int, open_: bool
) -> None:
    secret.chmod(mode)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert bool(list(find_open_files([("key", str(secret))]))) == open_


def test_a_missing_file_is_left_to_its_reader(tmp_path: Path) -> None:
    assert list(find_open_files([("key", str(tmp_path / "none"))])) == []


@pytest.mark.parametrize(
    ("data", "cluster", "warns"), [(0o755, 0o755, True), (0o700, 0o755, False), (0o755, 0o700, False)]
)
def test_a_data_directory_that_others_can_enter_gives_one_warning(
    tmp_path: Path, data: int, cluster: int, warns: bool
) -> None:
    (tmp_path / "default" / "partitions").mkdir(parents=True)
    (tmp_path / "default").chmod(cluster)
    tmp_path.chmod(data)
    expected = (
        f"data_dir: other users of this machine can enter {tmp_path / 'default'}, with mode 0755, where messages and secrets "
        f"of nodes are: chmod -R go= {tmp_path / 'default'}"
    )
    assert load_config(None, {}, {"data_dir": str(tmp_path)}).warnings == ((expected,) if warns else ())
