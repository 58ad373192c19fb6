"""Retention of pieces: how long a node keeps the files of replicated stages.

    the stage is                                  then its file
    --------------------------------------------  ------------------------------------------------
    open, sealed, or part of an unfinished        stays
    publication
    not known yet: `sinks` is behind here         stays
    discarded or expired                          goes at once
    published, and not durable in the log of a    stays
    replica here
    published, and durable in all of them         stays for followers that lag, also for those that
                                                  leave the cluster, the newest
                                                  `journal.retain_bytes` of such files; then it
                                                  goes, and the entries that need it are not
                                                  served any more: such followers need a copy

A start does not know whether a stage that it does not find in `sinks` was published or discarded:
it keeps the file like a published one, and so it does when a snapshot replaces `sinks`. Entries
that are not applied yet, and those of the journal that a start applies again, say which files these
need.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence

from pixy.aio.steps import run_in_steps
from pixy.cluster.log import PartitionReplica
from pixy.cluster.publications.sideloading import pieces_of
from pixy.cluster.replicas import Partitions
from pixy.cluster.state import Publication, SinksState, publication_in
from pixy.proto.state_pb2 import PublicationPart, PublishParts, StagedPiece
from pixy.records import TopicPartition
from pixy.staging import Pieces, StageName, Stages
from pixy.storage import EntryType, StagedPart

_REMOVED_AT_ONCE = 100
"""Stages whose files are removed in one step of the event loop."""
_PARTS_PER_STEP = 500
"""Partitions of a publication that are looked for in one step of the event loop."""


class _Published:
    """A publication that is finished, or stages that are gone for an unknown reason.

    Attributes:
        publication: its number, 0 if it is not known.
        replicas: those here that have to have it in their logs, and are not known to have it.
        is_known: these are known.
    """

    __slots__ = ("is_known", "publication", "replicas")

    def __init__(self, publication: int, *, is_known: bool) -> None:
        self.publication = publication
        self.replicas: list[PartitionReplica] = []
        self.is_known = is_known

    @property
    def is_durable(self) -> bool:
        """True when the logs here have it without the files of its stages."""
        replicas = self.replicas
        while replicas and (replicas[-1].deleted or replicas[-1].durable_publication >= self.publication):
            replicas.pop()
        return self.is_known and not replicas


class _Need:
    """An entry of a replica's log that needs a stage: its publication, and its index, 0 if it is
    not known.
    """

    __slots__ = ("index", "publication")

    def __init__(self, publication: int, index: int) -> None:
        self.publication = publication
        self.index = index


class PieceRetention:
    """Keeps and removes the pieces of one node, and finds the parts that publications name.

    Args:
        stages: the stages that only this node has.
        pieces: its pieces; an attribute, too.
        state: the state group `sinks`.
        partitions: its partitions.
        retain_bytes: bytes of published stages that stay.
    """

    def __init__(
        self,
        stages: Stages,
        pieces: Pieces,
        state: SinksState,
        partitions: Partitions,
        retain_bytes: Callable[[], int],
    ) -> None:
        self._stages = stages
        self.pieces = pieces
        self._state = state
        self._partitions = partitions
        self._retain_bytes = retain_bytes
        # Stages that are published and finished, or gone, in that order.
        self._published: dict[int, _Published] = {}
        # Entries that need a stage, by its number and by replica.
        self._needs: dict[int, dict[PartitionReplica, _Need]] = {}

    def find_parts(self, replica: PartitionReplica, command: PublishParts) -> list[StagedPart]:
        """See `partitions.FindParts`. The parts stay until they are durable in the log."""
        topic_id, partition = replica.log.identity.topic_id, replica.log.identity.partition
        found: list[StagedPart] = []
        for number, part in enumerate(command.parts):
            if not part.stage_number:
                name = StageName(command.sink_id, part.stage_id)
                missing = f"{self._stages.directory}/publication {command.publication}, stage {number}"
                found.append(
                    self._stages.part(name, topic_id, partition)
                    or StagedPart(missing, part.bytes, part.records)
                )
        for ref in pieces_of(command, replica.raft_group):
            found.append(self.pieces.part(*ref))
            index = 0 if replica.group is None else replica.group.applied_index
            self._needs.setdefault(ref.key.stage, {})[replica] = _Need(command.publication, index)
        return found

    def staged(self, raft_group: int) -> list[StagedPiece]:
        """The pieces of a partition whose stages may yet be published."""
        return [
            StagedPiece(
                number=key.number,
                length=place.size,
                crc=key.crc,
                stage_number=key.stage,
                records=place.records,
            )
            for key, place in self.pieces.of_raft_group(raft_group)
            if not self._state.is_gone(key.stage)
        ]

    def partition_of(self, part: PublicationPart) -> PartitionReplica | None:
        """The partition of a part, wherever its replicas are; None if its topic is not known here,
        or not any more.
        """
        replica = self._partitions.get(TopicPartition(part.topic, part.partition))
        return replica if replica is not None and replica.log.identity.topic_id == part.topic_id else None

    # --- what becomes of stages -------------------------------------------------------------------

    def gone(self, numbers: Iterable[int]) -> None:
        """Stages were discarded, or have expired."""
        self.pieces.remove(numbers)

    def finished(self, publications: Iterable[Publication]) -> None:
        """Publications are forgotten."""
        for publication in publications:
            published = _Published(publication.number, is_known=False)
            for stage in publication.stages:
                if self.pieces.size_of(stage.number):
                    self._published[stage.number] = published
            run_in_steps(self._find_replicas(publication.parts if publication.stages else (), published))

    def _find_replicas(self, parts: Sequence[PublicationPart], published: _Published) -> Iterator[None]:
        for number, part in enumerate(parts, 1):
            replica = self.partition_of(part)
            if replica is not None and self._partitions.is_member(replica):
                published.replicas.append(replica)
            if not number % _PARTS_PER_STEP:
                yield
        published.is_known = True
        self.release()

    def reconcile(self) -> None:
        """Find files of stages that are gone, whatever has become of them."""
        for number in self.pieces.stages:
            if number not in self._published and self._state.is_gone(number):
                self._published[number] = _Published(0, is_known=True)
        self.release()

    def release(self) -> None:
        """Remove what need not stay. Called when publications have become durable, too."""
        sizes = {number: self.pieces.size_of(number) for number in self._published}
        retained_bytes, limit = sum(sizes.values()), self._retain_bytes()
        gone: list[int] = []
        for number, size in sizes.items() if retained_bytes > limit else ():
            if self._is_needed(number):
                continue
            if len(gone) == _REMOVED_AT_ONCE:
                asyncio.get_running_loop().call_soon(self.release)
                break
            gone.append(number)
            self._forget(number)
            retained_bytes -= size
            if retained_bytes <= limit:
                break
        self.pieces.remove(gone)
        self.pieces.retained_bytes = retained_bytes

    def _is_needed(self, number: int) -> bool:
        published = self._published[number]
        if not published.is_durable:
            return True
        if any(
            not replica.deleted and replica.durable_publication < need.publication
            for replica, need in self._needs.get(number, {}).items()
        ):
            return True
        return not published.publication and self._is_named_by_tail(number)

    def _is_named_by_tail(self, number: int) -> bool:
        """True if an entry that is not applied here makes the stage part of a log."""
        groups = map(self._partitions.find_group, self.pieces.raft_groups_of(number))
        return any(
            part.stage_number == number
            for group in groups
            for entry in (() if group is None else group.unapplied())
            if entry.kind == EntryType.COMMAND
            for part in publication_in(entry.data).parts
        )

    def _forget(self, number: int) -> None:
        del self._published[number]
        for replica, need in self._needs.pop(number, {}).items():
            group = replica.group
            if group is not None and not replica.deleted:
                group.compact(min(need.index, group.applied_index))
