"""The load balancer gives each target its turn, and leaves nothing open."""

import gc
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from tests.integration.balancer import Balancer

SECONDS = 30.0
TARGETS = 2


@pytest.fixture
def targets() -> Iterator[list[socket.socket]]:
    """Sockets that listen."""
    with ExitStack() as sockets:
        listening = [sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(TARGETS)]
        for each in listening:
            each.settimeout(SECONDS)
        yield listening


def balanced(targets: list[socket.socket]) -> Balancer:
    return Balancer(["{}:{}".format(*each.getsockname()) for each in targets])


def dialled(balancer: Balancer) -> socket.socket:
    host, _, port = balancer.address.rpartition(":")
    return socket.create_connection((host, int(port)), SECONDS)


def talk(balancer: Balancer, target: socket.socket) -> None:
    """Send a question through a new connection, and an answer back."""
    with dialled(balancer) as client, closing(target.accept()[0]) as accepted:
        client.sendall(b"question")
        assert accepted.recv(100) == b"question"
        accepted.sendall(b"answer")
        assert client.recv(100) == b"answer"


def test_bytes_go_to_each_target_in_turn_and_back(targets: list[socket.socket]) -> None:
    with balanced(targets) as balancer:
        for target in [*targets, *targets]:
            talk(balancer, target)
        assert balancer.accepted == [2, 2]


def test_a_target_that_does_not_listen_loses_its_turn(targets: list[socket.socket]) -> None:
    with balanced(targets) as balancer:
        targets[0].close()
        for _ in range(3):
            talk(balancer, targets[1])
        assert balancer.accepted == [0, 3]


@pytest.mark.slow
@pytest.mark.parametrize("is_answered", [True, False])
def test_connections_that_come_or_end_with_it_are_closed(
    targets: list[socket.socket], is_answered: bool
) -> None:
    for _ in range(20):
        with ExitStack() as sockets, balanced(targets) as balancer:
            for at in range(10):
                sockets.enter_context(dialled(balancer))
                if is_answered:
                    sockets.enter_context(targets[at % TARGETS].accept()[0])
            if is_answered:
                sockets.pop_all().close()
    gc.collect()  # what was not closed warns
