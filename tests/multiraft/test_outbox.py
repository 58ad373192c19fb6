"""Messages to other nodes leave together, once per iteration of the event loop."""

import asyncio
from collections.abc import Sequence

from pixy.multiraft.outbox import Outbox
from pixy.raft import Message, MessageType

Sent = list[tuple[int, list[tuple[int, int]]]]
"""Peer of each call, with raft group and index of its messages."""


def outbox_to(sent: Sent) -> Outbox:
    def send(peer: int, messages: Sequence[tuple[int, Message]]) -> None:
        sent.append((peer, [(group, message.index) for group, message in messages]))

    return Outbox(send)


def message(to: int, index: int) -> Message:
    return Message(MessageType.APP, to, 1, 1, index=index)


async def test_messages_of_all_groups_to_a_peer_leave_together_and_in_order() -> None:
    sent: Sent = []
    outbox = outbox_to(sent)
    outbox.post(7, [message(2, 1), message(3, 2)])
    outbox.post(8, [message(2, 3)])
    assert sent == []
    await asyncio.sleep(0)
    assert sent == [(2, [(7, 1), (8, 3)]), (3, [(7, 2)])]


async def test_each_iteration_sends_its_own_messages() -> None:
    sent: Sent = []
    outbox = outbox_to(sent)
    for index in (1, 2):
        outbox.post(7, [message(2, index)])
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sent == [(2, [(7, 1)]), (2, [(7, 2)])]


async def test_what_is_posted_while_others_are_sent_leaves_later() -> None:
    sent: Sent = []

    def send(peer: int, messages: Sequence[tuple[int, Message]]) -> None:
        sent.append((peer, [(group, message.index) for group, message in messages]))
        if len(sent) == 1:
            outbox.post(7, [message(3, 2)])

    outbox = Outbox(send)
    outbox.post(7, [message(2, 1)])
    await asyncio.sleep(0)
    assert sent == [(2, [(7, 1)])]
    await asyncio.sleep(0)
    assert sent == [(2, [(7, 1)]), (3, [(7, 2)])]


async def test_without_messages_nothing_is_sent() -> None:
    sent: Sent = []
    outbox = outbox_to(sent)
    outbox.post(7, [])
    await asyncio.sleep(0)
    assert sent == []


async def test_after_a_stop_nothing_leaves() -> None:
    sent: Sent = []
    outbox = outbox_to(sent)
    outbox.post(7, [message(2, 1)])
    outbox.stop()
    outbox.post(7, [message(2, 2)])
    await asyncio.sleep(0)
    assert sent == []
