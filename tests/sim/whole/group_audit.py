"""Audit of consumer groups: what clients got, acked and set is compared with what the nodes have
committed, and with the owners of the partitions, as the first node applies them.

- *skipped*: a record is committed as acked that no client got, unless offsets were set behind it,
  or it was acked while another node had it: what that one says nothing of, a client got.
- *again*: a record is handed out whose ack was committed before; or was answered, unless its owner
  was lost a commit interval later at most, or could not commit meanwhile. The same holds for an
  owner that was lost after it had handed the record out: what it did not commit nobody knows of.
- *back*: a committed offset is below the one before, and no client has set it.
- *not the owner*: a node hands out a record of a partition that it does not own.
- *under its lease*: a node is put out of a group for its silence, and may still hand out records.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest.mock import patch

from pixy.backend import EmbeddedBackend, OffsetCommit
from pixy.cluster import GroupsState, MemberId, Membership, Process
from pixy.cluster.state.group_members import NO_MEMBERS
from pixy.consume import decode
from pixy.consume.group.subscription import Subscription
from pixy.consume.lending import RecordPosition
from pixy.consume.partition import LivePartition
from pixy.errors import OffsetsSet, OwnedElsewhere
from pixy.proto.state_pb2 import ExpelProcess, GroupsCommand
from pixy.raft import Entry
from pixy.storage import EntryType
from tests.sim.kit.failure import require
from tests.sim.kit.scene import Scene
from tests.sim.whole.swarm import COMMIT_INTERVAL_S

_COMMIT_S = 1.0
"""Longest commit of a cluster in which nothing is wrong."""
_UNDER_WAY_S = 1.1
"""An offer that another node has lent is given back if it took longer."""
_VOIDING_S = 5.0
"""Records of the position before offsets were set are handed out for less than this: their owner
has a lease, or hears of it.
"""


class GroupPartition(NamedTuple):
    """A partition, for one consumer group."""

    group: str
    topic_id: bytes
    partition: int

    def __repr__(self) -> str:
        return f"{self.group} in {self.topic_id.hex()[:4]}/{self.partition}"


class _Ack(NamedTuple):
    """An ack that was answered; all in virtual time."""

    begun_at: float
    answered_at: float
    got_at: float


class _Loss(NamedTuple):
    """A process does not own a partition any more.

    Attributes:
        at, known_at: when it has ended, and when the nodes know.
        expected: it has given it up itself, and has committed its acks before.
    """

    at: float
    known_at: float
    process: Process
    expected: bool


@dataclass(slots=True)
class _Attempt:
    """A process commits or reads offsets of a group, which keeps other commits waiting."""

    begin: float
    end: float | None = None
    failed: bool = False


@dataclass(slots=True)
class _Partition:
    """The history of one partition.

    Attributes:
        got: offsets that some client got.
        kept: offsets that were acked while another node had the record.
        low: everything below was got, or set.
        acks: answered acks by offset.
        committed: the newest commit.
        committed_at: when offsets were first committed as acked since the group's were set.
        floor: the highest offset that was set.
        sets: when offsets were set.
        losses: of its owners, in the order of their application.
    """

    got: set[int] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)
    low: int = 0
    acks: dict[int, list[_Ack]] = field(default_factory=dict)
    committed: OffsetCommit | None = None
    committed_at: dict[int, float] = field(default_factory=dict)
    floor: int = 0
    sets: list[float] = field(default_factory=list)
    losses: list[_Loss] = field(default_factory=list)


class GroupAudit:
    """Audit of some consumer groups.

    Args:
        scene: see `Scene`.
        names: of the groups.
        lease_left: seconds for which a process may hand out records for a group; 0 if it has ended,
            or is about to end.
        is_strict: what an owner hands out itself was not acked a moment ago either.
    """

    def __init__(
        self,
        scene: Scene,
        names: Collection[str],
        lease_left: Callable[[Process, str], float],
        *,
        is_strict: bool = False,
    ) -> None:
        self._scene = scene
        self._is_strict = is_strict
        self.names = names
        self._lease_left = lease_left
        self._partitions: dict[GroupPartition, _Partition] = {}
        self._memberships: dict[str, Membership] = {}
        self._applied: dict[int, int] = {}
        self._ended: dict[Process, float] = {}
        self._attempts: dict[tuple[Process, str], list[_Attempt]] = {}
        self._pauses: dict[Process, list[tuple[float, float]]] = {}

    def _of(self, key: GroupPartition) -> _Partition:
        found = self._partitions.get(key)
        if found is None:
            found = self._partitions[key] = _Partition()
        return found

    # --- clients ----------------------------------------------------------------------------------

    def handed_out(self, key: GroupPartition, offset: int, process: Process | None) -> None:
        """A client gets a record.

        Args:
            process: where it is, if its partition is there.
        """
        partition, now = self._of(key), self._scene.now
        under_way_s = 0.0 if self._is_strict and process is not None else _UNDER_WAY_S
        if process is not None:
            owner = self._owner(key)
            require(
                owner is not None and owner.process == process,
                f"{key}: not the owner: {process} hands out {offset}, the owner is {owner}",
            )
        at = partition.committed_at.get(offset)
        require(
            at is None or now <= at + under_way_s,
            f"{key}: again: {offset} is handed out, and was committed as acked at {at}",
        )
        for ack in partition.acks.get(offset, ()):
            if now > ack.answered_at + under_way_s:
                self._check_again(key, partition, offset, ack)
        self._scene.counts["records handed out"] += 1
        self._scene.counts["records handed out again"] += offset in partition.got
        partition.got.add(offset)

    def _check_again(self, key: GroupPartition, partition: _Partition, offset: int, ack: _Ack) -> None:
        """Check that an ack that was answered may be lost."""
        if any(at >= ack.got_at - _VOIDING_S for at in partition.sets):
            return
        for since, known_since in (ack.answered_at, ack.begun_at), (ack.got_at, ack.got_at):
            losses = [loss for loss in partition.losses if loss.known_at >= known_since]
            last = since + COMMIT_INTERVAL_S + _COMMIT_S
            if any(
                (not loss.expected and loss.at <= last)
                or self._could_not_commit(key.group, loss.process, since)
                for loss in losses
            ):
                self._scene.counts["acks lost with their owner"] += 1
                return
        losses = [loss for loss in partition.losses if loss.known_at >= ack.got_at]
        require(False, f"{key}: again: {offset} is handed out, and its ack was answered: {ack}, {losses}")

    def _could_not_commit(self, group: str, process: Process, since: float) -> bool:
        begin, last = since, since + COMMIT_INTERVAL_S
        if any(at <= last and until >= begin for at, until in self._pauses.get(process, ())):
            return True
        due = last + 0.1
        for each in self._attempts.get((process, group), ()):
            if each.end is not None and each.end < begin:
                continue
            if each.begin > due:
                break
            if each.failed or each.end is None or each.end > last + _COMMIT_S:
                return True
            if each.begin <= last:
                # The commit that is due begins behind it.
                due = max(due, each.end)
        return False

    def acked(self, key: GroupPartition, offset: int, begun_at: float, got_at: float) -> None:
        """An ack of a record was answered."""
        ack = _Ack(begun_at, self._scene.now, got_at)
        self._of(key).acks.setdefault(offset, []).append(ack)
        self._scene.counts["acks answered"] += 1

    def got(self, key: GroupPartition) -> Collection[int]:
        """Offsets that some client got."""
        return self._of(key).got

    def first_missing(self, key: GroupPartition, end: int) -> int | None:
        """The first offset below `end` that no client got, None if there is none."""
        partition = self._of(key)
        partition.low = max(partition.low, partition.floor)
        while partition.low in partition.got:
            partition.low += 1
        return partition.low if partition.low < end else None

    def start_over(self) -> None:
        """Forget everything of processes: the nodes are others."""
        self._applied.clear()
        self._ended.clear()
        self._pauses.clear()
        self._attempts.clear()

    def describe(self, key: GroupPartition) -> str:
        """A partition, for a reader."""
        partition, membership = self._of(key), self._memberships.get(key.group, NO_MEMBERS)
        return f"committed {partition.committed}: {_brief(membership)}"

    # --- processes --------------------------------------------------------------------------------

    def ended(self, process: Process) -> None:
        """A process has ended."""
        self._ended.setdefault(process, self._scene.now)

    def paused(self, process: Process, until: float) -> None:
        """A process is paused."""
        self._pauses.setdefault(process, []).append((self._scene.now, until))

    @contextmanager
    def spying(self) -> Iterator[None]:
        """Hear of commits under way, and of acks that are kept."""

        def spy_on(name: str) -> Any:
            call = getattr(EmbeddedBackend, name)

            async def spy(backend: EmbeddedBackend, group: str, *args: Any, **options: Any) -> Any:
                if group not in self.names:
                    return await call(backend, group, *args, **options)
                process = Process(backend._node.node_id, backend._node.incarnation)
                attempt = _Attempt(self._scene.now)
                self._attempts.setdefault((process, group), []).append(attempt)
                try:
                    return await call(backend, group, *args, **options)
                except BaseException as error:
                    attempt.failed = not isinstance(error, OffsetsSet | OwnedElsewhere)
                    raise
                finally:
                    attempt.end = self._scene.now

            return patch.object(EmbeddedBackend, name, spy)

        keep = Subscription.ack_kept

        def spy_on_keep(subscription: Subscription, live: LivePartition, offset: int) -> None:
            position = RecordPosition(live.partition, offset)
            topic = subscription._environment.backend.topic(subscription.topic)
            if topic is not None and any(
                position in borrower.lending._sent for borrower in subscription.lender._borrowers.values()
            ):
                key = GroupPartition(subscription.group_name, topic.topic_id, live.partition)
                self._of(key).kept.add(offset)
            keep(subscription, live, offset)

        with ExitStack() as stack:
            stack.enter_context(patch.object(Subscription, "ack_kept", spy_on_keep))
            for name in ("commit_offsets", "committed_offsets"):
                stack.enter_context(spy_on(name))
            yield

    # --- entries that nodes apply -----------------------------------------------------------------

    def applied(self, raft_group: int, state: GroupsState, entries: Sequence[Entry]) -> None:
        """A node has applied entries of a state group."""
        before = self._applied.get(raft_group, 0)
        if entries[-1].index <= before:
            return
        self._applied[raft_group] = entries[-1].index
        names: dict[str, None] = {}
        was_set: dict[GroupPartition, int] = {}
        expelled: set[Process] = set()
        for entry in entries:
            if entry.index > before and entry.kind == EntryType.COMMAND:
                command = GroupsCommand.FromString(bytes(entry.data))
                names.update(dict.fromkeys(self._names_of(command)))
                if command.commit_offsets.set:
                    name = command.commit_offsets.group
                    for each in command.commit_offsets.offsets:
                        was_set[GroupPartition(name, each.topic_id, each.partition)] = each.offset
                if command.HasField("expel_process"):
                    expelled.add(self._expelled(command.expel_process, entry.term))
        for name in names:
            group = state._groups.get(name)
            self._changed_members(name, NO_MEMBERS if group is None else group.membership, expelled)
            for topic_id, offsets in ({} if group is None else group.offsets).items():
                for number, stored in offsets.items():
                    key = GroupPartition(name, topic_id, number)
                    self._committed(
                        key, OffsetCommit(stored.offset, stored.metadata.decode()), was_set.get(key)
                    )

    def _names_of(self, command: GroupsCommand) -> Sequence[str]:
        """The audited groups that a command is about."""
        kind = str(command.WhichOneof("command"))
        message = getattr(command, kind)
        if kind == "set_targets":
            found = [target.group for target in message.targets]
        elif kind in ("expel_process", "touch_groups", "expire_groups"):
            found = list(message.groups)
        else:
            found = [message.group] if hasattr(message, "group") else []
        return [name for name in found if name in self.names]

    def _expelled(self, command: ExpelProcess, term: int) -> Process:
        """A process is put out of groups."""
        process = Process(command.node_id, command.incarnation)
        if command.term in (0, term) and not command.newest_member:
            for name in command.groups:
                membership = self._memberships.get(name, NO_MEMBERS)
                if any(member_id.process == process for member_id in membership.members):
                    left = self._lease_left(process, name)
                    require(
                        left <= 0, f"{process} is put out of {name} under its lease of another {left:.2f} s"
                    )
            self._scene.counts["members put out for their silence"] += bool(command.term)
        return process

    def _owner(self, key: GroupPartition) -> MemberId | None:
        return self._memberships.get(key.group, NO_MEMBERS).owner(key.topic_id, key.partition)

    def _changed_members(self, name: str, membership: Membership, expelled: Collection[Process]) -> None:
        before = self._memberships.get(name, NO_MEMBERS)
        self._memberships[name] = membership
        if membership.topics is before.topics:
            return
        now = self._scene.now
        for topic_id, of in before.topics.items():
            for number, owner in enumerate(of.owners):
                if owner is not None and membership.owner(topic_id, number) != owner:
                    process = owner.process
                    expected = process not in expelled and process not in self._ended
                    at = min(now, self._ended.get(process, now))
                    self._of(GroupPartition(name, topic_id, number)).losses.append(
                        _Loss(at, now, process, expected)
                    )
                    self._scene.counts["partitions that moved"] += 1
        self._scene.note(f"{name}: {_brief(membership)}")

    def _committed(self, key: GroupPartition, commit: OffsetCommit, was_set: int | None) -> None:
        partition = self._of(key)
        before, partition.committed = partition.committed, commit
        if was_set is not None:
            partition.sets.append(self._scene.now)
            partition.floor = max(partition.floor, was_set)
            partition.committed_at.clear()
            self._scene.counts["offsets set"] += 1
            self._scene.note(f"{key}: set to {commit.offset}")
            return
        if commit == before:
            return
        begin = 0 if before is None else before.offset
        require(commit.offset >= begin, f"{key}: back: {commit} is committed behind {before}")
        self._scene.counts["offsets committed"] += 1
        self._scene.note(f"{key}: committed {commit}")
        ranges = [range(begin, commit.offset), *[range(*each) for each in decode(*commit)]]
        for offset in [offset for each in ranges for offset in each]:
            known = offset < partition.floor or offset in partition.got
            if not known and offset in partition.kept:
                # By a wrong ack; its node may hand it out yet.
                partition.got.add(offset)
                continue
            require(known, f"{key}: skipped: {commit} is committed, and no client got {offset}")
            partition.committed_at.setdefault(offset, self._scene.now)


def _brief(membership: Membership) -> str:
    members = ", ".join(f"{each.node_id}.{each.incarnation}.{each.number}" for each in membership.members)
    topics = [
        (
            topic_id.hex()[:4],
            [each and each.node_id for each in of.owners],
            [each and each.node_id for each in of.targets],
        )
        for topic_id, of in membership.topics.items()
    ]
    return f"members {members}, owners and targets {topics}"
