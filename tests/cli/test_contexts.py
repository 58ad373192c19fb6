import json
from pathlib import Path

import pytest

from pixy.cli.addresses import grpc_targets
from pixy.proto import kafkapixy_pb2 as pb

from .conftest import Run
from .fake_server import FakePixy


@pytest.fixture
def contexts(tmp_path: Path) -> Path:
    return tmp_path / "contexts.toml"


def test_a_command_takes_what_it_is_not_told_from_the_context_in_use(
    pixy: FakePixy, run_alone: Run, run: Run
) -> None:
    pixy.answers["ListTopics"] = pb.ListTopicRs()
    assert run_alone("contexts", "create", "test", "--address", pixy.address, "--cluster", "c").exit_code == 0
    run_alone("contexts", "create", "other", "--address", "127.0.0.1:1", "--cluster", "d")
    assert run_alone("topics", "list").exit_code == 0
    assert run_alone("topics", "list", "--cluster", "e").exit_code == 0
    assert run("topics", "list", "--context", "other").exit_code == 0  # with PIXY_ADDRESS
    assert run_alone("topics", "list", PIXY_CONTEXT="test").exit_code == 0
    assert [each.cluster for each in pixy.named("ListTopics")] == ["c", "e", "d", "c"]


def test_contexts_are_kept_in_a_file(run_alone: Run, contexts: Path) -> None:
    ca = contexts.with_name("ca.pem")
    ca.touch()
    run_alone("contexts", "create", "a", "--address", "n1,n2", "--tls-ca-path", str(ca))
    run_alone("contexts", "create", 'b "quoted"', "--cluster", "c")
    assert run_alone("contexts", "use", 'b "quoted"').stdout == 'using context b "quoted"\n'
    assert contexts.read_text() == (
        f'current = "b \\"quoted\\""\n\n[contexts."a"]\naddress = "n1,n2"\ntls_ca_path = "{ca}"\n\n'
        '[contexts."b \\"quoted\\""]\ncluster = "c"\n'
    )
    assert json.loads(run_alone("contexts", "show", "--json").stdout) == {
        "name": 'b "quoted"',
        "cluster": "c",
    }
    assert run_alone("contexts", "list").stdout.splitlines()[1].split() == ["a", "n1,n2"]
    run_alone("contexts", "delete", "a")
    assert run_alone("contexts", "show", "a").stderr == (
        f'pixy: there is no context a in {contexts}, which has: b "quoted"\n'
    )


@pytest.mark.parametrize(
    "text", ["prod\U0001f600", "\u00fcber", "\x00\x1f\x7f\x80\ufeff\u2028", "a\tb\r\n'\"\\"]
)
def test_any_text_is_read_as_it_was_written(run_alone: Run, text: str) -> None:
    assert run_alone("contexts", "create", text, "--address", "n1", "--cluster", text).exit_code == 0
    shown = run_alone("contexts", "show", "--json")
    assert json.loads(shown.stdout) == {"name": text, "address": "n1", "cluster": text}
    assert run_alone("contexts", "delete", text).exit_code == 0


def test_text_that_is_not_utf_8_is_refused_and_the_file_stays(run_alone: Run, contexts: Path) -> None:
    run_alone("contexts", "create", "a", "--address", "n1")
    before = contexts.read_bytes()
    result = run_alone("contexts", "create", "b\udcff", "--address", "n1")
    assert (result.exit_code, "is not UTF-8" in result.stderr) == (1, True)
    assert contexts.read_bytes() == before


@pytest.mark.parametrize(
    ("options", "code", "reason"),
    [
        (("--address", "127.0.0.1:abc"), 2, "'127.0.0.1:abc' is not HOST, HOST:PORT or unix:PATH"),
        (("--tls-ca-path", "/none/ca.pem"), 1, "pixy: cannot read /none/ca.pem: No such file or directory\n"),
        (("--tls-key-path", "/dev/null"), 2, "--tls-certificate-path and --tls-key-path go together"),
    ],
)
def test_a_context_that_no_command_could_use_is_refused(
    run_alone: Run, contexts: Path, options: tuple[str, ...], code: int, reason: str
) -> None:
    result = run_alone("contexts", "create", "prod", *options)
    assert (result.exit_code, reason in result.stderr) == (code, True)
    assert not contexts.exists()


@pytest.mark.parametrize(
    ("values", "code", "reason"),
    [
        (
            'tls_ca_path = "/none/ca.pem"',
            1,
            "cannot read /none/ca.pem: No such file or directory (context prod)\n",
        ),
        ('address = "a:b"', 2, "'a:b' is not HOST, HOST:PORT or unix:PATH (context prod)\n"),
        ('address = "unix:/none/pixy"', 1, "with --address or PIXY_ADDRESS (context prod)\n"),
    ],
)
def test_errors_of_a_context_name_it(
    run_alone: Run, contexts: Path, values: str, code: int, reason: str
) -> None:
    contexts.write_text(f'current = "prod"\n[contexts.prod]\n{values}\n')
    result = run_alone("topics", "list")
    assert (result.exit_code, reason in result.stderr) == (code, True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x", "cannot read the contexts of "),
        ('[contexts.a]\nadress = "x"', "contexts.a.adress is not known; allowed are the texts address, "),
        ('address = "x"', "must have `current`, a text, and tables [contexts.NAME]; nothing else"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error(
    run_alone: Run, contexts: Path, text: str, reason: str
) -> None:
    contexts.write_text(text)
    result = run_alone("topics", "list")
    assert (result.exit_code, reason in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("host", ["host:19091"]),
        ("a, b:1,[::1],[::1]:2", ["a:19091", "b:1", "[::1]:19091", "[::1]:2"]),
        ("unix:/run/pixy", ["unix:/run/pixy"]),
        ("ipv4:127.0.0.1:1,127.0.0.1:2", ["ipv4:127.0.0.1:1,127.0.0.1:2"]),
        ("dns:///host:1", ["dns:///host:1"]),
    ],
)
def test_addresses_have_a_default_port(text: str, targets: list[str]) -> None:
    assert grpc_targets(text) == targets


@pytest.mark.parametrize("text", ["", "a,,b", "a:0", "a:65536", "a b", "::1", "http://127.0.0.1:19091"])
def test_what_is_no_address_is_wrong_usage(run_alone: Run, text: str) -> None:
    result = run_alone("topics", "list", "--address", text)
    assert (result.exit_code, "is not HOST, HOST:PORT or unix:PATH" in result.stderr) == (2, True)


def test_a_command_goes_to_the_first_node_that_accepts_a_connection(pixy: FakePixy, run_alone: Run) -> None:
    pixy.answers["ListTopics"] = pb.ListTopicRs()
    assert run_alone("topics", "list", "--address", f"127.0.0.1:1,{pixy.address}").exit_code == 0


def test_a_user_without_a_home_has_no_contexts(
    pixy: FakePixy, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    pixy.answers["ListTopics"] = pb.ListTopicRs()
    for name in ("PIXY_CONTEXTS", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert run("topics", "list").exit_code == 0
