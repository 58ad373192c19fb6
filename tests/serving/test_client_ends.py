"""pixy/serving/client_ends.py: clients that have closed their side."""

import socket
from collections.abc import Callable
from contextlib import ExitStack

from pixy.serving.client_ends import ClientEnds

Pair = tuple[socket.socket, socket.socket]


class Client:
    """The transport of a client."""

    client_left = False


def watched(client_ends: ClientEnds, stack: ExitStack) -> tuple[Client, Pair]:
    """A client with its connection: the server's end and its own."""
    pair = socket.socketpair()
    for end in pair:
        stack.enter_context(end)
    client = Client()
    client_ends.watch(pair[0].fileno(), client)
    return client, pair


def test_one_question_tells_of_all_who_have_left() -> None:
    with ExitStack() as stack:
        client_ends = ClientEnds()
        clients = [watched(client_ends, stack) for _ in range(200)]
        for _, (_, end) in clients[::2]:
            end.close()
        client_ends.ask()
        assert [client.client_left for client, _ in clients] == [True, False] * 100


def test_an_answer_holds_until_time_has_passed_or_a_client_comes() -> None:
    with ExitStack() as stack:
        client_ends = ClientEnds()
        found = [client_ends.asked]
        changes: list[Callable[[], object]] = [
            client_ends.ask,
            lambda: watched(client_ends, stack),
            client_ends.ask,
            client_ends.expire,
        ]
        for change in changes:
            change()
            found.append(client_ends.asked)
        assert found == [False, True, False, True, False]


def test_the_end_of_a_client_is_not_that_of_the_next_one_with_its_descriptor() -> None:
    with ExitStack() as stack:
        client_ends = ClientEnds()
        former, (server, end) = watched(client_ends, stack)
        descriptor = server.fileno()
        end.close()
        server.close()
        later, (server, end) = watched(client_ends, stack)
        assert server.fileno() == descriptor
        client_ends.forget(descriptor, former)
        client_ends.ask()
        assert [former.client_left, later.client_left] == [False, False]
        end.close()
        client_ends.ask()
        assert [former.client_left, later.client_left] == [False, True]


def test_nobody_is_told_who_is_forgotten() -> None:
    with ExitStack() as stack:
        client_ends = ClientEnds()
        client, (server, end) = watched(client_ends, stack)
        client_ends.forget(server.fileno(), client)
        end.close()
        client_ends.ask()
        assert not client.client_left
