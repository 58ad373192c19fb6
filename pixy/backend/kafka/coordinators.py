"""Coordinators of consumer groups and of transactional ids: lookup and requests.

A coordinator may move at any moment: its broker stops, is partitioned, or hands its groups over. A
response that says so, or a missing one, drops it from the cache; the next request looks it up
again. `ask` retries for some seconds, because its requests may be executed more than once; a group
member, which has other duties meanwhile, uses `ask_once`.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from pixy.aio.retries import Attempts, Backoff
from pixy.backend.kafka.client import CONTROL, KafkaClient
from pixy.backend.kafka.errors import BrokerFault, error_for_code
from pixy.errors import PixyError, Unavailable
from pixy.kafka_protocol.group_messages import FIND_COORDINATOR, GROUP_COORDINATOR, TRANSACTION_COORDINATOR

_MOVED = frozenset({14, 15, 16})
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR"""

PATIENCE_S = 10.0
"""Time limit for the retries of one request."""

_FIND_S = 3.0
"""Time limit for each broker that is asked where a coordinator is: another one knows it too."""
_PAUSE_MIN_S = 0.05
_PAUSE_MAX_S = 1.0
_GROUPS_MAX = 10_000
"""Size of the cache of coordinators."""

CodeOf = Callable[[Any], int]
"""Extracts the error code that concerns the whole group from a response."""


def top_code(answer: Any) -> int:
    """The error code at the top level of a response."""
    code: int = answer.error_code
    return code


_KINDS = {GROUP_COORDINATOR: "the consumer group", TRANSACTION_COORDINATOR: "the transactional id"}


class Coordinators:
    """The coordinators of consumer groups, or of transactional ids.

    Args:
        client: the cluster's brokers.
        kind: which of the two; `group` below is a transactional id for the second.
        later: error codes that `ask` retries, besides those of a coordinator that has moved.
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
        purpose: str = CONTROL,
    ) -> Any:
        """Send a request to the coordinator of a group and retry. Only for requests that may be
        executed twice.

        Args:
            what: the request in words, for errors.
            code_of: extracts the error code of the coordinator from the response.
            later: further error codes to retry.
            purpose: selects the connection.

        Raises:
            Unavailable: no coordinator answered for `patience_s` seconds.
        """

        async def ask() -> Any:
            answer = await self.ask_once(group, request, what, code_of, purpose=purpose)
            if (code := code_of(answer)) in later:
                raise _Later(str(error_for_code(code, what)))
            return answer

        return await _patiently(ask, patience_s, self._pause_s)

    async def ask_broker(self, node_id: int, request: Any, what: str, code_of: CodeOf = top_code) -> Any:
        """Send a request about the groups that a broker coordinates, and retry while it is loading
        them.

        Raises:
            Unavailable: it was not ready for `PATIENCE_S` seconds, or does not answer.
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
        """Send a request to the coordinator of a group, once. The response may have any other error
        code.

        Raises:
            Unavailable: there is no coordinator at the moment, or it did not answer.
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
        answer = await self._client.send_any(
            FIND_COORDINATOR(group, self._kind), timeout_s=_FIND_S, repeatable=True
        )
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
    """The coordinator has moved, or is not available yet."""


class _Later(Unavailable):
    """The coordinator asks for a retry."""


def may_pass(error: PixyError) -> bool:
    """True if the error only concerns the availability of the coordinator."""
    return isinstance(error, (_Moved, _Later, BrokerFault))
