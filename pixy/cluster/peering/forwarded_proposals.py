"""Proposals of other nodes on their way to the driver: checked, and in order.

A check of at most half a millisecond is made at once. A longer one, of large record batches, takes
turns with the others (`check_turns`), and has the same maximum as that of a request. Meanwhile what
the same node proposes to the same raft group waits behind it; nothing else does.

    the proposal            what becomes of it
    ----------------------  ---------------------------------------------------------------
    may be appended         `Driver.propose_for`, or `propose_checked` behind a long check; a
                            command as this node judges it (`forwarded_commands`), which may have
                            to wait for what was committed elsewhere
    refused                 its node gets the reason, as an answer or a message of its own
    too much waits, or      not taken: the other node tries again
    the leader changes
    meanwhile

A refusal is the last word on a proposal, so that its caller may be told that nothing was written:

- A leader that has committed an entry of its term knows of every proposal that may yet come through
  (Raft §8): without one, no answer. A copy that was taken before is not refused.
- A copy that comes after the refusal is refused too, whatever has changed.
- A copy that waits while the leader changes is not taken. The proposer minds the term of a refusal
  (`Driver.refused`).
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from pixy.aio.futures import resolve
from pixy.aio.tasks import Tasks
from pixy.check_turns import CheckTurns, SteppedCheck
from pixy.cluster.peering.forwarded_commands import ForwardedCommands
from pixy.cluster.peering.peer_messages import RefusedProposal
from pixy.cluster.state import why_too_large
from pixy.entry_ids import ProposalId
from pixy.errors import PixyError, Unavailable, VoidEntry
from pixy.faults import OnFault
from pixy.multiraft import WINDOW, DedupVerdict, Driver, Forwarded, RaftGroup, judge
from pixy.records import FORWARDED_LIMITS, CheckEffort, LongCheckError, NewBatch, check_next_batch
from pixy.storage import EntryType

_COMMAND = EntryType.COMMAND

WAITING_BYTES_MAX = 64 << 20
"""Bytes of proposals of one node that wait for checks; more are not taken. One always is."""
_QUEUE_MAX = 2 * WINDOW
"""Proposals of one node to one raft group that wait: its window, and once more as repetitions."""
REFUSED_MAX = 1000
"""Proposals of one node whose refusals are known: more than there are copies on their way."""


class _WaitingProposal(NamedTuple):
    forwarded: Forwarded
    done: Callable[[bool | VoidEntry], None]
    # Of the group, when it came.
    term: int


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
        refuse: tells a node that its proposal is refused.
        on_fault: called with an exception that is a bug.
    """

    def __init__(
        self,
        driver: Driver,
        commands: ForwardedCommands,
        refuse: Callable[[RefusedProposal], None],
        on_fault: OnFault,
    ) -> None:
        self._driver = driver
        self._commands = commands
        self._refuse = refuse
        self._turns = CheckTurns()
        self._tasks = Tasks(on_fault)
        # By group and node; the first one of each is being checked. Invariant: none is empty.
        self._queues: dict[tuple[RaftGroup, int], deque[_WaitingProposal]] = {}
        # Bytes of the queues by node.
        self._bytes: Counter[int] = Counter()
        # Reasons by raft group and proposal, of each node, oldest first.
        self._refused: dict[int, dict[tuple[int, ProposalId], str]] = {}

    async def propose(self, group: RaftGroup, forwarded: Forwarded) -> bool:
        """As `Driver.propose_for`, and its errors."""
        result = self._maybe_propose(group, forwarded)
        if result is None:
            taken: asyncio.Future[bool | VoidEntry] = asyncio.get_running_loop().create_future()
            self._wait(group, _WaitingProposal(forwarded, partial(resolve, taken), group.term))
            result = await taken
        if isinstance(result, VoidEntry):
            raise result
        return result

    def propose_nowait(self, group: RaftGroup, forwarded: Forwarded) -> None:
        """As `propose`, for a node that is told of a refusal alone."""
        result = self._maybe_propose(group, forwarded)
        if result is None:
            done = partial(self._maybe_refuse, group, forwarded)
            self._wait(group, _WaitingProposal(forwarded, done, group.term))
        elif result is not True:
            self._maybe_refuse(group, forwarded, result)

    async def stop(self) -> None:
        """Take nothing that is being checked: its node tries another one."""
        await self._tasks.cancel_all()

    def _maybe_propose(self, group: RaftGroup, forwarded: Forwarded) -> bool | VoidEntry | None:
        """Propose at once: the result, None if it has to wait."""
        if self._queues and (group, forwarded.proposal.node_id) in self._queues:
            return None
        try:
            judged = self._judged(group, forwarded)
            return None if judged is None else self._driver.propose_for(group, judged)
        except VoidEntry as error:
            return self._refusal(group, forwarded.proposal, error)
        except LongCheckError:
            return None

    def _wait(self, group: RaftGroup, waiting: _WaitingProposal) -> None:
        sender, size = waiting.forwarded.proposal.node_id, len(waiting.forwarded.payload)
        queue = self._queues.get((group, sender))
        if queue is None:
            queue = deque()
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
                self._bytes[sender] -= len(waiting.forwarded.payload)
                waiting.done(taken)
                # So that many short ones behind a long one do not occupy the loop.
                await asyncio.sleep(0)
        finally:
            del self._queues[group, sender]
            for waiting in queue:
                self._bytes[sender] -= len(waiting.forwarded.payload)
                waiting.done(False)

    def _judged(self, group: RaftGroup, forwarded: Forwarded) -> Forwarded | None:
        """The proposal as it may be appended, None if that has to be waited for. One without a
        place comes back as it is: the driver does not take it.
        """
        raft_group, kind, payload, proposal, _ = forwarded
        refused = self._refused.get(proposal.node_id)
        if refused and (reason := refused.get((raft_group, proposal))):
            raise VoidEntry(reason)
        if kind != _COMMAND or not self._driver.has_place(group, proposal):
            return forwarded
        reason = why_too_large(raft_group, payload)
        if reason:
            raise VoidEntry(reason)
        judged = self._commands.judge(group, payload, proposal.node_id)
        return None if judged is None else forwarded._replace(payload=judged)

    async def _take(self, group: RaftGroup, waiting: _WaitingProposal) -> bool | VoidEntry:
        try:
            taken = group.term == waiting.term and await self._take_checked(group, waiting)
        except Unavailable:
            return False
        except PixyError as error:
            return self._refusal(group, waiting.forwarded.proposal, VoidEntry(str(error)))
        return taken

    async def _take_checked(self, group: RaftGroup, waiting: _WaitingProposal) -> bool:
        """As `Driver.propose_for`, also of what takes long to find out."""
        forwarded = waiting.forwarded
        try:
            judged = self._judged(group, forwarded)
            if judged is None:
                payload = await self._commands.wait(group, forwarded.payload, forwarded.proposal.node_id)
                judged = forwarded._replace(payload=payload)
            return group.term == waiting.term and self._driver.propose_for(group, judged)
        except LongCheckError:
            pass
        await self._turns.run(_ForwardedCheck(forwarded.payload))
        return group.term == waiting.term and self._driver.propose_checked(group, forwarded)

    def _refusal(self, group: RaftGroup, proposal: ProposalId, error: VoidEntry) -> bool | VoidEntry:
        """The error, if the proposal is refused for good; else False."""
        is_new = group.leads and judge(group.rows, group.tail_ids, proposal) is DedupVerdict.NEW
        if not is_new or group.applied_term != group.term:
            return False
        refused = self._refused.setdefault(proposal.node_id, {})
        refused[group.raft_group, proposal] = str(error)
        if len(refused) > REFUSED_MAX:
            del refused[next(iter(refused))]
        return error

    def _maybe_refuse(self, group: RaftGroup, forwarded: Forwarded, result: bool | PixyError) -> None:
        if isinstance(result, PixyError):
            proposal, what = forwarded.proposal, f"proposed {forwarded.kind.name}"
            self._driver.refusals.note(group.raft_group, proposal.node_id, what, str(result))
            self._refuse(RefusedProposal(group.raft_group, group.term, proposal, str(result)))
