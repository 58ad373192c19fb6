"""Which broker coordinates which consumer group, or which transactional id, and how to ask it.

A coordinator may move at any moment: its broker ends, is cut off, or hands its groups over. An answer that says so, or no answer, makes it
unknown; whoever asks next finds it anew. `ask` does that by itself for some seconds, because everything that is asked through it may be
asked twice; a member of a group, which has to look after itself meanwhile, uses `ask_once`.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from pixy.backend.kafka.client import CONTROL, KafkaClient
from pixy.backend.kafka.errors import BrokerFault, error_for_code
from pixy.errors import PixyError, Unavailable
from pixy.kafka_protocol.group_messages import FIND_COORDINATOR, GROUP_COORDINATOR, TRANSACTION_COORDINATOR
from pixy.retries import Attempts, Backoff

__all__ = ["PATIENCE_S", "Coordinators", "may_pass"]

_MOVED = frozenset({14, 15, 16})
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR"""

PATIENCE_S = 10.0
"""How long a coordinator is looked for on behalf of one request."""

_PAUSE_MIN_S = 0.05
_PAUSE_MAX_S = 1.0
_GROUPS_MAX = 10_000
"""Groups whose coordinator is remembered; what exceeds it is looked up again."""

CodeOf = Callable[[Any], int]
"""The error code of an answer that concerns the group as a whole."""


def top_code(answer: Any) -> int:
    """The code that most answers about groups have."""
    code: int = answer.error_code
    return code


_KINDS = {GROUP_COORDINATOR: "the consumer group", TRANSACTION_COORDINATOR: "the transactional id"}


class Coordinators:
    """The coordinators of consumer groups, or of transactional ids.

    Args:
        client: the cluster's brokers.
        kind: which of the two. What is called `group` here may be a transactional id then.
        later: codes that `ask` takes for "not yet" besides those that tell of the coordinator itself.
        pause_s: the first pause between two attempts; it doubles.
    """

    def __init__(
        self,
        client: KafkaClient,
        kind: int = GROUP_COORDINATOR,
        later: frozenset[int] = frozenset(),
        pause_s: float = _PAUSE_MIN_S,
    ) -> None:
        self._client = client
        self._kind = kind
        self._later = later
        self._pause_s = pause_s
        self._nodes: dict[str, int] = {}

    async def ask(
        self,
        group: str,
        request: Any,
        what: str,
        code_of: CodeOf = top_code,
        patience_s: float = PATIENCE_S,
        later: frozenset[int] = frozenset(),
    ) -> Any:
        """Ask the coordinator of a group, wherever it moves meanwhile. For what may be done twice.

        Args:
            what: what is asked, for errors.
            code_of: finds the code in the answer that tells of the coordinator.
            later: further codes that are taken for "not yet".

        Raises:
            Unavailable: there was none for `patience_s` seconds.
        """

        async def ask() -> Any:
            answer = await self.ask_once(group, request, what, code_of)
            if (code := code_of(answer)) in later:
                raise _Later(str(error_for_code(code, what)))
            return answer

        return await _patiently(ask, patience_s, self._pause_s)

    async def ask_broker(self, node_id: int, request: Any, what: str, code_of: CodeOf = top_code) -> Any:
        """Ask a broker about the groups that it coordinates, when it has read what it must know of them.

        Raises:
            Unavailable: it was not ready for `PATIENCE_S`, or does not answer.
        """

        async def ask() -> Any:
            answer = await self._client.send(node_id, request)
            code = code_of(answer)
            if code in _MOVED:
                raise _Moved(str(error_for_code(code, what)))
            return answer

        return await _patiently(ask, PATIENCE_S, self._pause_s)

    async def ask_once(
        self,
        group: str,
        request: Any,
        what: str,
        code_of: CodeOf = top_code,
        *,
        purpose: str = CONTROL,
        client_id: str | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Ask the coordinator of a group; the answer is the coordinator's for sure, its code may be any other one.

        Raises:
            Unavailable: there is none at the moment, or it did not answer.
        """
        node_id = await self.find(group)
        try:
            answer = await self._client.send(node_id, request, purpose, timeout_s, client_id)
        except BrokerFault:
            self._nodes.pop(group, None)
            raise
        code = code_of(answer)
        if code in _MOVED:
            self._nodes.pop(group, None)
            raise _Moved(str(error_for_code(code, what)))
        if code in self._later:
            raise _Later(str(error_for_code(code, what)))
        return answer

    async def find(self, group: str) -> int:
        """Node id of the coordinator of a group.

        Raises:
            Unavailable: there is none at the moment.
        """
        known = self._nodes.get(group)
        return await self._find(group) if known is None else known

    async def _find(self, group: str) -> int:
        answer = await self._client.send_any(FIND_COORDINATOR(group, self._kind))
        what = f"find the coordinator of {_KINDS[self._kind]} {group}"
        if answer.error_code in _MOVED:
            raise _Moved(str(error_for_code(answer.error_code, what)))
        if answer.error_code:
            raise error_for_code(answer.error_code, what, answer.error_message)
        node_id: int = answer.node_id
        if node_id not in self._client.metadata.brokers:
            await self._client.refresh(())
        if len(self._nodes) >= _GROUPS_MAX:
            del self._nodes[next(iter(self._nodes))]
        self._nodes[group] = node_id
        return node_id


async def _patiently(ask: Callable[[], Awaitable[Any]], patience_s: float, pause_s: float) -> Any:
    attempts = Attempts(patience_s, Backoff(pause_s, _PAUSE_MAX_S))
    while True:
        try:
            return await ask()
        except Unavailable as error:
            if not may_pass(error):
                raise
            await attempts.again(error)


class _Moved(Unavailable):
    """The coordinator is somewhere else, or not yet there."""


class _Later(Unavailable):
    """The coordinator asks for patience."""


def may_pass(error: PixyError) -> bool:
    """Whether it is only the coordinator that is missing."""
    return isinstance(error, (_Moved, _Later, BrokerFault))
