from pathlib import Path
from typing import Any

import pytest

from pixy.config import load_config
from pixy.errors import ConfigError

HERE = "127.0.0.1:19094"
THREE = "127.0.0.1:19094,127.0.0.1:19194,127.0.0.1:19294"
FAR = {"peer_addr": "10.0.0.1:19094", "cluster.join": "10.0.0.1:19094,10.0.0.2:19094,10.0.0.3:19094"}
TLS = {"cluster.tls.cert_file": "c.pem", "cluster.tls.key_file": "k.pem", "cluster.tls.ca_file": "a.pem"}
NEEDS = (
    "nodes need a secret that all of them share. Write one to a file, with `umask 077; openssl rand -hex 32 > FILE`, and "
    "name that in cluster.secret_file (PIXY_CLUSTER__SECRET_FILE), on all nodes. Or set cluster.tls"
)


@pytest.fixture
def secret(tmp_path: Path) -> str:
    path = tmp_path / "secret"
    path.write_bytes(b"0123456789abcdef" * 4)
    path.chmod(0o600)
    return str(path)


def problems_of(**flags: Any) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        load_config(None, {}, flags)
    return str(raised.value).splitlines()


@pytest.mark.parametrize("join", ["", HERE, THREE, "localhost:1,127.0.0.1:19094"])
def test_a_join_list_that_names_this_node_is_accepted(join: str) -> None:
    assert load_config(None, {}, {**TLS, "cluster.join": join}).cluster.join == tuple(
        filter(None, join.split(","))
    )


def test_a_file_has_a_join_list_as_a_list_or_a_text(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    for written in ("[127.0.0.1:19094, 127.0.0.1:19194]", "127.0.0.1:19094, 127.0.0.1:19194"):
        file.write_text(f"cluster:\n  join: {written}\n")
        assert load_config(file, {}, TLS).cluster.join == ("127.0.0.1:19094", "127.0.0.1:19194")


def test_the_environment_has_a_join_list() -> None:
    environment = {"PIXY_CLUSTER__JOIN": THREE, "PIXY_ADVERTISED__PEER": "127.0.0.1:19194"}
    config = load_config(None, environment, TLS)
    assert config.cluster.join == tuple(THREE.split(","))


@pytest.mark.parametrize("entry", ["19094", "host", "host:0", ":19094", "0.0.0.0:1", "host:99999"])
def test_an_entry_that_nobody_can_connect_to_is_rejected(entry: str) -> None:
    assert problems_of(**{"cluster.join": f"{HERE},{entry}"}) == [
        f'--join: cluster.join has "{entry}"; expected host:port of a node, such as 10.0.0.1:19094'
    ]


def test_an_entry_that_is_there_twice_is_rejected() -> None:
    problems = problems_of(**{"cluster.join": f"LOCALHOST:1,{HERE},localhost:1"})
    assert "--join: cluster.join has localhost:1 more than once" in problems


@pytest.mark.parametrize(
    ("own", "option"), [("peer_addr", "peer_addr"), ("advertised.peer", "advertised.peer")]
)
def test_a_join_list_without_this_node_is_rejected(own: str, option: str) -> None:
    problems = problems_of(**{"cluster.join": THREE, own: "127.0.0.1:1", **TLS})
    assert problems == [
        f"--join: cluster.join does not name this node, which is 127.0.0.1:1 by {option}: add it, on all nodes, or set "
        "advertised.peer to the address in the list that is this node's (127.0.0.1:19094, 127.0.0.1:19194, 127.0.0.1:19294)"
    ]


@pytest.mark.parametrize("own", ["peer_addr", "advertised.peer"])
def test_a_node_that_belongs_to_a_cluster_may_have_left_the_address_in_the_list(
    own: str, tmp_path: Path
) -> None:
    flags = {"cluster.join": THREE, own: "127.0.0.1:1", "data_dir": str(tmp_path), **TLS}
    assert len(problems_of(**flags)) == 1
    (tmp_path / "default").mkdir()
    (tmp_path / "default" / "identity").touch()
    assert load_config(None, {}, flags).cluster.join == tuple(THREE.split(","))


def test_a_join_list_needs_an_address_to_listen_on() -> None:
    assert problems_of(**{"cluster.join": THREE, "peer_addr": ""}) == [
        "--peer-addr: cluster.join needs peer_addr, which is empty"
    ]


def test_without_a_join_list_peers_may_be_off() -> None:
    assert load_config(None, {}, {"peer_addr": ""}).peer_addr == ""


@pytest.mark.parametrize("address", ["0.0.0.0:19094", "[::]:19094", ":19094"])
def test_other_nodes_need_one_address_of_this_one(address: str, secret: str) -> None:
    assert problems_of(**{"peer_addr": address, "cluster.secret_file": secret}) == [
        f"--peer-addr: peer_addr {address} stands for all addresses of this machine: set advertised.peer to the one that "
        "the other nodes connect to"
    ]
    flags = {"peer_addr": address, "advertised.peer": "pixy-1:19094", "cluster.secret_file": secret}
    assert load_config(None, {}, flags).advertised.peer == "pixy-1:19094"


@pytest.mark.parametrize("option", ["advertised.peer", "advertised.grpc"])
def test_an_advertised_address_that_nobody_can_connect_to_is_rejected(option: str) -> None:
    flag = "--" + option.replace(".", "-")
    assert problems_of(**{option: "0.0.0.0:1"}) == [
        f'{flag}: {option} is "0.0.0.0:1": it stands for all addresses of a machine; expected host:port that others can connect to'
    ]


def test_a_peer_address_is_host_and_port() -> None:
    assert problems_of(peer_addr="/run/peers") == [
        '--peer-addr: peer_addr is "/run/peers"; expected host:port, such as 127.0.0.1:19091'
    ]


def test_addresses_beyond_loopback_need_a_secret_or_tls() -> None:
    assert problems_of(**FAR) == [
        f"--peer-addr: peer_addr has 10.0.0.1:19094, which other machines can reach: {NEEDS}"
    ]


@pytest.mark.parametrize("join", [HERE, f"{HERE},127.0.0.2:19094,127.0.0.3:19094"])
def test_nodes_on_one_machine_need_a_secret_or_tls_too(join: str, secret: str) -> None:
    assert problems_of(**{"cluster.join": join}) == [
        f"--join: cluster.join is set, so every process of this machine could join: {NEEDS}"
    ]
    for protection in ({"cluster.secret_file": secret}, TLS):
        assert load_config(None, {}, {"cluster.join": join, **protection}).warnings == ()


def test_a_node_that_lists_no_others_needs_no_secret() -> None:
    assert load_config(None, {}, {}).peer_addr == HERE
    kafka = {"proxy.kafka.seed_peers": "localhost:9092"}
    assert load_config(None, {}, kafka).warnings == ()
    assert load_config(None, {}, {**kafka, "cluster.join": HERE}).warnings != (), "without effect"


@pytest.mark.parametrize(
    "flags", [{"advertised.peer": "pixy-1:19094"}, {"cluster.join": f"{HERE},pixy-2:19094"}]
)
def test_one_address_beyond_loopback_is_enough(flags: dict[str, str]) -> None:
    (problem,) = problems_of(**flags)
    assert "which other machines can reach" in problem


def test_with_a_secret_alone_a_warning_says_what_it_does_not_protect(secret: str) -> None:
    (warning,) = load_config(None, {}, {**FAR, "cluster.secret_file": secret}).warnings
    assert "neither encrypted nor protected from changes" in warning


def test_with_tls_there_is_no_warning() -> None:
    assert load_config(None, {}, {**FAR, **TLS}).warnings == ()


@pytest.mark.parametrize("missing", TLS)
def test_the_files_of_tls_belong_together(missing: str) -> None:
    flags = {name: value for name, value in TLS.items() if name != missing}
    (problem,) = problems_of(**flags)
    assert problem.endswith(
        "cluster.tls.cert_file, cluster.tls.key_file and cluster.tls.ca_file must be set together"
    )


def test_a_cluster_of_two_gives_a_warning() -> None:
    (warning,) = load_config(None, {}, {"cluster.join": f"{HERE},127.0.0.1:19194", **TLS}).warnings
    assert warning.startswith("cluster.join names two nodes")


@pytest.mark.parametrize("seconds", ["59s", "1s"])
def test_nodes_that_are_replaced_during_a_restart_give_a_warning(seconds: str) -> None:
    (warning,) = load_config(None, {}, {"cluster.replace_after": seconds}).warnings
    assert warning.startswith(f"cluster.replace_after is {seconds.replace('s', ' s')}: a node that restarts")


@pytest.mark.parametrize("seconds", ["0s", "60s", "15m"])
def test_nodes_that_are_replaced_late_or_never_give_none(seconds: str) -> None:
    assert load_config(None, {}, {"cluster.replace_after": seconds}).warnings == ()


def test_a_negative_time_until_nodes_are_replaced_is_refused() -> None:
    (problem,) = problems_of(**{"cluster.replace_after": "-1s"})
    assert "cluster.replace_after" in problem


@pytest.mark.parametrize(
    ("content", "is_weak"),
    [
        (b"correct horse battery staple!", True),
        (b"0" * 64, True),
        (b"0123456789abcdef", True),
        (b"8dca5f1ce0a3e8b2b1a2f0b5d6c7e8f9", False),
        (b"q83vEjRWeJCrze8SNFZ4kKvN7xI0VniQq83vEjRWeJA=", False),
    ],
)
def test_a_secret_that_may_be_guessed_gives_a_warning(tmp_path: Path, content: bytes, is_weak: bool) -> None:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    path.write_bytes(content + b"\n")
    warnings = load_config(None, {}, {"cluster.join": HERE, "cluster.secret_file": str(path)}).warnings
    assert any("has a secret that may be guessed" in each for each in warnings) is is_weak


def test_a_second_secret_is_for_a_change_of_the_first(tmp_path: Path, secret: str) -> None:
    second = tmp_path / "second"
    flags = {"cluster.join": HERE, "cluster.second_secret_file": str(second)}
    assert any(
        "cluster.second_secret_file needs cluster.secret_file" in each for each in problems_of(**flags)
    )
    load_config(None, {}, {**flags, "cluster.secret_file": secret})
    second.touch(mode=0o600)
    (problem,) = problems_of(**flags, **{"cluster.secret_file": secret})
    assert "cluster.second_secret_file" in problem
    assert "has a secret of 0 bytes" in problem


@pytest.mark.parametrize("option", ["cluster.secret_file", "cluster.second_secret_file"])
def test_a_secret_in_place_of_its_file_is_refused_and_not_shown(secret: str, option: str) -> None:
    assert problems_of(**{"cluster.secret_file": secret, option: "secret" * 100}) == [
        f"{_flag(option)}: {option} cannot be read: File name too long"
    ]


def _flag(option: str) -> str:
    return f"--{option.replace('.', '-').replace('_', '-')}"


def test_a_join_list_has_no_effect_without_an_embedded_cluster() -> None:
    flags = {"cluster.join": THREE, "proxy.kafka.seed_peers": "localhost:9092"}
    assert "cluster.join has no effect: no entry under proxies is an embedded cluster" in (
        load_config(None, {}, flags).warnings
    )


def test_the_list_of_pixies_in_front_of_kafka_is_checked_like_a_join_list() -> None:
    kafka = {"proxy.kafka.seed_peers": "localhost:9092"}
    assert load_config(None, {}, {**kafka, **TLS, "peers": THREE}).peers == tuple(THREE.split(","))
    (problem,) = problems_of(**kafka, **TLS, peers=THREE, peer_addr="127.0.0.1:1")
    assert "peers does not name this node, which is 127.0.0.1:1 by peer_addr" in problem
    (problem,) = problems_of(**kafka, peers=f"{HERE},host")
    assert 'peers has "host"; expected host:port of a node' in problem
    for peers, why in (
        (f"{HERE},10.0.0.1:19094", "other machines can reach"),
        (THREE, "every process of this"),
    ):
        (problem,) = problems_of(**kafka, peers=peers)
        assert why in problem
        assert problem.endswith(NEEDS)


def test_a_list_of_pixies_without_kafka_is_without_effect() -> None:
    assert "peers has no effect: no entry under proxies is a Kafka cluster" in (
        load_config(None, {}, {"peers": THREE}).warnings
    )
