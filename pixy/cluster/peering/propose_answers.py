"""Answers to nodes that propose to a raft group without a replica of it (`proposal_forwarder`).

    the proposal is               then
    ----------------------------  ----------------------------------------------------------------
    for a group not led here      `not_leader`, with the leader as far as it is known
    applied already               the kept result
    in the unapplied tail         the result once it is applied
    new                           appended as soon as there is room; the result once it is applied
    new, without the one before   `not_leader`, with this node as the leader: it comes again
    new, of data that is not here the same; the data is being fetched
    outdated                      refused: nobody waits for it
    impossible                    refused: see `proposable`

When this node stops leading in the meantime the answer is `not_leader`: the entry may yet come
through, which the next leader finds out.
"""

import asyncio
from collections.abc import Callable

from pixy.cluster.peering.forwarded_proposals import ForwardedProposals
from pixy.entry_ids import ProposalId
from pixy.errors import FailedPrecondition, PixyError, Unavailable
from pixy.multiraft import DedupVerdict, Driver, Forwarded, LeadershipLost, RaftGroup, judge
from pixy.proto.node_calls_pb2 import ProposeRequest, ProposeResponse
from pixy.storage import EntryType

_KINDS = frozenset(
    {EntryType.RECORD_BATCH, EntryType.RECORD_BATCHES, EntryType.STAGED_PIECE, EntryType.COMMAND}
)


class ProposeAnswers:
    """Proposals of other nodes, at one that may lead.

    Args:
        driver: of the groups.
        forwarded: checks what is proposed.
        find_group: finds the raft group of a partition, None if this node has no replica of it.
    """

    def __init__(
        self,
        driver: Driver,
        forwarded: ForwardedProposals,
        find_group: Callable[[int], RaftGroup | None],
    ) -> None:
        self._driver = driver
        self._forwarded = forwarded
        self._find_group = find_group

    async def answer(self, caller: int, payload: bytes) -> bytes:
        """Propose for a node; returns a `ProposeResponse`.

        Raises:
            Unavailable: this node has no replica.
            PixyError: the result of the proposal.
        """
        request = ProposeRequest.FromString(payload)
        if request.kind not in _KINDS:
            raise FailedPrecondition(f"an entry of kind {request.kind} is not proposed for other nodes")
        group = self._find_group(request.raft_group)
        if group is None:
            raise Unavailable(
                f"node {self._driver.node_id} has no replica of raft group {request.raft_group}"
            )
        proposal, kind = ProposalId(caller, request.incarnation, request.sequence), EntryType(request.kind)
        if not proposal.is_possible(request.after):
            # Appended, it would be an entry that no follower takes.
            raise FailedPrecondition(f"{proposal} behind {request.after} is impossible")
        forwarded = Forwarded(request.raft_group, kind, request.payload, proposal, request.after)
        result = await self._propose(group, forwarded)
        if isinstance(result, PixyError):
            raise result
        if isinstance(result, LeadershipLost):
            leads_no_more = group.leader == self._driver.node_id and not group.leads
            leader = 0 if leads_no_more else group.leader
            return ProposeResponse(not_leader=True, leader=leader).SerializeToString()
        return ProposeResponse(offset=result).SerializeToString()

    async def _propose(self, group: RaftGroup, forwarded: Forwarded) -> int | PixyError | LeadershipLost:
        if not group.leads:
            # A group with this node alone has no leader before something is asked of it.
            self._driver.seek_leader(group)
            return LeadershipLost()
        proposal = forwarded.proposal
        known = _judge(group, proposal)
        if known is DedupVerdict.NEW:
            if not await self._forwarded.propose(group, forwarded):
                return LeadershipLost()
            # Its check may have taken a while.
            known = _judge(group, proposal)
        if isinstance(known, (int, PixyError, LeadershipLost)):
            return known
        # Another attempt may wait for the same result.
        result = asyncio.shield(self._driver.watched.watch(group.raft_group, proposal))
        outcome: int | PixyError | LeadershipLost = await result
        return outcome


def _judge(group: RaftGroup, proposal: ProposalId) -> int | PixyError | LeadershipLost | DedupVerdict | None:
    if not group.leads:
        return LeadershipLost()
    known = judge(group.rows, group.tail_ids, proposal)
    return FailedPrecondition(f"{proposal} is outdated") if known is DedupVerdict.OUTDATED else known
