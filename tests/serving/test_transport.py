"""Reports of a transport about its socket."""

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from pixy.serving.transport import Transport
from tests.serving.support import FakeTransport

# The server's and the client's end of a connection.
Pair = tuple[socket.socket, socket.socket]


class _SocketTransport(FakeTransport):
    """A transport of a socket."""

    def __init__(self, below: socket.socket) -> None:
        super().__init__()
        self._below = below

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._below if name == "socket" else default


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


def _made(below: socket.socket) -> Transport:
    transport = Transport(secure=False)
    transport.made(_SocketTransport(below))
    return transport


def test_a_client_is_there_until_it_closes(pair: Pair) -> None:
    server, client = pair
    transport = _made(server)
    assert transport.has_client()
    client.send(b"unread")
    assert transport.has_client()
    client.close()
    assert not transport.has_client()
    assert not transport.has_client()


def test_a_client_is_gone_once_it_has_ended_its_output(
    pair: Pair,
) -> None:
    server, client = pair
    transport = _made(server)
    client.shutdown(socket.SHUT_WR)
    assert not transport.has_client()


def test_a_closed_socket_has_no_client_even_if_another_one_has_its_descriptor(
    pair: Pair,
) -> None:
    server, client = pair
    transport = _made(server)
    assert transport.has_client()
    descriptor = server.fileno()
    server.close()
    os.dup2(client.fileno(), descriptor)
    try:
        assert not transport.has_client()
    finally:
        os.close(descriptor)
