"""Cut links between network namespaces lose packets in one direction, and open connections go on
after it.
"""

import ctypes
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.integration.namespaces import Namespaces

pytestmark = pytest.mark.process

SECONDS = 30.0
A_WHILE_S = 0.2
"""Nothing that is cut off may arrive in this time."""
CLONE_NEWNET = 0x40000000


@pytest.fixture
def namespaces() -> Iterator[Namespaces]:
    namespaces = Namespaces(2)
    yield namespaces
    namespaces.close()


def socket_of(namespaces: Namespaces, node: int) -> socket.socket:
    """A socket in the namespace of a node."""

    def make() -> socket.socket:
        (path,) = [
            word.removeprefix("--net=") for word in namespaces.prefix(node) if word.startswith("--net=")
        ]
        descriptor = os.open(path, os.O_RDONLY)
        try:
            assert ctypes.CDLL(None).setns(descriptor, CLONE_NEWNET) == 0
        finally:
            os.close(descriptor)
        made = socket.socket()
        made.settimeout(SECONDS)
        return made

    # A thread of its own: the namespace belongs to the thread.
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(make).result()


def address(namespaces: Namespaces, node: int) -> tuple[str, int]:
    host, port = namespaces.advertised(node).split(":")
    return host, int(port)


def test_a_cut_link_loses_one_direction(namespaces: Namespaces) -> None:
    with closing(socket_of(namespaces, 2)) as listener, closing(socket_of(namespaces, 1)) as one:
        listener.bind(address(namespaces, 2))
        listener.listen()
        one.connect(address(namespaces, 2))
        with closing(listener.accept()[0]) as two:
            two.settimeout(SECONDS)
            namespaces.cut(1, 2)
            one.sendall(b"1")
            two.sendall(b"2")
            assert one.recv(1) == b"2"
            with pytest.raises(TimeoutError):
                receive_soon(two)
            namespaces.heal()
            assert two.recv(1) == b"1"


@pytest.mark.parametrize("cut", [(1, 2), (2, 1)])
def test_connections_over_a_cut_link_get_no_answer(namespaces: Namespaces, cut: tuple[int, int]) -> None:
    with closing(socket_of(namespaces, 2)) as listener, closing(socket_of(namespaces, 1)) as one:
        listener.bind(address(namespaces, 2))
        listener.listen()
        namespaces.cut(*cut)
        one.settimeout(A_WHILE_S)
        with pytest.raises(TimeoutError):
            one.connect(address(namespaces, 2))
        namespaces.heal()
        with closing(socket_of(namespaces, 1)) as again:
            again.connect(address(namespaces, 2))


def test_namespaces_end_with_the_network(namespaces: Namespaces) -> None:
    keepers = [
        Path(word.removeprefix("--net=")) for word in namespaces.prefix(1) if word.startswith("--net=")
    ]
    other = Namespaces(1)  # no conflict with the first one
    other.close()
    assert all(path.exists() for path in keepers)


def receive_soon(end: socket.socket) -> bytes:
    end.settimeout(A_WHILE_S)
    try:
        return end.recv(1)
    finally:
        end.settimeout(SECONDS)
