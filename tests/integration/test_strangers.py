"""Programs that are no nodes at the peer address of real daemons: with the shared secret and
without it they change nothing, learn nothing, leave nothing behind, and keep nobody out.
"""

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import TracebackType

import pytest

from pixy.cluster.peering.peer_messages import MessageKind, PeerMethod, encode_proposal, encode_raft
from pixy.entry_ids import ProposalId
from pixy.multiraft.proposals import Forwarded
from pixy.peers import Hello
from pixy.peers.first_handshake import FirstHandshake
from pixy.peers.frames import CALL, HANDSHAKE_BYTES_MAX, MESSAGE, REFUSED, PeerFrameReader, frame_head
from pixy.peers.handshake import Handshake
from pixy.peers.handshake_side import HandshakeSide, HandshakeState, Outgoing
from pixy.peers.hello import Greeting, LinkPurpose
from pixy.peers.stranger_log import LINES_MAX
from pixy.proto import kafkapixy_pb2 as pb
from pixy.raft import Message, MessageType
from pixy.storage import EntryType
from tests.fakes.waiting import until_blocking
from tests.integration.clusters import SECRET, Cluster, ClusterNode

pytestmark = [pytest.mark.process, pytest.mark.slow]

STRANGER = 77
SECONDS = 60.0
OVER = (HandshakeState.ACCEPTED, HandshakeState.REFUSED)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterNode]:
    """A cluster of one, which others may join."""
    with Cluster(tmp_path_factory.mktemp("attacked"), 1) as cluster:
        cluster.start()
        yield cluster[1]


def greeting(node_id: int, purpose: LinkPurpose, cluster_id: bytes = b"") -> Greeting:
    hello = Hello(
        cluster="default",
        cluster_id=cluster_id,
        node_id=node_id,
        secret=bytes(16),
        incarnation=1,
        flush_number=1,
        found_flush_number=1,
        process=os.urandom(8),
        join_hash=b"",
        address="127.0.0.1:9",
        version="1",
    )
    return Greeting(hello, purpose, os.urandom(32), True, (1, 1))


class Stranger:
    """A connection to the peer address of a node."""

    def __init__(self, node: ClusterNode) -> None:
        self._socket = connect(node)
        self._reader = PeerFrameReader(HANDSHAKE_BYTES_MAX)
        self._frames: list[Outgoing] = []

    def __enter__(self) -> "Stranger":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, kind: int, payload: bytes = b"", method: int = 0) -> None:
        with suppress(ConnectionError):
            self._socket.sendall(frame_head(kind, method, 1000, 1, [payload], len(payload)) + payload)

    def receive(self) -> Outgoing | None:
        """The next frame, None if the connection has ended."""
        while not self._frames:
            size = 0
            with suppress(ConnectionError):
                size = self._socket.recv_into(self._reader.buffer())
            if not size:
                return None
            self._frames += [(kind, bytes(payload)) for kind, *_, payload in self._reader.received(size)]
        return self._frames.pop(0)

    def shake_hands(self, side: HandshakeSide) -> HandshakeSide:
        """Dial with a handshake, as far as it goes."""
        frames: Sequence[Outgoing] = side.begin()
        while True:
            for frame in frames:
                self.send(*frame)
            if side.state in OVER:
                return side
            answer = self.receive()
            if answer is None:
                return side
            frames = side.receive(*answer)
            if side.state is HandshakeState.AWAITS_DECISION:
                frames = [*frames, *side.decide(None)]


def dialled(
    node: ClusterNode, own: Greeting, secret: bytes = SECRET.encode(), protocol: int = 2
) -> HandshakeSide:
    """The handshake of a connection, which is closed. Another one is made if the node has not even
    answered: strangers may have too many in a second.
    """
    until = time.monotonic() + SECONDS
    while True:
        side = dialled_once(node, own, secret, protocol)
        if side.state in (HandshakeState.ACCEPTED, HandshakeState.REFUSED) or time.monotonic() > until:
            return side
        time.sleep(0.1)


def dialled_once(node: ClusterNode, own: Greeting, secret: bytes, protocol: int) -> HandshakeSide:
    with Stranger(node) as stranger:
        return stranger.shake_hands(
            Handshake([secret], os.urandom(32), own) if protocol == 2 else FirstHandshake([secret], own)
        )


def cluster_id_of(node: ClusterNode) -> bytes:
    """As whoever has the shared secret may ask."""
    side = dialled(node, greeting(0, LinkPurpose.PASSING))
    assert side.peer is not None
    return side.peer.hello.cluster_id


def produce(node: ClusterNode) -> None:
    node.stub().Produce(pb.ProdRq(topic="t", message=b"m", key_undefined=True), timeout=SECONDS)


@pytest.mark.parametrize("purpose", [LinkPurpose.MAIN, LinkPurpose.BULK])
@pytest.mark.parametrize("protocol", [1, 2])
def test_a_node_that_nobody_registered_is_let_in_by_no_secret(
    node: ClusterNode, protocol: int, purpose: LinkPurpose
) -> None:
    own = greeting(STRANGER, purpose, cluster_id_of(node))
    side = dialled(node, own, protocol=protocol)
    assert side.state is HandshakeState.REFUSED
    expected = (
        f"node {STRANGER} is not known here yet"
        if protocol == 2
        else "protocol 1 is spoken here no more: a node that speaks it has no shared secret (cluster.secret_file)"
    )
    assert expected in side.reason
    produce(node)


def test_a_node_with_the_id_of_another_one_is_refused(node: ClusterNode) -> None:
    cluster_id = cluster_id_of(node)
    side = dialled(node, greeting(1, LinkPurpose.MAIN, cluster_id))
    assert side.state is HandshakeState.REFUSED
    assert "one of their data directories is a copy" in side.reason


def test_a_passing_connection_carries_no_raft_and_no_calls_but_to_join(node: ClusterNode) -> None:
    term = encode_raft([(1, Message(MessageType.HEARTBEAT, 1, STRANGER, 1 << 60, entries=[]))], 1)
    poison = encode_proposal(Forwarded(1, EntryType.COMMAND, b"\xff\xff", ProposalId(STRANGER, 1, 1)))
    frames = [
        *(
            (MESSAGE, b"".join(parts), kind)
            for parts, kind in ((term, MessageKind.RAFT), (poison, MessageKind.PROPOSALS))
        ),
        *((CALL, b"", method) for method in PeerMethod if method is not PeerMethod.JOIN),
    ]
    for kind, payload, method in frames:
        with Stranger(node) as stranger:
            own = greeting(STRANGER, LinkPurpose.PASSING, cluster_id_of(node))
            side = stranger.shake_hands(Handshake([SECRET.encode()], os.urandom(32), own))
            assert side.state is HandshakeState.ACCEPTED
            stranger.send(kind, payload, method)
            answer = stranger.receive()
            assert answer is not None
            expected = (
                b"on a connection for calls" if kind == MESSAGE else b"only nodes of this cluster may call"
            )
            assert expected in answer[1]
    produce(node)
    node.restart()
    produce(node)


def test_strangers_leave_nothing_behind(node: ClusterNode) -> None:
    cluster_id = cluster_id_of(node)
    descriptors, memory = open_files(node), node.rss_bytes()
    lines = len(node.log().splitlines())
    for number in range(400):
        purpose = LinkPurpose.PASSING if number % 2 else LinkPurpose.MAIN
        dialled_once(node, greeting(STRANGER + number, purpose, cluster_id), SECRET.encode(), 2)
    until_blocking(lambda: open_files(node) <= descriptors, node.log)
    assert node.rss_bytes() < memory + (16 << 20)
    produce(node)
    assert len(node.log().splitlines()) - lines <= 2 * LINES_MAX, "two minutes at most"


def open_files(node: ClusterNode) -> int:
    return len(os.listdir(f"/proc/{node.process.pid}/fd"))


def test_what_strangers_say_does_not_fill_the_log(node: ClusterNode) -> None:
    before = len(node.log().splitlines())
    for number in range(300):
        with Stranger(node) as stranger:
            stranger.send(REFUSED, b"%08d\x1b]0;title\x07\x1b[2J" % number + b"A" * 1900)
    produce(node)
    lines = (node.folder / "log").read_text().splitlines()[before:]
    assert len(lines) <= 2 * LINES_MAX + 5, "two minutes at most"
    assert all(len(line) < 600 for line in lines)
    assert "\x1b]0" not in "".join(lines)
    assert "\x1b[2J" not in "".join(lines)


def test_a_stranger_without_the_secret_learns_nothing(node: ClusterNode) -> None:
    for protocol in (1, 2):
        for purpose in LinkPurpose:
            side = dialled(node, greeting(STRANGER, purpose), b"guessed".ljust(32), protocol)
            assert side.state is HandshakeState.REFUSED
            assert side.peer is None


def test_silent_connections_keep_nobody_out(node: ClusterNode) -> None:
    with Silence(node) as silence:
        assert silence.is_full.wait(SECONDS)
        for _ in range(20):
            assert dialled(node, greeting(0, LinkPurpose.PASSING)).state is HandshakeState.ACCEPTED


class Silence:
    """Connections to the peer address of a node, which say nothing: another one every ten
    milliseconds, of which the newest 200 stay.

    Attributes:
        is_full: as many are there.
    """

    def __init__(self, node: ClusterNode) -> None:
        self._node = node
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep)
        self.is_full = threading.Event()

    def __enter__(self) -> "Silence":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _keep(self) -> None:
        connections: deque[socket.socket] = deque()
        try:
            while not self._stop.wait(0.01):
                connections.append(connect(self._node))
                if len(connections) > 200:
                    self.is_full.set()
                    connections.popleft().close()
        finally:
            for each in connections:
                each.close()


def connect(node: ClusterNode) -> socket.socket:
    """A connection to the peer address of a node."""
    host, port = node.config["peer_addr"].rsplit(":", 1)
    return socket.create_connection((host, int(port)), SECONDS)
