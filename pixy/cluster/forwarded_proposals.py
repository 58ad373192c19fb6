"""Proposals of other nodes on their way to the driver: checked, and in order.

A check of at most half a millisecond is made at once. A longer one, of large record batches, takes
turns with the others (`check_turns`), and has the same maximum as that of a request. Meanwhile what
the same node proposes to the same raft group waits behind it; nothing else does.

    the proposal            what becomes of it
    ----------------------  ---------------------------------------------------------------
    may be appended         `Driver.propose_for`, or `propose_checked` behind a long check; a
                            command as this node judges it (`forwarded_commands`), which may have
                            to wait for what was committed elsewhere
    refused                 its caller gets the reason; it is logged if there is no caller
    too much waits          not taken: the other node tries again
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from pixy.check_turns import CheckTurns, SteppedCheck
from pixy.cluster.command_maxima import why_too_large
from pixy.cluster.driver import Driver
from pixy.cluster.forwarded_commands import ForwardedCommands
from pixy.cluster.proposer_rows import WINDOW
from pixy.cluster.raft_group import RaftGroup
from pixy.errors import PixyError, Unavailable, VoidEntry
from pixy.faults import OnFault
from pixy.futures import resolve
from pixy.proposal_id import ProposalId
from pixy.records import FORWARDED_LIMITS, CheckEffort, LongCheckError, NewBatch, check_next_batch
from pixy.storage import EntryType
from pixy.tasks import Tasks

__all__ = ["ForwardedProposals"]

WAITING_BYTES_MAX = 64 << 20
"""Bytes of proposals of one node that wait for checks; more are not taken. One always is."""
_QUEUE_MAX = 2 * WINDOW
"""Proposals of one node to one raft group that wait: its window, and once more as repetitions."""


class _WaitingProposal(NamedTuple):
    kind: EntryType
    payload: bytes | bytearray
    proposal: ProposalId
    after: int
    done: Callable[[bool | VoidEntry], None]


class _ForwardedCheck(SteppedCheck):
    """The check of the batches of one entry; `why_not_batches` has found their number right."""

    def __init__(self, payload: bytes | bytearray) -> None:
        # They may be the larger part of the cost of a request with others, which has passed.
        super().__init__(max(len(payload), WAITING_BYTES_MAX), "proposal")
        self._payload = memoryview(payload)
        self._batches: list[NewBatch] = []

    @property
    def is_done(self) -> bool:
        """See `SteppedCheck`."""
        return bool(self._batches) and self._batches[-1].end == len(self._payload)

    def _check_next(self, effort: CheckEffort) -> None:
        self._batches.append(check_next_batch(self._payload, self._batches, FORWARDED_LIMITS, effort))


class ForwardedProposals:
    """Proposals of other nodes to the raft groups of this one.

    Args:
        driver: of the groups.
        commands: judges commands.
        on_fault: called with an exception that is a bug.
    """

    def __init__(self, driver: Driver, commands: ForwardedCommands, on_fault: OnFault) -> None:
        self._driver = driver
        self._commands = commands
        self._turns = CheckTurns()
        self._tasks = Tasks(on_fault)
        # By group and node; the first one of each is being checked. Invariant: none is empty.
        self._queues: dict[tuple[RaftGroup, int], deque[_WaitingProposal]] = {}
        # Bytes of the queues by node.
        self._bytes: Counter[int] = Counter()

    async def propose(
        self,
        group: RaftGroup,
        kind: EntryType,
        payload: bytes | bytearray,
        proposal: ProposalId,
        after: int,
    ) -> bool:
        """As `Driver.propose_for`, and its errors."""
        taken: asyncio.Future[bool | VoidEntry] = asyncio.get_running_loop().create_future()
        self._submit(group, _WaitingProposal(kind, payload, proposal, after, partial(resolve, taken)))
        result = await taken
        if isinstance(result, VoidEntry):
            raise result
        return result

    def propose_nowait(
        self,
        group: RaftGroup,
        kind: EntryType,
        payload: bytes | bytearray,
        proposal: ProposalId,
        after: int = 0,
    ) -> None:
        """As `propose`, for a node that waits for no answer: a refusal is logged."""
        done = partial(self._maybe_log, group, kind, proposal)
        self._submit(group, _WaitingProposal(kind, payload, proposal, after, done))

    async def stop(self) -> None:
        """Take nothing that is being checked: its node tries another one."""
        await self._tasks.cancel_all()

    def _submit(self, group: RaftGroup, waiting: _WaitingProposal) -> None:
        sender = waiting.proposal.node_id
        queue = self._queues.get((group, sender))
        if queue is None:
            try:
                judged = self._judged(group, waiting)
                if judged is not None:
                    waiting.done(self._driver.propose_for(group, *judged[:4]))
                    return
            except VoidEntry as error:
                waiting.done(error)
                return
            except LongCheckError:
                pass
            queue = deque()
        size = len(waiting.payload)
        is_too_much = self._bytes[sender] and self._bytes[sender] + size > WAITING_BYTES_MAX
        if is_too_much or len(queue) >= _QUEUE_MAX:
            waiting.done(False)
            return
        self._bytes[sender] += size
        queue.append(waiting)
        if (group, sender) not in self._queues:
            self._queues[group, sender] = queue
            self._tasks.spawn(self._check(group, sender, queue), "check forwarded proposals")

    async def _check(self, group: RaftGroup, sender: int, queue: deque[_WaitingProposal]) -> None:
        try:
            while queue:
                taken = await self._take(group, queue[0])
                waiting = queue.popleft()
                self._bytes[sender] -= len(waiting.payload)
                waiting.done(taken)
                # So that many short ones behind a long one do not occupy the loop.
                await asyncio.sleep(0)
        finally:
            del self._queues[group, sender]
            for waiting in queue:
                self._bytes[sender] -= len(waiting.payload)
                waiting.done(False)

    def _judged(self, group: RaftGroup, waiting: _WaitingProposal) -> _WaitingProposal | None:
        """The proposal as it may be appended, None if that has to be waited for. One that has no
        place comes back as it is: the driver does not take it.
        """
        if waiting.kind != EntryType.COMMAND or not self._driver.has_place(group, waiting.proposal):
            return waiting
        reason = why_too_large(group.raft_group, waiting.payload)
        if reason:
            raise VoidEntry(reason)
        payload = self._commands.judge(group, waiting.payload, waiting.proposal.node_id)
        return None if payload is None else waiting._replace(payload=payload)

    async def _take(self, group: RaftGroup, waiting: _WaitingProposal) -> bool | VoidEntry:
        try:
            judged = self._judged(group, waiting)
            if judged is None:
                sender = waiting.proposal.node_id
                payload = await self._commands.wait(group, waiting.payload, sender)
                judged = waiting._replace(payload=payload)
            return self._driver.propose_for(group, *judged[:4])
        except Unavailable:
            return False
        except VoidEntry as error:
            return error
        except LongCheckError:
            pass
        try:
            await self._turns.run(_ForwardedCheck(waiting.payload))
        except PixyError as error:
            return VoidEntry(str(error))
        return self._driver.propose_checked(group, *waiting[:4])

    def _maybe_log(
        self, group: RaftGroup, kind: EntryType, proposal: ProposalId, result: bool | PixyError
    ) -> None:
        if isinstance(result, PixyError):
            what = f"proposed {kind.name}"
            self._driver.refusals.note(group.raft_group, proposal.node_id, what, str(result))
