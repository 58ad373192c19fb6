"""Proposals to raft groups that this node has no replica of, or none that can be used.

They are those of `proposals`: the same window, the same sharing of entries, the same identity in
every attempt. Only the result comes another way: the leader answers once it has applied the entry.
So a batch whose leader falls is proposed again to the next one, until its deadline, and never
doubles. While something is in flight, a replica that waits for a copy may get what it lacks, and
lead, or the partition move to other nodes: the others name the leader then, which is asked, also if
it is this node itself.

The sequences of a group ascend for as long as this process lives: a group is forgotten only with
its partition, whose id nobody gets again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from pixy.aio.retries import Backoff
from pixy.aio.tasks import Tasks
from pixy.cluster.peering.peer_messages import PeerMethod
from pixy.cluster.peering.replica_calls import RemotePartition, ReplicaCalls
from pixy.entry_ids import ProposalId
from pixy.errors import DeadlineExceeded, PixyError, Unavailable
from pixy.faults import OnFault
from pixy.multiraft import NEVER, DedupTable, Done, Proposals, Proposer, Sequences
from pixy.peers import decode_answer
from pixy.proto.node_calls_pb2 import ProposeRequest, ProposeResponse
from pixy.storage import EntryType

_ATTEMPT_S = 5.0
"""Longest wait for an answer: a leader that loses its leadership answers at once."""
_PAUSE_S = 0.02
_PAUSE_MAX_S = 0.5
_LOOK_S = 0.1
_MAIN_BYTES_MAX = 4 << 20
"""Largest payload on the connection of Raft's messages."""


class _RemoteGroup:
    """A raft group without a replica here: somebody else leads, and has its rows."""

    leads = False
    term = 0
    rows = DedupTable()
    tail_ids = frozenset[ProposalId]()

    def __init__(self, target: RemotePartition, proposer: "Proposer[_RemoteGroup]") -> None:
        self.raft_group = target.raft_group
        self.target = target
        self.through = Proposals(self, proposer)

    @property
    def leader(self) -> int:
        return self.target.replicas[0]

    def stamp(
        self, _kind: EntryType, _payload: bytes | bytearray, _term: int
    ) -> tuple[EntryType, bytes | bytearray]:
        raise AssertionError("a group without a replica here is led here")


class ProposalForwarder:
    """Proposals of one node.

    Args:
        node_id, incarnation: of this node.
        calls: to the replicas.
        on_fault: called with an exception that is a bug.
        sequences: see `Proposer`.

    Attributes:
        answer: this node's own handler of such proposals; set before the first one.
    """

    answer: Callable[[int, bytes], Awaitable[bytes]]

    def __init__(
        self,
        node_id: int,
        incarnation: int,
        calls: ReplicaCalls,
        on_fault: OnFault,
        sequences: dict[int, Sequences] | None = None,
    ) -> None:
        self._node_id = node_id
        self._calls = calls
        self._proposer = Proposer(node_id, incarnation, _has_room, _append, self._forward, sequences)
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks(on_fault)
        self._timer: asyncio.TimerHandle | None = None
        self._groups: dict[int, _RemoteGroup] = {}
        # Groups with proposals, whose deadlines are looked at.
        self._busy: dict[_RemoteGroup, None] = {}

    def propose(
        self, target: RemotePartition, kind: EntryType, payload: bytearray, done: Done, deadline: float
    ) -> None:
        """As `Driver.propose`."""
        self._group(target).through.submit(kind, payload, done, deadline)

    def go_on_with(self, target: RemotePartition, proposals: Proposals[Any]) -> None:
        """Bring proposals through elsewhere that this node has made to a replica of its own."""
        proposals.go_on_in(self._group(target).through)

    def _group(self, target: RemotePartition) -> _RemoteGroup:
        """A group that is about to have proposals."""
        group = self._groups.get(target.raft_group)
        if group is None:
            group = self._groups[target.raft_group] = _RemoteGroup(target, self._proposer)
        group.target = target
        self._busy[group] = None
        if self._timer is None:
            self._timer = self._loop.call_later(_LOOK_S, self._look)
        return group

    def removed(self, raft_groups: Iterable[int], error: PixyError) -> None:
        """Answer the proposals to groups that are gone."""
        for raft_group in raft_groups:
            group = self._groups.pop(raft_group, None)
            self._calls.leaders.pop(raft_group, None)
            if group is not None:
                group.through.fail(error)

    async def stop(self) -> None:
        """Give up what is not answered: it may be written."""
        if self._timer is not None:
            self._timer.cancel()
        for group in self._groups.values():
            group.through.expire(NEVER)
        await self._tasks.cancel_all()

    def _look(self) -> None:
        """Answer what is overdue."""
        now = self._loop.time()
        for group in list(self._busy):
            group.through.expire(now)
            if not len(group.through):
                del self._busy[group]
        self._timer = self._loop.call_later(_LOOK_S, self._look) if self._busy else None

    def _forward(
        self, group: _RemoteGroup, kind: EntryType, payload: bytes | bytearray, proposal: ProposalId, _: int
    ) -> None:
        request = ProposeRequest(
            raft_group=group.raft_group,
            kind=kind,
            payload=bytes(payload),
            incarnation=proposal.incarnation,
            sequence=proposal.sequence,
        )
        name = f"propose to {group.target.partition.topic}-{group.target.partition.partition}"
        self._tasks.spawn(self._bring(group, request), name)

    async def _bring(self, group: _RemoteGroup, request: ProposeRequest) -> None:
        """Propose to one replica after the other, as long as somebody waits for the result."""
        backoff, sequence = Backoff(_PAUSE_S, _PAUSE_MAX_S), request.sequence
        while True:
            tried: set[int] = set()
            while True:
                if not group.through.awaits(sequence):
                    return
                node_id = self._candidate(group, tried)
                if node_id is None:
                    break
                tried.add(node_id)
                request.after = group.through.before(sequence)
                result = await self._attempt(group, node_id, request.SerializeToString())
                if result is not None:
                    group.through.applied(sequence, result)
                    return
                if self._calls.leaders.get(group.raft_group) == node_id:
                    break  # it leads, and waits for the one before
            await asyncio.sleep(backoff.grow())

    def _candidate(self, group: _RemoteGroup, tried: set[int]) -> int | None:
        """The node to ask next, None if all were tried."""
        leader = self._calls.leaders.get(group.raft_group)
        if leader is not None and leader not in tried:
            return leader
        return self._calls.candidate(group.raft_group, group.target.replicas, tried)

    async def _attempt(self, group: _RemoteGroup, node_id: int, request: bytes) -> int | PixyError | None:
        """Result of the proposal, None if this node does not know it."""
        leaders, raft_group = self._calls.leaders, group.raft_group
        bulk = len(request) > _MAIN_BYTES_MAX
        try:
            if node_id == self._node_id:
                answer = await self._ask_here(request)
            else:
                answer = await self._calls.ask(node_id, PeerMethod.PROPOSE, request, _ATTEMPT_S, bulk=bulk)
        except (Unavailable, DeadlineExceeded):
            if leaders.get(raft_group) == node_id:
                del leaders[raft_group]
            return None
        except PixyError as error:
            return error
        response = decode_answer(ProposeResponse, answer)
        if not response.not_leader:
            leaders[raft_group] = node_id
            return response.offset
        if response.leader:
            leaders[raft_group] = response.leader
        elif leaders.get(raft_group) == node_id:
            del leaders[raft_group]
        return None

    async def _ask_here(self, request: bytes) -> bytes:
        try:
            async with asyncio.timeout(_ATTEMPT_S):
                return await self.answer(self._node_id, request)
        except TimeoutError:
            raise DeadlineExceeded(f"not applied within {_ATTEMPT_S:.0f} s") from None


def _has_room(*_: object) -> bool:
    raise AssertionError("a group without a replica here is led here")


def _append(*_: object) -> None:
    raise AssertionError("a group without a replica here is led here")
