"""Sideloading: entries of partitions whose data is in files of its own, as pieces of stages are.

Two kinds of entries need pieces: a `StagedPiece` needs the one that it names, a `PublishParts` all
pieces of its stages. A replica has them on its disk before it confirms the entry, so an entry that
is committed is durable with its data on a majority. Whoever stages a piece brings it to all
replicas first (`replicated_staging`), so the rule below rarely has to wait:

    a follower gets an entry      and has its data     takes the message
                                  and lacks it         holds the message, and those behind it, while
                                                       it fetches the data; drops them if it cannot
    a leader is to propose one    and lacks its data   refuses, and fetches the data
    a follower lags, and entries  whose data is gone   sends a snapshot instead (`servable`): the
    are loaded for it                                  follower needs a copy

A replica that is copied, or takes over a position, skips entries: it fetches their pieces first,
which the position names (`copy_fetching`).

Data is fetched from the leader or from any other replica; and where none has it from any other
node: those that a partition has moved from have the pieces of stages until these are gone. A piece
of a stage that is gone is needed no more (`SinksState.is_gone`), nor is what a partition has
applied already.

Another replica may be hostile. So an answer has exactly the bytes that were asked for, of a piece
no larger than any is; and a group that has fetched for long lets others go on, with what it has.
What a leader fetches for an entry that may never be appended is of a stage that was opened, and
finds room among what is staged, as if it had been brought.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import NamedTuple

import structlog

from pixy.aio.retries import Backoff
from pixy.aio.tasks import Tasks
from pixy.check_turns import CheckTurns
from pixy.cluster.log import PartitionReplica
from pixy.cluster.peering import CallPeer, PeerMethod
from pixy.cluster.state import PIECE_BYTES_MAX, PiecesCheck, SinksState, publication_in
from pixy.entry_ids import LogPosition
from pixy.errors import InvalidArgument, NotFound, PixyError
from pixy.faults import OnFault
from pixy.multiraft import FIRST_PARTITION_GROUP, RaftGroup
from pixy.parsed_messages import parsed
from pixy.peers import decode_answer
from pixy.proto.node_calls_pb2 import GetPieceRequest, GetPieceResponse
from pixy.proto.state_pb2 import PublishParts, StagedPiece
from pixy.raft import NONE, Entry, Message
from pixy.raft.sizes import payload_size
from pixy.staging import NewPiece, PieceKey, Pieces
from pixy.storage import EntryType, why_undecodable

log = structlog.get_logger(__name__)

_STAGED_PIECE = EntryType.STAGED_PIECE
_COMMAND = EntryType.COMMAND
_KINDS = frozenset((_STAGED_PIECE, _COMMAND))

_HELD_BYTES_MAX = 4 << 20
"""Payload of the messages that a raft group holds; the leader sends the others again."""
_FETCHES_MAX = 4
"""Raft groups whose data is fetched at a time, each a piece at a time."""
_SLICE_BYTES = 4 << 20
_TIMEOUT_S = 5.0
"""Longest wait for a slice; no piece has more than eight."""
_TURN_S = 30.0
"""After this long a fetch begins no further piece."""
_PAUSE_S = 0.1
_PAUSE_MAX_S = 2.0


class PieceRef(NamedTuple):
    """A piece that an entry names."""

    key: PieceKey
    size: int
    records: int


def pieces_of(command: PublishParts, raft_group: int) -> Iterator[PieceRef]:
    """The pieces of replicated stages that a publication makes part of the log of a partition."""
    for part in command.parts:
        if not part.stage_number:
            continue  # a stage of one node has no pieces
        lists = (part.pieces, part.piece_bytes, part.piece_records, part.piece_crcs)
        for number, size, records, crc in zip(*lists, strict=True):
            yield PieceRef(PieceKey(part.stage_number, raft_group, number, crc), size, records)


class _Held:
    """Messages that wait for data, in their order."""

    __slots__ = ("bytes", "messages")

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.bytes = 0

    def add(self, message: Message) -> None:
        size = payload_size(message.entries)
        if not self.messages or self.bytes + size <= _HELD_BYTES_MAX:
            self.messages.append(message)
            self.bytes += size


class Sideloading:
    """Sideloading on one node; see `driver_options.Sideloads`.

    Args:
        node_id: this node.
        channel: to the other nodes.
        on_fault: called with an exception that is a bug.
    """

    def __init__(self, node_id: int, channel: CallPeer, on_fault: OnFault) -> None:
        self._turns = CheckTurns()
        self._node_id = node_id
        self._channel = channel
        self._tasks = Tasks(on_fault)
        self._slots = asyncio.Semaphore(_FETCHES_MAX)
        self._loop = asyncio.get_running_loop()
        self._pieces: Pieces
        self._sinks: SinksState
        self._step: Callable[[int, Message], None]
        self._nodes: Callable[[], Iterable[int]]
        self._held: dict[RaftGroup, _Held] = {}
        # Groups whose data is fetched for this node as their leader.
        self._fetching: set[RaftGroup] = set()
        # After a fetch in vain: loop time of the next one, and the pause behind that.
        self._failed: dict[RaftGroup, tuple[float, Backoff]] = {}

    def attach(
        self,
        pieces: Pieces,
        sinks: SinksState,
        step: Callable[[int, Message], None],
        nodes: Callable[[], Iterable[int]],
    ) -> None:
        """Set the pieces of this node, before any raft group of a partition is opened.

        Args:
            sinks: knows the stages, as far as it is applied here.
            step: `Driver.step`.
            nodes: the nodes of the cluster.
        """
        self._pieces, self._sinks, self._step, self._nodes = pieces, sinks, step, nodes

    async def stop(self) -> None:
        """Fetch nothing more."""
        await self._tasks.cancel_all()

    # --- the rule ---------------------------------------------------------------------------------

    def admits(self, group: RaftGroup, message: Message) -> bool:
        """As `Sideloads`."""
        held = self._held.get(group)
        if held is not None:
            held.add(message)
            return False
        missing = [
            ref
            for entry in message.entries
            if entry.kind in _KINDS and not _is_known(group, entry)
            for ref in self.missing(group, entry.kind, entry.data)
        ]
        # Raft refuses what does not follow its log, and so tells the leader where to begin.
        if not missing or not group.has_entry(LogPosition(message.log_term, message.index)):
            return True
        if self._may_fetch(group):
            held = self._held[group] = _Held()
            held.add(message)
            self._spawn(group, self._fetch_and_step(group, missing, message.sender))
        return False

    def may_propose(self, group: RaftGroup, kind: EntryType, payload: bytes | bytearray) -> bool:
        """As `Sideloads`."""
        if kind not in _KINDS or group.raft_group < FIRST_PARTITION_GROUP:
            return True
        missing = self.missing(group, kind, payload)
        if not missing:
            return True
        is_wanted = kind == _COMMAND or self._sinks.was_opened(missing[0].key.stage)
        if is_wanted and group not in self._fetching and self._may_fetch(group):
            self._fetching.add(group)
            self._spawn(group, self._fetch_as_leader(group, missing, must=kind == _COMMAND))
        return False

    def servable(self, group: RaftGroup, entries: list[Entry]) -> list[Entry]:
        """As `Sideloads`."""
        for at, entry in enumerate(entries if group.raft_group >= FIRST_PARTITION_GROUP else ()):
            if entry.kind == _COMMAND:
                command = publication_in(entry.data)
                if not all(map(self._has, pieces_of(command, group.raft_group))):
                    return entries[:at]
        return entries

    def missing(self, group: RaftGroup, kind: int, payload: bytes | bytearray) -> list[PieceRef]:
        """The pieces that an entry needs and this node lacks."""
        if kind == _STAGED_PIECE:
            if why_undecodable(kind, payload):
                return []
            piece = parsed(StagedPiece, bytes(payload))
            key = PieceKey(piece.stage_number, group.raft_group, piece.number, piece.crc)
            if self._pieces.has(key) or self._sinks.is_gone(key.stage):
                return []
            return [PieceRef(key, piece.length, piece.records)]
        command = publication_in(payload)
        replica = group.application
        if isinstance(replica, PartitionReplica) and command.publication <= replica.publication:
            return []
        return [ref for ref in pieces_of(command, group.raft_group) if not self._has(ref)]

    def missing_staged(self, group: RaftGroup, pieces: Iterable[StagedPiece]) -> list[PieceRef]:
        """The pieces of stages that this node lacks, of those that a position names."""
        refs = [
            PieceRef(
                PieceKey(each.stage_number, group.raft_group, each.number, each.crc),
                each.length,
                each.records,
            )
            for each in pieces
        ]
        return [ref for ref in refs if not self._has(ref) and not self._sinks.is_gone(ref.key.stage)]

    async def fetch_staged(self, group: RaftGroup, pieces: Sequence[StagedPiece], first: int) -> bool:
        """Fetch these pieces, the first node asked first; False if some are not to be had now."""
        missing = self.missing_staged(group, pieces)
        while missing:
            await self.fetch(group, missing, first)
            before, missing = missing, self.missing_staged(group, pieces)
            if len(missing) == len(before):
                return False
        return True

    def _has(self, ref: PieceRef) -> bool:
        """True if a piece is here, and is what an entry says: its records take offsets."""
        return self._pieces.matches(*ref)

    def _may_fetch(self, group: RaftGroup) -> bool:
        failed = self._failed.get(group)
        return failed is None or self._loop.time() >= failed[0]

    # --- fetching ---------------------------------------------------------------------------------

    def _spawn(self, group: RaftGroup, work: Coroutine[object, object, None]) -> None:
        self._tasks.spawn(work, f"pieces of raft group {group.raft_group}")

    async def _fetch_and_step(self, group: RaftGroup, missing: Sequence[PieceRef], sender: int) -> None:
        try:
            has_all = await self.fetch(group, missing, sender)
        finally:
            held = self._held.pop(group)
        if has_all:
            for message in held.messages:
                self._step(group.raft_group, message)

    async def _fetch_as_leader(self, group: RaftGroup, missing: Sequence[PieceRef], *, must: bool) -> None:
        try:
            await self.fetch(group, missing, must=must)
        finally:
            self._fetching.discard(group)

    async def fetch(
        self, group: RaftGroup, missing: Sequence[PieceRef], first: int = NONE, *, must: bool = True
    ) -> bool:
        """Fetch pieces of a group from its other replicas; False if one of them is not to be had,
        or not soon.

        Args:
            first: the node to ask first.
            must: they are needed, whatever the limits.
        """
        async with self._slots:
            until = self._loop.time() + _TURN_S
            for ref in missing:
                if self._loop.time() > until:
                    return False
                failure = await self._fetch_piece(group, ref, first or group.leader, must=must)
                if failure is not None:
                    self._note_failure(group, ref, failure)
                    return False
        self._failed.pop(group, None)
        return True

    def _note_failure(self, group: RaftGroup, ref: PieceRef, failure: PixyError) -> None:
        _, backoff = self._failed.get(group, (0.0, Backoff(_PAUSE_S, _PAUSE_MAX_S)))
        self._failed[group] = (self._loop.time() + backoff.grow(), backoff)
        log.warning(
            "a replica lacks a piece of a stage, and cannot fetch it yet",
            raft_group=group.raft_group,
            stage=ref.key.stage,
            piece=ref.key.number,
            reason=str(failure),
        )

    async def _fetch_piece(
        self, group: RaftGroup, ref: PieceRef, first: int, *, must: bool
    ) -> PixyError | None:
        """Fetch a piece; returns the last reason if no node has it."""
        members = group.storage.conf_state.members
        order = sorted({*members, *self._nodes()}, key=lambda each: (each != first, each not in members))
        sources = [each for each in order if each != self._node_id]
        failure: PixyError = NotFound("there is no other replica")
        for node_id in sources:
            try:
                batches = await self._pull(node_id, ref)
                piece = NewPiece(ref.key, ref.records, batches)
                await self._turns.run(PiecesCheck([piece]))
                await self._pieces.put([piece], must=must)
            except InvalidArgument as error:
                failure = NotFound(f"node {node_id} has other bytes of it: {error}")
            except PixyError as error:
                failure = error
            else:
                return None
        return failure

    async def _pull(self, node_id: int, ref: PieceRef) -> memoryview:
        if ref.size > PIECE_BYTES_MAX:
            raise NotFound(f"no piece has {ref.size} bytes, {PIECE_BYTES_MAX} are allowed")
        batches = memoryview(bytearray(ref.size))
        for position in range(0, ref.size, _SLICE_BYTES):
            wanted = min(_SLICE_BYTES, ref.size - position)
            request = GetPieceRequest(
                stage=ref.key.stage,
                raft_group=ref.key.raft_group,
                number=ref.key.number,
                crc=ref.key.crc,
                position=position,
                max_bytes=wanted,
            )
            answer = await self._channel.call(
                node_id, PeerMethod.GET_PIECE, request.SerializeToString(), _TIMEOUT_S, bulk=True
            )
            response = decode_answer(GetPieceResponse, answer, 2 * _SLICE_BYTES)
            if not response.found:
                raise NotFound(f"node {node_id} does not have it")
            if len(response.batches) != wanted:
                raise NotFound(
                    f"node {node_id} answers with {len(response.batches)} bytes of it, {wanted} were asked for"
                )
            batches[position : position + wanted] = response.batches
        return batches


def _is_known(group: RaftGroup, entry: Entry) -> bool:
    """True if an entry is in the log: it was admitted before."""
    return entry.index <= group.applied_index or group.has_entry(LogPosition(entry.term, entry.index))
