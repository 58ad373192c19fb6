"""pixy/address_turns.py: one piece of work at a time for each address."""

import asyncio

import pytest

from pixy.address_turns import AddressTurns


async def test_an_address_has_one_turn_at_a_time_in_order_and_others_do_not_wait() -> None:
    turns, go_on = AddressTurns(), asyncio.Event()
    begun: list[str] = []

    async def work(address: str, name: str) -> None:
        async with turns.holding(address):
            begun.append(name)
            await go_on.wait()

    tasks = [asyncio.create_task(work(name[0], name)) for name in ("a1", "a2", "a3", "b1")]
    await asyncio.sleep(0)
    assert begun == ["a1", "b1"]
    tasks[1].cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await tasks[1]
    await asyncio.gather(tasks[0], *tasks[2:])
    assert begun == ["a1", "b1", "a3"]


async def test_nothing_is_kept_of_addresses_whose_turns_have_ended() -> None:
    turns = AddressTurns()

    async def work() -> None:
        async with turns.holding("a"):
            await asyncio.sleep(0)

    first, second = asyncio.create_task(work()), asyncio.create_task(work())
    await asyncio.sleep(0)
    await first
    # Its turn has begun, but it has not noticed.
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    assert turns._turns == {}
    with pytest.raises(ZeroDivisionError):
        async with turns.holding("b"):
            raise ZeroDivisionError
    assert turns._turns == {}
