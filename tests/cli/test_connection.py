import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto.kafkapixy_pb2_grpc import add_KafkaPixyServicer_to_server
from tests.conftest import require

from .conftest import Run
from .fake_server import FakePixy, Refused


def test_an_error_is_one_line_with_its_status(pixy: FakePixy, run: Run) -> None:
    def answer(_: pb.ListTopicRq) -> pb.ListTopicRs:
        raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "proxy `x`\ndoes not exist")

    pixy.answers["ListTopics"] = answer
    result = run("topics", "list", "--cluster", "x")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "pixy: INVALID_ARGUMENT: proxy `x` does not exist\n"
    assert pixy.named("ListTopics")[0].cluster == "x"


def test_an_unreachable_daemon_gives_a_hint(run: Run) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        address = f"127.0.0.1:{held.getsockname()[1]}"
        result = run("topics", "list", "--address", address)
    assert result.exit_code == 1
    assert result.stderr == (
        f"pixy: UNAVAILABLE: cannot reach a daemon at {address}: is it running? Start one with pixy serve, or set "
        "another address with --address or PIXY_ADDRESS\n"
    )


def test_a_port_that_speaks_http_is_told_from_one_where_nothing_listens(run: Run) -> None:
    def serve(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            connection.recv(1 << 16)

    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as threads:
        served = threads.submit(serve, listening)
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        result = run("topics", "list", "--address", address)
        served.result()
    assert result.exit_code == 1
    assert result.stderr == (
        f"pixy: UNAVAILABLE: {address} does not speak gRPC: use the address of grpc_addr, by default "
        "127.0.0.1:19091, not those for HTTP, metrics or other nodes\n"
    )


def test_a_host_that_is_not_known_is_named(run: Run) -> None:
    result = run("topics", "list", "--address", "no.such.host.invalid")
    assert result.exit_code == 1
    assert result.stderr.startswith("pixy: UNAVAILABLE: cannot look up no.such.host.invalid:19091: ")
    assert "[" not in result.stderr


def test_a_timeout_is_reported_with_its_option(pixy: FakePixy, run: Run) -> None:
    def answer(_: pb.ListTopicRq) -> pb.ListTopicRs:
        raise Refused(grpc.StatusCode.DEADLINE_EXCEEDED, "too late")

    pixy.answers["ListTopics"] = answer
    result = run("topics", "list", "--timeout", "2.5")
    assert (
        result.stderr == f"pixy: DEADLINE_EXCEEDED: no answer from {pixy.address} within 2.5 s (--timeout)\n"
    )


def test_a_certificate_that_cannot_be_read_is_an_error(run: Run, tmp_path: Path) -> None:
    result = run("topics", "list", "--tls-ca-path", str(tmp_path / "none.pem"))
    assert result.exit_code == 1
    assert result.stderr == f"pixy: cannot read {tmp_path / 'none.pem'}: No such file or directory\n"


# --- TLS ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Self-signed certificates, each with its key."""
    folder = tmp_path_factory.mktemp("certificates")
    openssl = require("openssl", "apt-get install openssl")
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = {"server": "IP:127.0.0.1", "elsewhere": "IP:127.0.0.2", "client": "DNS:client"}
    for name, subject in names.items():
        files = ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem")]
        more = ["-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName={subject}"]
        subprocess.run([*command, *files, *more], check=True, capture_output=True)
    return folder


@contextmanager
def served_with(certificates: Path, name: str, *, client_ca: str | None = None) -> Iterator[str]:
    """A server with TLS; its address."""
    key, chain = ((certificates / f"{name}.{suffix}").read_bytes() for suffix in ("key", "pem"))
    ca = None if client_ca is None else (certificates / f"{client_ca}.pem").read_bytes()
    credentials = grpc.ssl_server_credentials([(key, chain)], ca, require_client_auth=ca is not None)
    server = grpc.server(ThreadPoolExecutor(1))
    add_KafkaPixyServicer_to_server(FakePixy(answers={"ListTopics": pb.ListTopicRs()}), server)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()


@pytest.mark.slow
def test_a_command_uses_tls_with_a_certificate_of_its_own(run: Run, certificates: Path) -> None:
    trusts = ("--tls-ca-path", str(certificates / "server.pem"))
    own = (
        *("--tls-certificate-path", str(certificates / "client.pem")),
        *("--tls-key-path", str(certificates / "client.key")),
    )
    with served_with(certificates, "server") as address:
        assert run("topics", "list", "--address", address, *trusts).exit_code == 0
    with served_with(certificates, "server", client_ca="client") as address:
        assert run("topics", "list", "--address", address, *trusts, *own).exit_code == 0
        result = run("topics", "list", "--address", address, *trusts)
        assert result.stderr == (
            f"pixy: UNAVAILABLE: {address} closes the connection: perhaps it wants a certificate "
            "(--tls-certificate-path), or is the address for other nodes\n"
        )


def test_what_is_wrong_with_tls_is_said(pixy: FakePixy, run: Run, certificates: Path) -> None:
    def refusal(address: str, *ca: str) -> str:
        options = [option for each in ca for option in ("--tls-ca-path", str(certificates / f"{each}.pem"))]
        result = run("topics", "list", "--address", address, *options)
        assert result.exit_code == 1
        return result.stderr.removeprefix("pixy: UNAVAILABLE: ").rstrip().replace(address, "HERE")

    with served_with(certificates, "server") as address:
        assert refusal(address) == (
            "HERE closes the connection: perhaps it wants TLS (--tls-ca-path), or is the address for other nodes"
        )
        assert refusal(address, "client") == "the certificate of HERE is not signed by that of --tls-ca-path"
    with served_with(certificates, "elsewhere") as address:
        assert refusal(address, "elsewhere") == "the certificate of HERE is not for this name or address"
    assert refusal(pixy.address, "server") == "HERE does not use TLS: leave --tls-ca-path out"


@pytest.mark.parametrize("reads", [True, False], ids=["closed", "reset"])
def test_a_server_that_closes_the_connection_may_want_tls(run: Run, *, reads: bool) -> None:
    """A server that has not read everything resets the connection by closing it."""

    def serve(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        if reads:
            connection.recv(4096)
        else:
            connection.recv(1)
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as threads:
        served = threads.submit(serve, listening)
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        result = run("topics", "list", "--address", address)
        served.result()
    assert result.stderr == (
        f"pixy: UNAVAILABLE: {address} closes the connection: perhaps it wants TLS (--tls-ca-path), or is the "
        "address for other nodes\n"
    )


def test_files_that_are_no_certificates_are_named(run: Run, certificates: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text")
    text, ca = str(tmp_path / "text"), str(certificates / "server.pem")
    assert run("topics", "list", "--tls-ca-path", text).stderr == f"pixy: {text} has no certificate in PEM\n"
    key = str(certificates / "client.key")
    own = ("--tls-certificate-path", ca, "--tls-key-path", key)
    assert run("topics", "list", "--tls-ca-path", ca, *own).stderr == (
        f"pixy: {ca} and {key} are no certificate and its key, without a password, in PEM\n"
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--tls-key-path", "key"), "--tls-certificate-path and --tls-key-path go together"),
        (("--tls-certificate-path", "one"), "--tls-certificate-path and --tls-key-path go together"),
        (
            ("--tls-certificate-path", "one", "--tls-key-path", "key"),
            "--tls-certificate-path needs --tls-ca-path",
        ),
    ],
)
def test_a_certificate_of_the_client_needs_its_key_and_tls(
    run: Run, options: tuple[str, ...], reason: str
) -> None:
    result = run("topics", "list", *options)
    assert result.exit_code == 2
    assert reason in result.stderr


def test_a_command_goes_to_a_node_that_is_up(pixy: FakePixy, run: Run) -> None:
    pixy.answers["ListTopics"] = pb.ListTopicRs()
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = f"ipv4:127.0.0.1:{held.getsockname()[1]},{pixy.address}"
        assert run("topics", "list", "--address", address).exit_code == 0


def test_the_address_option_overrides_the_environment(pixy: FakePixy, run: Run) -> None:
    pixy.answers["ListTopics"] = pb.ListTopicRs()
    assert run("topics", "list", "--address", pixy.address).exit_code == 0
