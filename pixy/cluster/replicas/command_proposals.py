"""Commands that a node proposes to its raft groups by itself, or for a caller that waits.

Nothing is proposed while the disk has no room for the journal: a caller hears so at once, and what
the node does by itself is due again later. Only what frees space is proposed all the same: the
journal keeps some bytes for that.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from pixy.aio.futures import resolve
from pixy.cluster.log import NodeLog, PartitionReplica, Replica
from pixy.cluster.replicas.partitions import Partitions
from pixy.cluster.state import why_too_many_bytes
from pixy.errors import DeadlineExceeded, MessageTooLarge, PixyError, Unavailable, UnknownPartition
from pixy.multiraft import NEVER, RaftGroup
from pixy.storage import EntryType


class CommandProposals:
    """Commands of one node.

    Args:
        node_log: its log.
        partitions: its partitions.
        why_leaderless: tells why no leader of a raft group can be elected, empty while one may.
    """

    def __init__(
        self, node_log: NodeLog, partitions: Partitions, why_leaderless: Callable[[RaftGroup], str]
    ) -> None:
        self._log = node_log
        self._partitions = partitions
        self._why_leaderless = why_leaderless
        self._loop = asyncio.get_running_loop()
        self._stopped = False

    def stop(self) -> None:
        """Drop what the node proposes by itself from here on."""
        self._stopped = True

    async def run(
        self, replica: Replica, payload: bytes, timeout_s: float = NEVER, *, frees_space: bool = False
    ) -> Any:
        """Run a command; durable and applied on return.

        Args:
            timeout_s: seconds until `DeadlineExceeded` is raised in any case.
            frees_space: it is proposed on a full disk, if the journal has spare bytes for it.

        Raises:
            Unavailable: the disk has no room, or before `timeout_s` that no leader can be elected.
            MessageTooLarge: the command is.
            PixyError: the result of the command.
        """
        group = self._group_of(replica)
        refused = _why_refused(group.raft_group, payload)
        if refused is not None:
            raise refused
        stalled = self._log.stalled
        if stalled is not None:
            if not frees_space:
                raise Unavailable(str(stalled))
            self._log.journal.check_spare(len(payload))
        if timeout_s != NEVER and (reason := self._why_leaderless(group)):
            raise Unavailable(reason)
        answer: asyncio.Future[Any] = self._loop.create_future()
        deadline = self._loop.time() + timeout_s
        self._log.driver.propose(group, EntryType.COMMAND, payload, partial(resolve, answer), deadline)
        result = await answer
        if isinstance(result, (DeadlineExceeded, Unavailable)) and (reason := self._why_leaderless(group)):
            raise type(result)(f"{result}: {reason}")
        if isinstance(result, PixyError):
            raise result
        return result

    def propose(self, replica: Replica, payload: bytes) -> None:
        """Propose a command without waiting for its result; dropped while the disk has no room."""
        if self._log.stalled is None and not self._stopped:
            self.propose_and_tell(replica, payload, lambda _: None)

    def propose_if_room(self, replica: Replica, payload: bytes, done: Callable[[Any], None]) -> None:
        """Propose a command; `done` gets its result, soon `Unavailable` if the disk has no room."""
        if self._log.stalled is None:
            self.propose_and_tell(replica, payload, done)
        else:
            self._loop.call_soon(done, Unavailable(str(self._log.stalled)))

    def propose_and_tell(self, replica: Replica, payload: bytes, done: Callable[[Any], None]) -> None:
        """Propose a command, whatever room there is; `done` gets its result."""
        try:
            group = self._group_of(replica)
        except UnknownPartition as error:
            done(error)
            return
        refused = _why_refused(group.raft_group, payload)
        if refused is not None:
            done(refused)
            return
        self._log.driver.propose(group, EntryType.COMMAND, payload, done)

    def _group_of(self, replica: Replica) -> RaftGroup:
        if not isinstance(replica, PartitionReplica):
            return replica.group
        if replica.deleted:
            raise UnknownPartition(f"topic {replica.partition.topic} was deleted")
        return self._partitions.group_of(replica)


def _why_refused(raft_group: int, payload: bytes) -> MessageTooLarge | None:
    """The error of a command that other nodes would refuse to lead."""
    reason = why_too_many_bytes(raft_group, payload)
    return MessageTooLarge(reason) if reason else None
