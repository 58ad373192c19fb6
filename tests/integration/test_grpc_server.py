"""The gRPC server of a daemon from outside: certificates, and connections that are replaced during
calls.
"""

import asyncio
import os
import shutil
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
import yaml

from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub
from tests.fakes.grpc_client import messages_in, open_client
from tests.fakes.waiting import until_blocking
from tests.integration.conftest import MakeDaemon
from tests.integration.daemon import CHANNEL_OPTIONS, Daemon
from tests.judges.daemons import Certificate, make_certificate

pytestmark = pytest.mark.process

SECONDS = 60.0
MESSAGE = pb.ProdRq(topic="t", key_value=b"k", message=b"m")
IN_FLIGHT = 8
WINDOW_BYTES = 1 << 24


@pytest.fixture
def certificates(tmp_path: Path) -> list[Certificate]:
    """Two unrelated certificates."""
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    return [make_certificate(folder) for folder in folders]


@contextmanager
def secure_stub(
    daemon: Daemon, trusted: Certificate, own: Certificate | None = None
) -> Iterator[KafkaPixyStub]:
    """A client with a connection of its own, which presents its certificate if it has one."""
    mine = (own.key_path.read_bytes(), own.path.read_bytes()) if own else (None, None)
    credentials = grpc.ssl_channel_credentials(trusted.path.read_bytes(), *mine)
    with grpc.secure_channel(daemon.address, credentials, options=CHANNEL_OPTIONS) as channel:
        yield KafkaPixyStub(channel)


def shown_certificate(daemon: Daemon) -> str:
    """The certificate presented to a new connection, as PEM."""
    host, port = daemon.address.rsplit(":", 1)
    return ssl.get_server_certificate((host, int(port)), timeout=SECONDS)


def test_it_serves_http2_on_tls_to_clients_that_trust_it_and_rejects_plaintext(
    make_daemon: MakeDaemon, certificates: list[Certificate]
) -> None:
    one, two = certificates
    daemon = make_daemon({"tls": {"certificate_path": str(one.path), "key_path": str(one.key_path)}})
    daemon.start()
    with secure_stub(daemon, one) as stub:
        stub.Produce(MESSAGE, timeout=SECONDS)
    with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
        daemon.stub().Produce(MESSAGE, timeout=SECONDS)
    with secure_stub(daemon, two) as stub, pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
        stub.Produce(MESSAGE, timeout=SECONDS)
    assert agreed_protocol(daemon, one) == "h2"


def agreed_protocol(daemon: Daemon, trusted: Certificate) -> str | None:
    """The protocol that the daemon negotiates (ALPN)."""
    host, port = daemon.address.rsplit(":", 1)
    context = ssl.create_default_context(cafile=str(trusted.path))
    context.set_alpn_protocols(["http/1.1", "h2"])
    with (
        socket.create_connection((host, int(port)), timeout=SECONDS) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as wrapped,
    ):
        return wrapped.selected_alpn_protocol()


def test_clients_must_present_a_trusted_certificate_if_configured(
    make_daemon: MakeDaemon, certificates: list[Certificate]
) -> None:
    one, two = certificates
    files = {"certificate_path": str(one.path), "key_path": str(one.key_path)}
    daemon = make_daemon({"tls": {**files, "client_ca_path": str(two.path)}})
    daemon.start()
    with secure_stub(daemon, one, own=two) as stub:
        stub.Produce(MESSAGE, timeout=SECONDS)
    for unknown in (None, one):
        with secure_stub(daemon, one, own=unknown) as stub, pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
            stub.Produce(MESSAGE, timeout=SECONDS)


def test_a_new_certificate_is_used_and_no_call_on_an_old_connection_is_lost(
    make_daemon: MakeDaemon, certificates: list[Certificate], tmp_path: Path
) -> None:
    one, two = certificates
    used = Certificate(tmp_path)
    replace(used, one)
    files = {"certificate_path": str(used.path), "key_path": str(used.key_path)}
    daemon = make_daemon({"tls": {**files, "reload_interval": "50ms"}})
    daemon.start()
    with secure_stub(daemon, one) as old:
        old.Produce(MESSAGE, timeout=SECONDS)
        polling = pb.ConsNAckRq(topic="t", group="g", auto_ack=True)
        assert old.ConsumeNAck(polling, timeout=SECONDS).message == b"m"
        waiting = old.ConsumeNAck.future(polling, timeout=SECONDS)
        replace(used, two)
        until = time.monotonic() + SECONDS
        while shown_certificate(daemon) != two.path.read_text():
            assert time.monotonic() < until, "the new certificate is not shown"
        with secure_stub(daemon, two) as new:
            new.Produce(MESSAGE, timeout=SECONDS)
        # A dropped connection would have failed its call.
        assert waiting.result(timeout=SECONDS).offset == 1


def test_sighup_reloads_what_needs_no_start_and_names_what_waits_for_one(
    make_daemon: MakeDaemon, certificates: list[Certificate], tmp_path: Path
) -> None:
    one, two = certificates
    used = Certificate(tmp_path)
    replace(used, one)
    tls = {"certificate_path": str(used.path), "key_path": str(used.key_path), "reload_interval": "1h"}
    daemon = make_daemon({"tls": tls})
    daemon.start()

    def hang_up(event: str, **changes: object) -> str:
        """Change the file, and send the signal; returns the new part of the log."""
        (daemon.folder / "pixy.yaml").write_text(yaml.safe_dump(daemon.config | changes))
        before = len(daemon.log())
        daemon.signal(signal.SIGHUP)
        until_blocking(lambda: event in daemon.log()[before:], daemon.log)
        return daemon.log()[before:]

    replace(used, two)
    assert "nothing is reloaded" in hang_up("reason=", shutdown_timeout="soon", data_dir="elsewhere")
    assert shown_certificate(daemon) == one.path.read_text()
    new = hang_up("options=", shutdown_timeout="9s", data_dir="elsewhere")
    assert "certificates have changed and are used" in new
    # The lowest structlog writes no quotes.
    assert "used=logging, tls" in new.replace("'", "")
    assert "grpc_addr, data_dir, shutdown_timeout" in new  # grpc_addr has its port
    assert shown_certificate(daemon) == two.path.read_text()
    hang_up('"reloaded what needs no start', logging=[{"name": "json", "severity": "info"}])
    daemon.stop()


def replace(used: Certificate, certificate: Certificate) -> None:
    """Replace the used certificate, each file atomically."""
    for there, here in ((used.key_path, certificate.key_path), (used.path, certificate.path)):
        shutil.copy(here, there.with_suffix(".new"))
        os.replace(there.with_suffix(".new"), there)


async def test_a_connection_is_closed_at_its_maximum_age_after_the_answers_to_all_calls(
    make_daemon: MakeDaemon,
) -> None:
    daemon = make_daemon({"grpc": {"max_connection_age": "500ms"}})
    daemon.start()
    offsets: list[int] = []
    for _ in range(2):
        # Not grpcio: it fails calls that it had not sent when the GOAWAY came (grpc/grpc#31733).
        async with open_client(daemon.address) as client, asyncio.timeout(SECONDS):
            client.open_window(0, WINDOW_BYTES)
            while not client.goaways:
                running = sum(not answer.ended for answer in client.answers.values())
                for _ in range(IN_FLIGHT - running):
                    client.request("/KafkaPixy/Produce", MESSAGE.SerializeToString())
                await client.read_once()
            await client.until_closed()
        # RFC 9113 §6.8: the final GOAWAY names the last call that is answered.
        assert client.goaways[-1].last_stream_id == max(client.answers)
        for answer in client.answers.values():
            assert answer.ended
            assert answer.status == 0
            ((_, message),) = messages_in(answer.body)
            offsets.append(pb.ProdRs.FromString(message).offset)
    assert sorted(offsets) == list(range(len(offsets)))
