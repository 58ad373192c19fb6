"""Times at which followers are told of a commit index, in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pixy.multiraft.commit_messages import CommitMessages
from tests.sim.loop import VirtualLoop

DELAY_S = 0.01


class Group:
    """The part of a raft group that commit messages use."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self.is_awaited = False
        self.last_index = 1
        log = SimpleNamespace(last_index=lambda: self.last_index)
        self.node: Any = SimpleNamespace(pass_commit_on=tell, raft=SimpleNamespace(log=log))


class Groups:
    """Two groups, and the times at which their followers are told."""

    def __init__(self, delay_s: float = DELAY_S) -> None:
        self.told: list[tuple[str, float]] = []
        self.messages = CommitMessages(delay_s, lambda _: None)
        self.one, self.other = self._group("one"), self._group("other")

    def _group(self, name: str) -> Any:
        def tell() -> None:
            self.told.append((name, round(asyncio.get_running_loop().time(), 6)))

        return Group(tell)


def in_virtual_time(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:

            async def main() -> None:
                await test()

            runner.run(main())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@in_virtual_time
async def test_followers_are_told_after_the_delay() -> None:
    groups = Groups()
    groups.messages.due(groups.one)
    await asyncio.sleep(0.004)
    groups.messages.due(groups.other)
    await asyncio.sleep(1)
    assert groups.told == [("one", 0.01), ("other", 0.014)]


@in_virtual_time
async def test_a_group_whose_entries_follow_each_other_is_told_once_they_end() -> None:
    groups = Groups()
    groups.messages.due(groups.other)
    for index in range(20):
        groups.one.last_index = index
        groups.messages.due(groups.one)
        await asyncio.sleep(0.003)
    await asyncio.sleep(1)
    assert groups.told == [("other", 0.01), ("one", 0.067)]


@in_virtual_time
async def test_nothing_but_an_entry_puts_off_what_is_due() -> None:
    groups = Groups()
    for _ in range(4):
        groups.messages.due(groups.one)
        await asyncio.sleep(0.003)
    assert groups.told == [("one", 0.01)]
    await asyncio.sleep(1)
    assert groups.told == [("one", 0.01)]


@in_virtual_time
async def test_whoever_waits_is_told_at_once_and_others_are_not() -> None:
    groups = Groups()
    groups.messages.due(groups.other)
    groups.messages.due(groups.one)
    groups.one.is_awaited = True
    groups.messages.due(groups.one)
    groups.messages.due(groups.one)
    await asyncio.sleep(1)
    assert groups.told == [("one", 0.0), ("other", 0.01)]
    assert not groups.one.is_awaited


@in_virtual_time
async def test_what_cannot_wait_is_told_within_the_call_and_once() -> None:
    groups = Groups()
    groups.messages.due(groups.other)
    groups.messages.due(groups.one)
    groups.messages.tell(groups.one)
    assert groups.told == [("one", 0.0)]
    await asyncio.sleep(1)
    assert groups.told == [("one", 0.0), ("other", 0.01)]


@in_virtual_time
async def test_without_a_delay_all_are_told_at_once() -> None:
    groups = Groups(delay_s=0.0)
    groups.messages.due(groups.one)
    groups.messages.due(groups.one)
    await asyncio.sleep(1)
    assert groups.told == [("one", 0.0)]


@pytest.mark.parametrize("is_removed", [False, True])
def test_nobody_is_told_after_the_end(is_removed: bool) -> None:
    @in_virtual_time
    async def test() -> None:
        groups = Groups()
        groups.messages.due(groups.one)
        if is_removed:
            groups.one.node = None
        else:
            groups.messages.stop()
        await asyncio.sleep(1)
        assert groups.told == []

    test()
