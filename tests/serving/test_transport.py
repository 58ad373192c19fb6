"""Reports of a transport about its socket."""

import socket
from collections.abc import Iterator

import pytest

from pixy.serving.client_ends import ClientEnds
from pixy.serving.transport import Transport
from tests.serving.support import FakeTransport

# The server's and the client's end of a connection.
Pair = tuple[socket.socket, socket.socket]


def _tcp_pair() -> Pair:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        return listener.accept()[0], client


@pytest.fixture(params=[_tcp_pair, socket.socketpair], ids=["tcp", "unix"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A connection of each kind."""
    ends = request.param()
    yield ends
    for end in ends:
        end.close()


def _made(below: socket.socket, client_ends: ClientEnds) -> Transport:
    transport = Transport(client_ends, secure=False)
    fake = FakeTransport()
    fake.below = below
    transport.made(fake)
    return transport


def test_a_client_is_there_until_it_closes(pair: Pair) -> None:
    server, client = pair
    client_ends = ClientEnds()
    transport = _made(server, client_ends)
    assert transport.has_client()
    client.send(b"unread")
    client_ends.expire()
    assert transport.has_client()
    client.close()
    client_ends.expire()
    assert not transport.has_client()
    client_ends.expire()
    assert not transport.has_client()


def test_a_client_is_gone_once_it_has_ended_its_output(pair: Pair) -> None:
    server, client = pair
    transport = _made(server, ClientEnds())
    client.shutdown(socket.SHUT_WR)
    assert not transport.has_client()


def test_a_client_that_is_asked_for_first_is_told_at_once(pair: Pair) -> None:
    server, client = pair
    other, other_client = socket.socketpair()
    with other, other_client:
        client_ends = ClientEnds()
        assert _made(other, client_ends).has_client()
        client.close()
        assert not _made(server, client_ends).has_client()


def test_a_transport_without_a_socket_has_a_client_until_it_closes() -> None:
    transport = Transport(ClientEnds(), secure=False)
    transport.made(FakeTransport())
    assert transport.has_client()
    transport.eof = True
    assert not transport.has_client()
