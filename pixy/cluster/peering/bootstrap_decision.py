"""The first start of a node with a join list: it founds a cluster, or joins one.

A cluster is founded once, whatever is down: by the first node of the sorted list alone, and only
when all of the list have answered that they belong to none.

    the list's answers                                 this node
    -------------------------------------------------  ------------------------------------------
    some belong to one cluster                         joins there
    some belong to different clusters                  asks again: one of them has to go
    all belong to none, this node is the first         founds one, unless a node has dialled it that
                                                       may belong to one (`cluster_search`)
    all belong to none, another one is the first       asks again: that one founds
    some do not answer, or refuse; none has a cluster  asks again: they may belong to one

Joining is a call to any member, which registers the node under its secret: the same secret gets the
same id again, so a call that is repeated after a crash registers nobody twice.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

import structlog

from pixy.errors import PixyError
from pixy.peers import Address, Hello

log = structlog.get_logger(__name__)

_ASK_TIMEOUT_S = 2.0
_PAUSE_S = 0.2
_TELL_EVERY_S = 10.0


class Found(NamedTuple):
    """Found the cluster."""


class Join(NamedTuple):
    """Join the cluster of the node at this address."""

    address: Address


class Wait(NamedTuple):
    """Ask again."""

    reason: str


def decide(own: Hello, answers: Mapping[Address, Hello | str]) -> Found | Join | Wait:
    """Decide what a node without a cluster does; see the table of the module.

    Args:
        own: what it says of itself.
        answers: of each address in the join list: what the node there says, or why there is no
            answer.
    """
    unknown = []
    ours: list[Address] = []
    # The first node of each cluster.
    members: dict[bytes, Address] = {}
    for address, answer in sorted(answers.items()):
        if isinstance(answer, str):
            unknown.append(f"{address}: {answer}")
        elif answer.process == own.process:
            ours.append(address)
        elif answer.cluster_id:
            members.setdefault(answer.cluster_id, address)
    if len(members) > 1:
        found = " and ".join(f"{at} to {cluster_id.hex()}" for cluster_id, at in members.items())
        return Wait(f"nodes of the join list belong to different clusters: {found}")
    if members:
        return Join(*members.values())
    if unknown:
        return Wait(f"{len(unknown)} of the join list do not answer ({'; '.join(unknown)})")
    if not ours:
        return Wait("the join list does not name this node")
    first = min(answers)
    if len(ours) > 1:
        return Wait(f"the join list names this node twice: {' and '.join(map(str, ours))}")
    return Found() if ours[0] == first else Wait(f"{first} has to found the cluster")


class Formation:
    """Search for the cluster of a new node.

    Args:
        hello: what this node says of itself.
        join: the join list.
        ask: asks the node at an address what it is; raises OSError or PixyError.
        on_waiting: told why the search goes on.
    """

    def __init__(
        self,
        hello: Hello,
        join: Sequence[Address],
        ask: Callable[[Address, float], Awaitable[Hello]],
        on_waiting: Callable[[str], None],
    ) -> None:
        self._hello = hello
        self._join = join
        self._ask = ask
        self._on_waiting = on_waiting
        self._loop = asyncio.get_running_loop()
        self._told = -_TELL_EVERY_S
        self._reason = ""

    async def search(self) -> Found | Join:
        """Ask the join list until it is clear what to do."""
        while True:
            answers = await asyncio.gather(*map(self._answer, self._join))
            decision = decide(self._hello, dict(zip(self._join, answers, strict=True)))
            if not isinstance(decision, Wait):
                return decision
            self.wait_for(decision.reason)
            await asyncio.sleep(_PAUSE_S)

    def wait_for(self, reason: str) -> None:
        """Tell why the node waits; the log hears of it now and then."""
        self._on_waiting(reason)
        now = self._loop.time()
        if now - self._told >= _TELL_EVERY_S and self._reason:
            self._told = now
            log.info("waiting for the nodes of the join list", reason=reason)
        self._reason = reason

    async def pause(self) -> None:
        """Wait before the next attempt."""
        await asyncio.sleep(_PAUSE_S)

    async def _answer(self, address: Address) -> Hello | str:
        try:
            return await self._ask(address, _ASK_TIMEOUT_S)
        except OSError as error:
            return error.strerror or str(error)
        except PixyError as error:
            return str(error)
