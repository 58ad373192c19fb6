import socket
from pathlib import Path

import grpc

from pixy.proto import kafkapixy_pb2 as pb

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


def test_the_address_option_overrides_the_environment(pixy: FakePixy, run: Run) -> None:
    pixy.answers["ListTopics"] = pb.ListTopicRs()
    assert run("topics", "list", "--address", pixy.address).exit_code == 0
