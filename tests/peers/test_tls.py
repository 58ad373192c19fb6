"""Mutual TLS between peers, on both event loops."""

import asyncio
import os
import shutil
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from structlog.testing import capture_logs

from pixy.errors import StartError, Unavailable
from pixy.peers import PeerCertificates, PeerOptions, TcpNetwork
from pixy.peers.tcp import _OPENING_MAX
from tests.fakes.odd_files import odd_file
from tests.fakes.waiting import until
from tests.peers.certificates import make_authority, make_node_certificate
from tests.peers.descriptors import Descriptors
from tests.peers.support import CLUSTER_ID, LOOPBACK, PeerNode, peer_nodes

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
OPTIONS = PeerOptions(address=LOOPBACK, mutual_tls=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    for authority, names in (("ours", ("one", "two", "later")), ("theirs", ("stranger",))):
        make_authority(folder, authority)
        for name in names:
            make_node_certificate(folder, name, authority)
    return folder


def network_of(folder: Path, name: str, authority: str = "ours") -> TcpNetwork:
    return TcpNetwork(
        PeerCertificates(folder / f"{name}.pem", folder / f"{name}.key", folder / f"{authority}.pem")
    )


def run(new_loop: Callable[[], Any], scenario: Callable[[], Awaitable[None]]) -> None:
    loop = new_loop()
    unhandled: list[Any] = []
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    try:
        loop.run_until_complete(scenario())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
    assert unhandled == []


@pytest.mark.slow
@pytest.mark.parametrize("new_loop", LOOPS)
def test_messages_and_calls_pass_over_tls(new_loop: Any, folder: Path) -> None:
    async def scenario() -> None:
        networks = [network_of(folder, "one"), network_of(folder, "two")]
        async with peer_nodes(2, OPTIONS, networks=networks) as (one, two):
            for size in (0, 10, 100_000, 3_000_000):
                assert one.channel.send(2, 1, [bytes(size)])
            await until(lambda: len(two.messages) == 4)
            large = os.urandom(5 << 20)
            assert await two.channel.call(1, 3, large, 60.0, bulk=True) == b"2 3 " + large

    run(new_loop, scenario)


@pytest.mark.slow
@pytest.mark.parametrize("new_loop", LOOPS)
@pytest.mark.parametrize("dials", ["stranger", "nobody"])
def test_a_peer_without_a_certificate_of_the_authority_is_refused(
    new_loop: Any, folder: Path, dials: str
) -> None:
    async def scenario() -> None:
        stranger = TcpNetwork() if dials == "nobody" else network_of(folder, "stranger")
        networks = [network_of(folder, "one"), stranger]
        async with peer_nodes(2, OPTIONS, networks=networks, connected=False) as (one, two):
            with capture_logs() as logs:
                with pytest.raises(Unavailable):
                    await two.channel.ask(one.address, 10.0)
                await until(lambda: any("TLS" in entry["event"] for entry in logs))
            with pytest.raises(Unavailable):
                await one.channel.ask(two.address, 10.0)

    run(new_loop, scenario)


@pytest.mark.slow
@pytest.mark.parametrize("new_loop", LOOPS)
def test_the_descriptor_of_a_failed_handshake_is_closed_once(
    new_loop: Any, folder: Path, tmp_path: Path
) -> None:
    async def scenario() -> None:
        network, descriptors = network_of(folder, "one"), Descriptors(tmp_path)
        listening = await network.listen(asyncio.Protocol, LOOPBACK)
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", listening.address.port)
            writer.write(b"no TLS at all")
            await asyncio.wait({asyncio.ensure_future(descriptors.take())})
            await reader.read()
            writer.close()
            await descriptors.take()
        await listening.close()
        descriptors.check()

    with capture_logs() as logs:
        run(new_loop, scenario)
    (line,) = [each for each in logs if "has failed in its TLS handshake" in each["event"]]
    assert line["reason"]


@pytest.mark.slow
class HalfOpen:
    """Connections that do not finish their TLS handshake.

    Args:
        said: bytes of each.
    """

    def __init__(self, said: bytes) -> None:
        self._said = said
        self._sockets: list[socket.socket] = []

    async def add(self, port: int, count: int, host: str) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(count):
            one = socket.socket()
            one.setblocking(False)
            one.bind((host, 0))
            await loop.sock_connect(one, ("127.0.0.1", port))
            one.send(self._said)
            self._sockets.append(one)

    @property
    def open(self) -> int:
        """Those that the other side has not closed."""
        return sum(map(_is_open, self._sockets))

    def close(self) -> None:
        for one in self._sockets:
            one.close()


def _is_open(one: socket.socket) -> bool:
    try:
        return one.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("new_loop", LOOPS)
@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x40\x00"], ids=["silent", "half a hello"])
def test_half_open_handshakes_are_bounded_in_number_and_by_address(
    new_loop: Any, folder: Path, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pixy.peers.tcp.TLS_HANDSHAKE_S", 60.0)

    async def scenario() -> None:
        half = HalfOpen(said)
        async with peer_nodes(
            2, OPTIONS, networks=[network_of(folder, "one"), network_of(folder, "two")]
        ) as (
            one,
            two,
        ):
            try:
                await half.add(one.address.port, 300, "127.0.0.1")
                await until(lambda: half.open == _OPENING_MAX // 2)
                await half.add(one.address.port, 300, "127.0.0.2")
                await until(lambda: half.open == _OPENING_MAX)
                two.channel.connect(1, one.address)
                await until(lambda: two.channel.is_connected(1))
            finally:
                half.close()

    run(new_loop, scenario)


@pytest.mark.slow
def test_a_peer_that_trusts_another_authority_refuses(folder: Path) -> None:
    async def scenario() -> None:
        networks = [network_of(folder, "one"), network_of(folder, "two", "theirs")]
        async with peer_nodes(2, OPTIONS, networks=networks, connected=False) as (one, two):
            with capture_logs() as logs:
                for _ in range(2):
                    with pytest.raises(Unavailable, match=r"(?i)certificate|verify"):
                        await two.channel.ask(one.address, 10.0)
                await until(lambda: bool(logs))
            (line,) = logs
            assert "as one does that does not trust the certificate of this node" in line["reason"]

    run(asyncio.new_event_loop, scenario)


def replaced(source: Path, target: Path) -> None:
    """Replace a file atomically."""
    shutil.copy(source, target.with_suffix(".new"))
    target.with_suffix(".new").replace(target)


@pytest.mark.slow
def test_certificates_that_change_are_used(folder: Path, tmp_path: Path) -> None:
    for kind in ("pem", "key"):
        replaced(folder / f"stranger.{kind}", tmp_path / f"used.{kind}")
    certificates = PeerCertificates(tmp_path / "used.pem", tmp_path / "used.key", folder / "ours.pem")

    async def scenario() -> None:
        networks = [network_of(folder, "one"), TcpNetwork(certificates)]
        async with peer_nodes(2, OPTIONS, networks=networks, connected=False) as (one, two):
            with pytest.raises(Unavailable):
                await two.channel.ask(one.address, 10.0)
            for kind in ("key", "pem"):
                replaced(folder / f"later.{kind}", tmp_path / f"used.{kind}")
            assert await two.channel.ask(one.address, 10.0) == one.shown
            await asyncio.wait([asyncio.ensure_future(ask_until_it_works(one, two))])
            replaced(folder / "ours.pem", tmp_path / "used.key")
            assert await two.channel.ask(one.address, 10.0) == one.shown

    run(asyncio.new_event_loop, scenario)


async def ask_until_it_works(one: PeerNode, two: PeerNode) -> None:
    """The certificates of a listening socket are read when a connection comes, for the next one."""
    assert await one.channel.ask(two.address, 10.0) == two.shown


def test_files_that_do_not_belong_together_keep_a_node_from_starting(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"cert_file .*one.pem and key_file .*two.key cannot be used"):
        PeerCertificates(folder / "one.pem", folder / "two.key", folder / "ours.pem")
    with pytest.raises(StartError, match=r"ca_file .*none.pem cannot be used"):
        PeerCertificates(folder / "one.pem", folder / "one.key", tmp_path / "none.pem")


@pytest.mark.parametrize("kind", ["fifo", "device", "directory", "large"])
@pytest.mark.parametrize("name", ["used.pem", "used.key", "used-ca.pem"])
@pytest.mark.timeout(20)
def test_a_file_that_becomes_none_leaves_the_old_certificates(
    folder: Path, tmp_path: Path, name: str, kind: str
) -> None:
    """To open a FIFO waits for a writer, and certificates are read on the event loop."""
    for source, used in (("one.pem", "used.pem"), ("one.key", "used.key"), ("ours.pem", "used-ca.pem")):
        replaced(folder / source, tmp_path / used)
    certificates = PeerCertificates(tmp_path / "used.pem", tmp_path / "used.key", tmp_path / "used-ca.pem")
    before = certificates.server(), certificates.client()
    odd_file(tmp_path / name, kind)
    with capture_logs() as logs:
        assert not certificates.maybe_reload()
    assert [entry["log_level"] for entry in logs] == ["error"]
    assert (certificates.server(), certificates.client()) == before


@pytest.mark.slow
@pytest.mark.parametrize("new_loop", LOOPS)
@pytest.mark.parametrize(
    ("uri", "is_accepted"),
    [
        ("pixy:default:1", True),
        (f"pixy:{CLUSTER_ID.hex()}:1", True),
        ("https://one.example", True),
        ("pixy:default:2", False),
        ("pixy:other:1", False),
    ],
)
def test_a_certificate_that_names_a_node_is_for_no_other(
    new_loop: Any, folder: Path, tmp_path: Path, uri: str, is_accepted: bool
) -> None:
    for kind in ("pem", "key"):
        shutil.copy(folder / f"ours.{kind}", tmp_path)
    make_node_certificate(tmp_path, "named", "ours", uri)

    async def scenario() -> None:
        networks = [network_of(tmp_path, "named"), network_of(folder, "two")]
        async with peer_nodes(2, OPTIONS, networks=networks, connected=False) as (one, two):
            one.connect(two)
            two.connect(one)
            if is_accepted:
                await until(lambda: one.ups == [2] and two.ups == [1])
            else:
                refusal = f"node 1 at node1:1 has the certificate of another node: it is for {uri}"
                await until(lambda: refusal in one.channel.trouble(2) and refusal in two.channel.trouble(1))

    run(new_loop, scenario)


@pytest.mark.slow
def test_an_authority_that_is_gone_from_its_file_is_trusted_no_more(folder: Path, tmp_path: Path) -> None:
    trusted = tmp_path / "trusted.pem"
    shutil.copy(folder / "ours.pem", trusted)
    certificates = PeerCertificates(folder / "one.pem", folder / "one.key", trusted)

    async def scenario() -> None:
        networks = [TcpNetwork(certificates), network_of(folder, "two")]
        async with peer_nodes(2, OPTIONS, networks=networks, connected=False) as (one, two):
            assert await one.channel.ask(two.address, 10.0) == two.shown
            replaced(folder / "theirs.pem", trusted)
            with pytest.raises(Unavailable, match=r"(?i)certificate|verify"):
                await one.channel.ask(two.address, 10.0)

    run(asyncio.new_event_loop, scenario)
