"""pixy/serving/listeners.py: TLS, client certificates, certificates that change, unix sockets."""

import asyncio
import fcntl
import os
import shutil
import socket
import ssl
import struct
import termios
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop
from google.protobuf.wrappers_pb2 import BytesValue
from structlog.testing import capture_logs

from pixy.config import TlsConfig
from pixy.errors import StartError
from pixy.rpc.call import UnaryCall
from pixy.serving import ServerOptions
from pixy.serving.listeners import Listener, TlsFiles
from tests.fakes.certificates import make_certificate
from tests.fakes.echo import EchoServer, open_echo, value
from tests.fakes.grpc_client import RawClient, open_client
from tests.fakes.odd_files import odd_file
from tests.fakes.waiting import until
from tests.serving.support import NotedReceipt

UNARY = "/test.Echo/Unary"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("one", "two", "client"):
        make_certificate(folder, name)
    return folder


@pytest.fixture
def tls(certificates: Path, tmp_path: Path) -> TlsConfig:
    use(certificates, tmp_path, "one")
    return TlsConfig(
        certificate_path=str(tmp_path / "used.pem"), key_path=str(tmp_path / "used.key"), reload_interval=0.05
    )


def use(certificates: Path, folder: Path, name: str) -> None:
    """Replace the certificate in use, each file atomically."""
    for suffix in ("key", "pem"):
        shutil.copy(certificates / f"{name}.{suffix}", folder / "new")
        os.replace(folder / "new", folder / f"used.{suffix}")


def write(path: str, text: str) -> None:
    Path(path).write_text(text)


def trusting(certificates: Path, *names: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for name in names:
        context.load_verify_locations(certificates / f"{name}.pem")
    context.set_alpn_protocols(["h2"])
    return context


def server_name(client: RawClient) -> object:
    certificate = client.writer.get_extra_info("peercert")
    return dict(entry[0] for entry in certificate["subject"])["commonName"]


@pytest.mark.slow
async def test_calls_go_over_tls(tls: TlsConfig, certificates: Path) -> None:
    async with (
        open_echo(tls=tls) as echo,
        open_client(echo.address, tls=trusting(certificates, "one")) as client,
    ):
        assert (await client.call(UNARY, value(b"secret"))).status == 0


@pytest.mark.slow
async def test_a_client_of_tls_that_does_not_choose_http2_is_answered_in_http1(
    tls: TlsConfig, certificates: Path
) -> None:
    trusted = trusting(certificates, "one")
    trusted.set_alpn_protocols(["http/1.1"])
    with capture_logs() as logs:
        async with open_echo(tls=tls) as echo:
            host, port = echo.address.rsplit(":", 1)
            reader, writer = await asyncio.open_connection(
                host, int(port), ssl=trusted, server_hostname="localhost"
            )
            async with asyncio.timeout(10):
                assert (await reader.read()).startswith(b"HTTP/1.1 505 ")
            writer.close()
            assert (echo.server.counters.accepted, echo.server.counters.refused) == (0, 1)
    assert [each["reason"] for each in logs if each["event"] == "a client does not speak gRPC"] == [
        "TLS without the protocol h2 of ALPN"
    ]


@pytest.mark.slow
async def test_a_changed_certificate_is_used_and_open_connections_stay(
    tls: TlsConfig, certificates: Path, tmp_path: Path
) -> None:
    trusted = trusting(certificates, "one", "two")
    async with open_echo(tls=tls) as echo, open_client(echo.address, tls=trusted) as old:
        assert server_name(old) == "one"
        use(certificates, tmp_path, "two")
        async with asyncio.timeout(10):
            while True:
                async with open_client(echo.address, tls=trusted) as new:
                    assert (await new.call(UNARY, value(b"x"))).status == 0
                    if server_name(new) == "two":
                        break
        assert (await old.call(UNARY, value(b"still here"))).status == 0


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["text", "fifo", "device"])
@pytest.mark.parametrize("option", ["certificate_path", "key_path"])
@pytest.mark.timeout(60)
async def test_a_changed_certificate_that_cannot_be_used_leaves_the_old_one(
    tls: TlsConfig, certificates: Path, capsys: pytest.CaptureFixture[str], option: str, damage: str
) -> None:
    async with open_echo(tls=tls) as echo:
        path = getattr(tls, option)
        if damage == "text":
            write(path, "not a certificate")
        else:
            odd_file(Path(path), damage)
        said: list[str] = []

        def is_said() -> bool:
            said.append(capsys.readouterr().out)
            return "cannot be used; the old ones stay" in "".join(said)

        await until(is_said)
        async with open_client(echo.address, tls=trusting(certificates, "one")) as client:
            assert (await client.call(UNARY, value(b"x"))).status == 0


@pytest.mark.slow
async def test_a_fault_while_certificates_are_read_is_logged_and_they_are_read_again(
    tls: TlsConfig,
    certificates: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    context, read = TlsFiles.context, asyncio.Event()

    def faulty(files: TlsFiles) -> ssl.SSLContext:
        monkeypatch.setattr(TlsFiles, "context", context)
        read.set()
        raise ValueError("a bug")

    async with open_echo(tls=tls) as echo:
        monkeypatch.setattr(TlsFiles, "context", faulty)
        use(certificates, tmp_path, "two")
        await read.wait()
        (listener,) = echo.server._listeners
        before = listener._context
        use(certificates, tmp_path, "two")
        await until(lambda: listener._context is not before)
        assert "a fault while certificates were read" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(("handshake_s", "expected"), [(0.0, 86_400 * 365), (10.0, 10)])
async def test_a_tls_handshake_without_a_limit_does_not_get_the_loops_default(
    tls: TlsConfig, certificates: Path, monkeypatch: pytest.MonkeyPatch, handshake_s: float, expected: float
) -> None:
    loop, limits = asyncio.get_running_loop(), []
    connect_accepted_socket = loop.connect_accepted_socket

    async def noted(*args: Any, **options: Any) -> Any:
        limits.append(options["ssl_handshake_timeout"])
        return await connect_accepted_socket(*args, **options)

    monkeypatch.setattr(loop, "connect_accepted_socket", noted)
    async with (
        open_echo(limits=ServerOptions(handshake_s=handshake_s), tls=tls) as echo,
        open_client(echo.address, tls=trusting(certificates, "one")) as client,
    ):
        assert (await client.call(UNARY, value(b"x"))).status == 0
    assert limits == [expected]


@pytest.mark.slow
@pytest.mark.no_debug  # in debug mode asyncio reports every handshake that fails
async def test_clients_need_a_certificate_if_that_is_configured(tls: TlsConfig, certificates: Path) -> None:
    mutual = replace(tls, client_ca_path=str(certificates / "client.pem"))
    async with open_echo(tls=mutual) as echo:
        known = trusting(certificates, "one")
        known.load_cert_chain(certificates / "client.pem", certificates / "client.key")
        async with open_client(echo.address, tls=known) as client:
            answer = await client.call(UNARY, value(b"who"))
            assert (answer.status, bytes(answer.body[7:])) == (0, b"CN=client"), (
                "the principal is the subject"
            )
        stranger = trusting(certificates, "one")
        stranger.load_cert_chain(certificates / "two.pem", certificates / "two.key")
        for refused in (trusting(certificates, "one"), stranger):
            with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
                async with open_client(echo.address, tls=refused) as client:
                    await client.call(UNARY, value(b"x"))
        assert echo.server.counters.calls == 1


async def test_a_client_that_does_not_choose_http2_is_refused(tls: TlsConfig, certificates: Path) -> None:
    http1 = ssl.create_default_context(cafile=str(certificates / "one.pem"))
    async with open_echo(tls=tls) as echo, open_client(echo.address, tls=http1) as client:
        await client.until_closed()
        assert echo.server.counters.refused == 1


@pytest.mark.slow
@pytest.mark.no_debug  # in debug mode asyncio reports every handshake that fails
async def test_an_old_version_of_tls_is_refused(tls: TlsConfig, certificates: Path) -> None:
    old = trusting(certificates, "one")
    old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    async with open_echo(tls=tls) as echo:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            async with open_client(echo.address, tls=old):
                pass


async def test_a_certificate_authority_that_cannot_be_read_is_an_error(tls: TlsConfig) -> None:
    with pytest.raises(StartError, match=r"tls\.client_ca_path .*none\.pem cannot be used"):
        async with open_echo(tls=replace(tls, client_ca_path="none.pem")):
            pass


async def test_a_unix_socket_serves_and_its_file_goes_when_the_server_stops(tmp_path: Path) -> None:
    path = tmp_path / "echo.sock"
    async with open_echo(unix=str(path)) as echo:
        async with open_client(echo.address) as client:
            assert (await client.call(UNARY, value(b"x"))).status == 0
        await echo.server.stop(0)
        assert not path.exists()


# --- how many -------------------------------------------------------------------------------------


async def connect(address: str) -> socket.socket:
    """Open a connection that sends nothing."""
    host, port = address.rsplit(":", 1)
    sock = socket.socket()
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    return sock


@pytest.mark.slow
@pytest.mark.no_debug  # in debug mode asyncio reports every handshake that fails
async def test_connections_in_their_handshake_count_until_it_fails_or_takes_too_long(
    tls: TlsConfig, certificates: Path
) -> None:
    limits = ServerOptions(handshake_s=0.5, connections_max=3, client_share_percent=100)
    async with open_echo(limits=limits, tls=tls) as echo:
        trusted = trusting(certificates, "one")
        async with open_client(echo.address, tls=trusted) as client:
            assert (await client.call(UNARY, value(b"x"))).status == 0
            silent = [await connect(echo.address) for _ in range(2)]
            await until(lambda: echo.server.connections == 3)
            # One too many is closed at once, and counted.
            with pytest.raises((ssl.SSLError, ConnectionError)):
                async with open_client(echo.address, tls=trusted):
                    pass
            assert (echo.server.counters.refused, echo.server.counters.open) == (1, 3)
            # What is no handshake ends it at once.
            await asyncio.get_running_loop().sock_sendall(silent[0], b"GET / HTTP/1.1\r\n\r\n")
            await until(lambda: echo.server.counters.handshakes_failed == 1)
            assert echo.server.connections == 2
            # Silence ends it in time.
            await until(lambda: echo.server.connections == 1)
            assert echo.server.counters.handshakes_failed == 2
            assert (await client.call(UNARY, value(b"x"))).status == 0
            for sock in silent:
                sock.close()


@pytest.mark.slow
@pytest.mark.no_debug  # in debug mode asyncio reports every handshake that fails
async def test_an_address_has_its_share_of_connections_in_their_handshake(tls: TlsConfig) -> None:
    async with open_echo(limits=ServerOptions(connections_max=4, client_share_percent=50), tls=tls) as echo:
        silent = [await connect(echo.address) for _ in range(3)]
        await until(lambda: (echo.server.connections, echo.server.counters.refused) == (2, 1))
        for sock in silent:
            sock.close()


@pytest.mark.no_debug  # in debug mode asyncio reports every handshake that fails
async def test_a_server_that_stops_abandons_handshakes(tls: TlsConfig) -> None:
    async with open_echo(tls=tls) as echo:
        silent = await connect(echo.address)
        await until(lambda: echo.server.connections == 1)
        await echo.server.stop(10)
        assert echo.server.connections == 0
        assert await asyncio.get_running_loop().sock_recv(silent, 1) == b""
        silent.close()


@pytest.mark.slow
async def test_goaway_arrives_over_tls_too(tls: TlsConfig, certificates: Path) -> None:
    async with (
        open_echo(tls=tls) as echo,
        open_client(echo.address, tls=trusting(certificates, "one")) as client,
    ):
        client.writer.write(b"\0\0\1\0\0\0\0\0\0x" + bytes(500_000))  # DATA on stream 0
        await client.until_closed()
        assert [goaway.code for goaway in client.goaways] == [1]


async def test_a_storm_of_connections_is_accepted_a_few_in_each_iteration() -> None:
    async with open_echo() as echo:
        seen: list[int] = []
        accept = Listener._accept

        def watched(listener: Listener) -> None:
            before = echo.server.connections
            accept(listener)
            seen.append(echo.server.connections - before)

        (listener,) = echo.server._listeners
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener._socket.fileno())
        storm = [await connect(echo.address) for _ in range(30)]
        loop.add_reader(listener._socket.fileno(), watched, listener)
        await until(lambda: echo.server.connections == 30)
        assert max(seen) == 4
        for sock in storm:
            sock.close()
        await until(lambda: not echo.server.connections)


async def test_accepting_resumes_after_the_system_was_out_of_descriptors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pixy.serving.listeners._ACCEPT_RETRY_S", 0.05)
    async with open_echo() as echo:
        (listener,) = echo.server._listeners
        real = listener._socket

        class Full:
            """A socket whose first accept finds no file descriptor left."""

            def __init__(self) -> None:
                self.asked = 0

            def accept(self) -> tuple[socket.socket, object]:
                self.asked += 1
                if self.asked == 1:
                    raise OSError(24, "Too many open files")
                return real.accept()

            def __getattr__(self, name: str) -> object:
                return getattr(real, name)

        listener._socket = Full()  # type: ignore[assignment]  # a socket in all that matters here
        async with open_client(echo.address) as client:
            assert (await client.call(UNARY, value(b"x"))).status == 0
        assert "Too many open files" in capsys.readouterr().out


# --- receipts -------------------------------------------------------------------------------------


def end_without_tls(writer: asyncio.StreamWriter) -> None:
    """Send FIN below TLS, without close_notify."""
    with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as below:
        below.shutdown(socket.SHUT_WR)


async def answer_until_the_system_takes_no_more(echo: EchoServer, calls: Iterator[UnaryCall]) -> None:
    """Leave a few unread bytes in the transport, which still takes more."""
    (connection,) = echo.connections
    fd = connection.link.transport._transport.get_extra_info("socket").fileno()
    before, unsent = -1, 0
    while not 0 < before == unsent:
        next(calls).answer(BytesValue(value=bytes(10_000)))
        # As long as it comes through, it does so within this.
        await asyncio.sleep(0.005)
        before, unsent = unsent, struct.unpack("i", fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4)))[0]
    assert connection.link.transport.writable


@pytest.mark.parametrize("unix", [False, True])
@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_answers_to_a_client_that_has_closed_are_not_delivered(
    tmp_path: Path, new_loop: Any, unix: bool
) -> None:
    async def scenario() -> None:
        path = str(tmp_path / "pixy.sock") if unix else ""
        async with open_echo(unix=path) as echo, open_client(echo.address) as client:
            for _ in range(2):
                client.request(UNARY, value(b"hold"))
            await until(lambda: len(echo.echo.held) == 2)
            (before, _), (behind, _) = echo.echo.held
            receipts = [NotedReceipt(), NotedReceipt()]
            before.answer(BytesValue(value=b"before"), receipts[0])
            await receipts[0].spoken.wait()
            end_without_tls(client.writer)
            # The loop has not looked at the socket since.
            behind.answer(BytesValue(value=b"behind"), receipts[1])
            await receipts[1].spoken.wait()
            assert [receipt.said for receipt in receipts] == [["delivered"], ["undelivered"]]

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_answers_after_the_end_of_a_client_that_closes_without_a_tls_alert_are_not_delivered(
    tls: TlsConfig, certificates: Path, new_loop: Any
) -> None:
    async def scenario() -> None:
        async with (
            open_echo(tls=tls) as echo,
            open_client(echo.address, window=2**31 - 1, tls=trusting(certificates, "one")) as client,
        ):
            client.open_window(0, 2**30)
            for _ in range(1200):
                client.request(UNARY, value(b"hold"))
            await until(lambda: len(echo.echo.held) == 1200)
            calls = iter([call for call, _ in echo.echo.held])
            before = NotedReceipt()
            next(calls).answer(BytesValue(value=b"before"), before)
            await until(lambda: before.said == ["delivered"])
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # those of sockets read, too
            await answer_until_the_system_takes_no_more(echo, calls)
            end_without_tls(client.writer)
            receipts = [NotedReceipt() for _ in range(100)]
            for receipt in receipts:
                await asyncio.sleep(0.001)
                next(calls).answer(BytesValue(value=b"behind"), receipt)
            assert all(receipt.said != ["delivered"] for receipt in receipts)
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]  # as above
            await client.until_closed()
            assert not any(b"behind" in answer.body for answer in client.answers.values())
            await until(lambda: not echo.server.connections)
            assert all(receipt.said == ["undelivered"] for receipt in receipts)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())
