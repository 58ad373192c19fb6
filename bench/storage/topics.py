"""Creation, growth and deletion of topics with many partitions beside producers."""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from bench.storage.loads import spread
from bench.storage.monitor import watched
from bench.storage.node import TOPIC, create_topic, directory_of, fault, open_proxy, until
from pixy.errors import PixyError
from pixy.proxy import Proxy

Found = dict[str, Any]


async def delete_beside_produce(folder: str, partitions: int, seconds: float) -> Found:
    """A lone message every 2 ms to another topic: alone, and while a topic with a record in each
    partition is deleted.
    """
    found: Found = {}
    async with open_proxy(Path(folder)) as (proxy, backend):
        await create_topic(backend, 4, "busy")
        await _produce_every(proxy, "busy", until(0.5, sys.maxsize))
        with watched(found, watch=True):
            found["quiet"] = spread(await _produce_every(proxy, "busy", until(seconds, sys.maxsize)))
        topics = directory_of(Path(folder)) / "topics"
        there = len(os.listdir(topics))
        removed = asyncio.Event()
        with watched(found, watch=True):
            started = time.perf_counter()
            load = asyncio.create_task(_produce_every(proxy, "busy", lambda _: not removed.is_set()))
            await backend.delete_topic(TOPIC)
            found["answered"] = time.perf_counter() - started
            # There is no notification; names are listed off the loop, and not often.
            while len(await asyncio.to_thread(os.listdir, topics)) > there - partitions:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
            found["removed"] = time.perf_counter() - started
            removed.set()
            found["deleting"] = spread(await load)
    return found


async def grow(folder: str, partitions: int, seconds: float) -> Found:
    """A topic grows by `partitions` partitions, another one is created with as many and deleted,
    beside a message every 2 ms.
    """
    found: Found = {}
    async with open_proxy(Path(folder)) as (proxy, backend):
        await create_topic(backend, 1, "grown")
        await _produce_every(proxy, "grown", until(0.5, sys.maxsize))
        for what in ("alter", "create", "delete"):
            each: Found = {}
            with watched(each, watch=True):
                load = asyncio.create_task(_produce_every(proxy, "grown", until(seconds, sys.maxsize)))
                await asyncio.sleep(seconds / 10)
                started = time.perf_counter()
                if what == "alter":
                    await proxy.alter_topic("grown", partitions, {})
                elif what == "create":
                    await proxy.create_topic("made", partitions, {})
                else:
                    await proxy.delete_topic("made")
                each["answered"] = time.perf_counter() - started
                each["trip"] = spread(await load)
            found[what] = each
    return found


async def _produce_every(proxy: Proxy, topic: str, going_on: Callable[[int], bool]) -> list[float]:
    """Produce a lone message every 2 ms; returns their latencies."""
    loop = asyncio.get_running_loop()
    trips: list[float] = []

    def done(
        waiters: Sequence[asyncio.Future[float]], _partition: int, _offset: int, error: PixyError | None
    ) -> None:
        if error is not None:
            fault(error)
        for waiter in waiters:
            waiter.set_result(time.perf_counter())

    while going_on(len(trips)):
        answer: asyncio.Future[float] = loop.create_future()
        started = time.perf_counter()
        proxy.produce(topic, b"key", bytes(100), (), done, answer)
        trips.append(await answer - started)
        await asyncio.sleep(0.002)
    return trips


TOPICS: dict[str, Callable[..., Coroutine[Any, Any, Found]]] = {"delete": delete_beside_produce, "grow": grow}
