"""Questions that many callers ask at the same time, each of them about a key."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import Generic, TypeVar

from pixy.aio.tasks import Tasks
from pixy.errors import PixyError

K = TypeVar("K")
A = TypeVar("A")

_KEYS_AT_ONCE = 500
_ANSWERS_AT_ONCE = 20
"""Answers in one iteration of the loop: each wakes its caller."""


class SharedQuestions(Generic[K, A]):
    """One question at a time, about all keys that callers wait for.

    Callers that come while it is under way share the next one: an answer may be older than the
    event that made them ask.

    Args:
        ask: asks about some keys; returns the answers by key, or raises PixyError.
        tasks: of the questions.
        name: of their task.
        on_idle: called when nobody waits any more.
    """

    __slots__ = ("_ask", "_asked", "_asking", "_later", "_name", "_on_idle", "_tasks")

    def __init__(
        self,
        ask: Callable[[Sequence[K]], Awaitable[Mapping[K, A]]],
        tasks: Tasks,
        name: str,
        on_idle: Callable[[], object] = lambda: None,
    ) -> None:
        self._ask = ask
        self._tasks = tasks
        self._name = name
        self._on_idle = on_idle
        self._asking = False
        # Callers of the question that is under way, and by key those that wait for later ones.
        self._asked: deque[tuple[K, Callable[[A | None, PixyError | None], object]]] = deque()
        self._later: dict[K, list[Callable[[A | None, PixyError | None], object]]] = {}

    def ask(self, key: K, done: Callable[[A | None, PixyError | None], object]) -> None:
        """Ask about a key, then call `done` with the answer, None if there is none, or with an
        error.
        """
        self._later.setdefault(key, []).append(done)
        if not self._asking:
            self._asking = True
            self._tasks.spawn(self._answer(), self._name, self._abort)

    async def _answer(self) -> None:
        while self._later:
            keys = list(islice(self._later, _KEYS_AT_ONCE))
            self._asked.extend((key, done) for key in keys for done in self._later.pop(key))
            answers: Mapping[K, A] = {}
            error: PixyError | None = None
            try:
                answers = await self._ask(keys)
            except PixyError as failed:
                error = failed
            while self._asked:
                for _ in range(min(_ANSWERS_AT_ONCE, len(self._asked))):
                    key, done = self._asked.popleft()
                    done(answers.get(key), error)
                await asyncio.sleep(0)
        self._end()

    def _abort(self, reason: PixyError) -> None:
        """The task has been cancelled, or has failed."""
        left = [done for _, done in self._asked]
        left += [done for of_key in self._later.values() for done in of_key]
        self._asked.clear()
        self._later.clear()
        self._end()
        for done in left:
            done(None, reason)

    def _end(self) -> None:
        self._asking = False
        self._on_idle()
