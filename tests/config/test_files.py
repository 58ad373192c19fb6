import os
from pathlib import Path

import pytest

from pixy.access import make_credential, user_line
from pixy.config import check_files, find_unverified, load_config
from pixy.errors import ConfigError
from tests.peers.certificates import make_authority, make_node_certificate

CLIENTS = "tls: {{certificate_path: {0}, key_path: {1}, client_ca_path: {2}}}\n"
PEERS = "cluster: {{tls: {{cert_file: {0}, key_file: {1}, ca_file: {2}}}}}\n"
KAFKA = (
    "proxies: {{far: {{kafka: {{seed_peers: [k:9092], tls: true, client_certificate_file: {0}, client_key_file: {1}, "
    "ca_certificate_file: {2}}}}}}}\n"
)
OPTIONS = {
    CLIENTS: ("tls.certificate_path", "tls.key_path", "tls.client_ca_path"),
    PEERS: ("cluster.tls.cert_file", "cluster.tls.key_file", "cluster.tls.ca_file"),
    KAFKA: (
        "proxies.far.kafka.client_certificate_file",
        "proxies.far.kafka.client_key_file",
        "proxies.far.kafka.ca_certificate_file",
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    for authority, name in (("ours", "one"), ("theirs", "two")):
        make_authority(folder, authority)
        make_node_certificate(folder, name, authority)
    (folder / "garbage").write_text("no PEM\n")
    os.mkfifo(folder / "fifo")
    return folder


def faults_of(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "pixy.yaml"
    path.write_text(text)
    try:
        check_files(load_config(path, {}, {"data_dir": str(tmp_path / "data")}))
    except ConfigError as error:
        return str(error).splitlines()
    return []


@pytest.mark.slow
@pytest.mark.parametrize("section", OPTIONS)
@pytest.mark.parametrize(
    ("names", "faults"),
    [
        (("one.pem", "one.key", "ours.pem"), []),
        (("none", "one.key", "ours.pem"), ["{0} {names[0]} cannot be read: No such file or directory"]),
        (("one.pem", "none", "ours.pem"), ["{1} {names[1]} cannot be read: No such file or directory"]),
        (
            ("one.pem", "two.key", "ours.pem"),
            ["{0} {names[0]} and {1} {names[1]} cannot be used: the key is not that of the certificate"],
        ),
        (
            ("garbage", "one.key", "none"),
            ["{0} {names[0]} and {1} {names[1]} cannot", "{2} {names[2]} cannot be"],
        ),
        (
            ("one.pem", "fifo", "fifo"),
            ["{1} {names[1]} cannot be read: it is", "{2} {names[2]} cannot be read: it"],
        ),
    ],
    ids=["well", "no certificate", "no key", "another key", "garbage", "fifo"],
)
def test_certificates_that_cannot_be_used_are_named_with_their_options(
    folder: Path, tmp_path: Path, section: str, names: tuple[str, ...], faults: list[str]
) -> None:
    paths = [str(folder / name) for name in names]
    found = faults_of(tmp_path, section.format(*paths))
    expected = [each.format(*OPTIONS[section], names=paths) for each in faults]
    assert len(found) == len(expected)
    for fault, beginning in zip(found, expected, strict=True):
        assert fault.startswith(beginning)


def test_a_token_that_cannot_be_read_is_named_with_its_cluster(tmp_path: Path) -> None:
    sasl = "{enable: true, mechanism: OAUTHBEARER, token_path: /no/token}"
    text = f"proxies: {{far: {{kafka: {{seed_peers: [k:9092], tls: true}}, net: {{sasl: {sasl}}}}}}}\n"
    assert faults_of(tmp_path, text) == [
        "proxies.far.net.sasl.token_path /no/token cannot be read: No such file or directory"
    ]


def test_the_directory_of_a_cluster_is_no_directory_of_data(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "identity").touch()
    (fault,) = faults_of(tmp_path, "")
    assert fault.startswith(f"data_dir {tmp_path / 'data'} is the directory of one cluster")
    assert f"set data_dir to the directory above, {tmp_path}" in fault


@pytest.mark.slow
@pytest.mark.parametrize(("authority", "warnings"), [("ours", 0), ("theirs", 1)])
def test_a_certificate_of_another_authority_than_that_of_the_peers_is_told(
    folder: Path, tmp_path: Path, authority: str, warnings: int
) -> None:
    path = tmp_path / "pixy.yaml"
    path.write_text(PEERS.format(folder / "one.pem", folder / "one.key", folder / f"{authority}.pem"))
    found = list(find_unverified(load_config(path, {}, {})))
    assert len(found) == warnings
    assert all(
        f"one.pem is not accepted by cluster.tls.ca_file {folder}/theirs.pem" in each for each in found
    )


def test_a_file_of_users_is_read(tmp_path: Path, folder: Path) -> None:
    users = tmp_path / "users"
    text = f"sasl: {{users_file: {users}}}\n"
    assert faults_of(tmp_path, text) == [f"sasl.users_file {users} cannot be read: No such file or directory"]
    users.write_text("# nobody\n")
    assert faults_of(tmp_path, text) == [
        f"sasl.users_file {users}: it has no user; pixy user NAME makes a line"
    ]
    fifo = folder / "fifo"
    assert faults_of(tmp_path, f"sasl: {{users_file: {fifo}}}\n") == [
        f"sasl.users_file {fifo} cannot be read: it is not a regular file"
    ]
    credential = make_credential("SCRAM-SHA-256", "secret", bytes(16), 4096)
    users.write_text(user_line("alice", {"SCRAM-SHA-256": credential}))
    assert faults_of(tmp_path, text) == []
