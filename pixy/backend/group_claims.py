"""Claims of consumer groups: until groups have members on several nodes, one node consumes in each.

The node whose client consumes first claims the group; the claim is an entry of the group's state
group, and a fence for its commits. It is released when the last member here leaves.

    claimed by                                    a node that wants to consume
    --------------------------------------------  ------------------------------------------------
    nobody                                        claims it
    this process, or an earlier one of this node  goes on, or claims it
    another node                                  is refused, with the node's gRPC address
    another node that has started since, has      takes it over: the command names the claim that
    left, or is silent for `SILENT_S`             it replaces, so only one node can

A node that has left, or was silent for long, may find its claim taken over. Its members are told
that they have lost their partitions, and claim the group again before they go on.
"""

import asyncio
from collections.abc import Callable
from weakref import WeakValueDictionary

import structlog

from pixy.cluster import Claim, Node
from pixy.errors import OwnedElsewhere, PixyError
from pixy.proto.state_pb2 import ClaimGroup, GroupClaim, GroupsCommand, ReleaseGroup
from pixy.tasks import Tasks

__all__ = ["GroupClaims"]

log = structlog.get_logger(__name__)

SILENT_S = 5.0
"""Seconds without a connection after which a node's claims may be taken over."""
_LOOK_S = 1.0
_ATTEMPTS = 4
"""Attempts to claim a group: each one that fails was overtaken by another node's."""
_RELEASE_S = 2.0
"""Longest wait for a release."""


class GroupClaims:
    """Claims of one node.

    Args:
        node: this node.
        has_members: tells whether a consumer group has members here.
        on_lost: called with a consumer group whose claim was taken over.
        tasks: runs releases in the background.
    """

    def __init__(
        self,
        node: Node,
        has_members: Callable[[str], bool],
        on_lost: Callable[[str], None],
        tasks: Tasks,
    ) -> None:
        self._node = node
        self._has_members = has_members
        self._on_lost = on_lost
        self._tasks = tasks
        # Loop time since which nodes are looked at that were never heard of; None before.
        self._began: float | None = None
        # Groups that may have a claim of this process: True if it was granted and not lost since.
        self._held: dict[str, bool] = {}
        # Claims and releases of a group are proposed one after the other.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = False

    @property
    def are_used(self) -> bool:
        """True if nodes claim consumer groups: a node that never has peers need not."""
        return self._node.peers is not None and self._node.metadata.feature_level > 0

    @property
    def own(self) -> Claim:
        """A claim of this process."""
        return Claim(self._node.node_id, self._node.incarnation)

    def claimed_by(self, group: str) -> Claim | None:
        """The process that has claimed a group as far as this node knows; None: nobody, or one that
        is gone.
        """
        claim = self._node.state_groups.offsets_of(group).claimed_by(group)
        return None if claim is None or self._is_gone(claim) else claim

    def check(self, group: str) -> None:
        """Raises OwnedElsewhere if another node has claimed a group."""
        claim = self.claimed_by(group)
        if claim is not None and claim != self.own:
            raise self.elsewhere(group, claim)

    def elsewhere(self, group: str, claim: Claim) -> OwnedElsewhere:
        """The error of a group that another node has claimed."""
        node = self._node.metadata.nodes.get(claim.node_id)
        address = f" at {node.grpc_address}" if node is not None and node.grpc_address else ""
        return OwnedElsewhere(f"consumer group {group} is served by node {claim.node_id}{address}")

    async def acquire(self, group: str) -> None:
        """Claim a group, unless this process has.

        Raises:
            OwnedElsewhere: another node has.
            Unavailable, DeadlineExceeded: it cannot be claimed at the moment.
        """
        if not self.are_used:
            return
        async with self._lock(group):
            state = self._node.state_groups.offsets_of(group)
            attempts = 0
            while (present := state.claimed_by(group)) != self.own:
                self.check(group)
                attempts += 1
                if attempts > _ATTEMPTS:
                    raise OwnedElsewhere(f"other nodes claim consumer group {group} at this moment")
                await self._claim(group, present)
            self._hold(group, granted=True)

    async def _claim(self, group: str, present: Claim | None) -> None:
        """Try to claim a group, in place of the present claim if there is one."""
        self._hold(group, granted=False)
        command = ClaimGroup(
            group=group,
            node_id=self.own.node_id,
            incarnation=self.own.incarnation,
            timestamp_ms=self._node.now_ms(),
        )
        if present is not None:
            command.takes_from.CopyFrom(GroupClaim(**present._asdict()))
        await self._propose(group, GroupsCommand(claim_group=command))

    async def _propose(self, group: str, command: GroupsCommand) -> None:
        """Propose a command; a claim that comes too late shows in the applied state."""
        try:
            await self._node.commands.change_group(group, command.SerializeToString())
        except OwnedElsewhere as error:
            log.info("another node was faster", group=group, reason=str(error))

    async def release(self, group: str) -> None:
        """Release a group without members here. Goes on in the background if that takes long, and
        is repeated if it fails.
        """
        if group in self._held:
            await asyncio.wait({self._release_soon(group)}, timeout=_RELEASE_S)

    def _release_soon(self, group: str) -> "asyncio.Task[None]":
        return self._tasks.spawn(self._release(group), f"release {group}")

    async def _release(self, group: str) -> None:
        async with self._lock(group):
            if group not in self._held or (self._has_members(group) and not self._stopping):
                return
            command = ReleaseGroup(group=group, node_id=self.own.node_id, incarnation=self.own.incarnation)
            try:
                await self._propose(group, GroupsCommand(release_group=command))
            except PixyError as error:
                log.warning("cannot release a consumer group, trying again", group=group, reason=str(error))
            else:
                del self._held[group]

    async def stop(self) -> None:
        """Release everything, within a bound: other nodes take over the rest."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        if self._held:
            await asyncio.wait(map(self._release_soon, list(self._held)), timeout=_RELEASE_S)

    def _hold(self, group: str, *, granted: bool) -> None:
        self._held[group] = granted
        if self._timer is None:
            self._look_later()

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def look(self, group: str) -> None:
        """Look whether the claim of a group was taken over."""
        if self._held.get(group) and self.are_used and self._is_taken(group):
            self._held[group] = False
            log.warning("a consumer group was taken over by another node", group=group)
            self._on_lost(group)

    def _look(self) -> None:
        """Look at all groups: claims that were taken over, and those that nobody needs."""
        for group in list(self._held):
            if self._has_members(group):
                self.look(group)
            elif group not in self._locks:
                self._release_soon(group)
        self._timer = None
        if self._held:
            self._look_later()

    def _is_taken(self, group: str) -> bool:
        claim = self._node.state_groups.offsets_of(group).claimed_by(group)
        return claim != self.own or self._node.has_left

    def _lock(self, group: str) -> asyncio.Lock:
        lock = self._locks.get(group)
        if lock is None:
            lock = self._locks[group] = asyncio.Lock()
        return lock

    def _is_gone(self, claim: Claim) -> bool:
        """True if the process of a claim is known to be gone."""
        node = self._node.metadata.nodes.get(claim.node_id)
        if node is None or node.removed or claim.incarnation < node.incarnation:
            return True
        if claim.node_id == self._node.node_id:
            return claim.incarnation < self._node.incarnation
        peers = self._node.peers
        member = None if peers is None else peers.members.get(claim.node_id)
        if member is not None and member.up:
            return False
        now = asyncio.get_running_loop().time()
        if self._began is None:
            self._began = now
        heard_at = self._began if member is None or member.heard_at is None else member.heard_at
        return now - heard_at >= SILENT_S
