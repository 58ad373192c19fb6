"""The way of a publication of replicated stages from its commit to its end.

Whoever leads `sinks` rolls all unfinished publications forward, from the start, as often as the
leader changes:

    for each of its partitions    PublishParts is proposed, until it is applied there
    all partitions have it        FinishPublications is proposed: it is visible, and forgotten

A partition gets its publications one after the other, in the order of their numbers. What two
leaders propose is told apart by the partition: it takes each publication once, and none before its
predecessor. The part of a deleted topic is dropped.

A partition of which no majority is there holds up its publications, and no others.

A publication with impossible numbers, or of stages that no node can have, of a release that did
not judge such commands, is brought to its partitions without records: those behind it name it as
their predecessor.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import structlog

from pixy.aio.retries import Backoff
from pixy.aio.steps import in_steps
from pixy.aio.tasks import Tasks
from pixy.cluster.log import PartitionReplica
from pixy.cluster.peering import PartitionProposals
from pixy.cluster.state import PartKey, Publication, SinksState, part_commands
from pixy.errors import PixyError, UnknownPartition
from pixy.faults import OnFault
from pixy.multiraft import RaftGroup
from pixy.proto.state_pb2 import (
    FinishPublications,
    PartitionCommand,
    PublicationPart,
    PublishParts,
    SinksCommand,
)
from pixy.storage import EntryType

log = structlog.get_logger(__name__)

_ENTRY_S = 10.0
_PAUSE_S = 0.05
_PAUSE_MAX_S = 2.0


@dataclass(frozen=True, slots=True)
class RollForwardDependencies:
    """Parts of a node that the roll-forward uses.

    Attributes:
        group: the raft group `sinks`.
        state: its state machine.
        is_of_nobody: see `LonePublisher.is_of_nobody`.
        replica_of: the partition of a part, wherever its replicas are; None if its topic is not
            known here.
        confirm_metadata: returns once metadata has here what was committed before.
        proposals: to partitions.
        ensure: fetches the pieces that an entry of a group needs and this node lacks; raises
            `Unavailable` if it cannot.
        command: runs a command in `sinks`.
    """

    group: RaftGroup
    state: SinksState
    is_of_nobody: Callable[[Publication], bool]
    replica_of: Callable[[PublicationPart], PartitionReplica | None]
    confirm_metadata: Callable[[], Awaitable[None]]
    proposals: PartitionProposals
    ensure: Callable[[PartitionReplica, bytes], Awaitable[None]]
    command: Callable[[SinksCommand], Awaitable[object]]

    def rolls(self, publication: Publication) -> bool:
        """True for a publication that the leader of `sinks` rolls forward."""
        return bool(publication.stages) or self.is_of_nobody(publication)


class ReplicatedRollForward:
    """Rolls publications forward while this node leads `sinks`.

    Args:
        parts: see `RollForwardDependencies`.
        on_fault: called with an exception that is a bug.
    """

    def __init__(self, parts: RollForwardDependencies, on_fault: OnFault) -> None:
        self._parts = parts
        self._tasks = Tasks(on_fault)
        self._leadership: _Leadership | None = None
        self._stopped = False

    def __len__(self) -> int:
        """Number of publications that this node rolls forward."""
        return 0 if self._leadership is None else len(self._leadership.lacking)

    async def stop(self) -> None:
        """Finish nothing more; the next leader does."""
        self._stopped = True
        await self._tasks.cancel_all()

    def look(self) -> None:
        """There may be another leader, or a new publication."""
        if self._stopped:
            return
        if not self._parts.group.decides:
            # Another node leads, and begins anew.
            self._tasks.cancel_nowait()
            self._leadership = None
        elif any(map(self._parts.rolls, self._parts.state.publications.values())):
            if self._leadership is None:
                self._leadership = _Leadership(self._parts, self._tasks)
            self._leadership.begin()


class _Leadership:
    """The publications that this node rolls forward while it leads.

    Attributes:
        lacking: number of partitions that lack a publication, by its number.
    """

    def __init__(self, parts: RollForwardDependencies, tasks: Tasks) -> None:
        self._parts = parts
        self._tasks = tasks
        self.lacking: dict[int, int] = {}
        # Parts that wait for their turn in a partition; the first is under way.
        self._queues: dict[PartKey, deque[tuple[PublicationPart, PublishParts]]] = {}
        # Publications that every partition has.
        self._complete: list[int] = []
        self._beginning = self._finishing = False

    def begin(self) -> None:
        """Begin the publications that were not begun."""
        if not self._beginning and self._next() is not None:
            self._beginning = True
            self._tasks.spawn(self._begin(), "begin publications")

    def _next(self) -> Publication | None:
        publications = self._parts.state.publications.values()
        found = (each for each in publications if each.number not in self.lacking and self._parts.rolls(each))
        return next(found, None)

    async def _begin(self) -> None:
        try:
            while (publication := self._next()) is not None:
                self.lacking[publication.number] = len(publication.parts)
                await self._roll_all(publication, await part_commands(publication))
        finally:
            self._beginning = False

    async def _roll_all(self, publication: Publication, commands: Mapping[PartKey, PublishParts]) -> None:
        async for part in in_steps(publication.parts):
            key = (part.topic_id, part.partition)
            queue = self._queues.setdefault(key, deque())
            queue.append((part, commands[key]))
            if len(queue) == 1:
                name = f"publications in {part.topic}-{part.partition}"
                self._tasks.spawn(self._roll(key, queue), name)
        if not publication.parts:
            self._finish(publication.number)

    async def _roll(self, key: PartKey, queue: deque[tuple[PublicationPart, PublishParts]]) -> None:
        """Bring one partition all of its publications."""
        while queue:
            part, command = queue[0]
            await self._bring(part, command)
            queue.popleft()
            number = command.publication
            self.lacking[number] -= 1
            if not self.lacking[number]:
                self._finish(number)
        del self._queues[key]

    async def _bring(self, part: PublicationPart, command: PublishParts) -> None:
        """Bring a partition a publication, however long it takes."""
        payload = PartitionCommand(publish_parts=command).SerializeToString()
        backoff = Backoff(_PAUSE_S, _PAUSE_MAX_S)
        while True:
            try:
                await self._propose(part, payload)
            except PixyError as error:
                log.warning(
                    "a publication waits for a partition",
                    publication=command.publication,
                    topic=part.topic,
                    partition=part.partition,
                    reason=str(error),
                )
            else:
                return
            await self._pause(part, command, backoff.grow())

    async def _pause(self, part: PublicationPart, command: PublishParts, pause_s: float) -> None:
        """Wait until a predecessor that was missing has come to a partition of this node, which may
        be one with a stage of this node alone; else, and no longer than, `pause_s`.
        """
        loop = asyncio.get_running_loop()
        replica = self._parts.replica_of(part)
        if replica is None or replica.publication >= command.predecessor:
            await asyncio.sleep(pause_s)
            return
        until = loop.time() + pause_s
        while replica.publication < command.predecessor and (left := until - loop.time()) > 0:
            await replica.wait(left)

    async def _propose(self, part: PublicationPart, payload: bytes) -> None:
        """Bring a partition a publication, unless its topic was deleted."""
        replica = self._parts.replica_of(part)
        if replica is None:
            await self._parts.confirm_metadata()
            replica = self._parts.replica_of(part)
        if replica is not None:
            with suppress(UnknownPartition):
                await self._parts.ensure(replica, payload)
                await self._parts.proposals.propose(replica, EntryType.COMMAND, payload, _ENTRY_S)

    def _finish(self, number: int) -> None:
        self._complete.append(number)
        if not self._finishing:
            self._finishing = True
            self._tasks.spawn(self._forget(), "finish publications")

    async def _forget(self) -> None:
        """Finish what every partition has."""
        backoff = Backoff(_PAUSE_S, _PAUSE_MAX_S)
        while self._complete:
            numbers = list(self._complete)
            command = FinishPublications(publications=numbers)
            try:
                await self._parts.command(SinksCommand(finish_publications=command))
            except PixyError as error:
                log.warning("publications cannot be finished yet", publications=numbers, reason=str(error))
                await asyncio.sleep(backoff.grow())
                continue
            for number in numbers:
                self._complete.remove(number)
                del self.lacking[number]
        self._finishing = False
