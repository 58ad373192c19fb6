"""Proposals of nodes that have no replica of the raft group, and learn of the result by an answer.

A node with a replica learns of the result of its proposal by applying the entry. For the others the
leader watches what it applies. When it stops leading, the entry may yet be committed, or not: the
node that waits proposes again elsewhere, under the same identity.
"""

import asyncio
from typing import Any

from pixy.aio.futures import resolve
from pixy.entry_ids import ProposalId


class LeadershipLost:
    """Result of a proposal that this node will not learn."""


class ProposalWaiters:
    """Proposals of other nodes whose results are waited for, by raft group."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[int, dict[ProposalId, asyncio.Future[Any]]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def watch(self, raft_group: int, proposal: ProposalId) -> "asyncio.Future[Any]":
        """The result of a proposal, once it is applied: that of its entry, or `LeadershipLost`.

        A proposal that comes a second time shares the result.
        """
        waiting = self._waiting.setdefault(raft_group, {})
        result = waiting.get(proposal)
        if result is None:
            result = waiting[proposal] = asyncio.get_running_loop().create_future()
        return result

    def applied(self, raft_group: int, proposal: ProposalId, result: Any) -> None:
        """An entry of another node was applied."""
        waiting = self._waiting.get(raft_group)
        found = None if waiting is None else waiting.pop(proposal, None)
        if found is not None:
            resolve(found, result)
            if not waiting:
                del self._waiting[raft_group]

    def end(self, raft_group: int, result: Any) -> None:
        """Answer everything of a group: it is not led here any more, or was removed."""
        for found in self._waiting.pop(raft_group, {}).values():
            resolve(found, result)
