"""The coordinator's side of one classic group: a state machine.

    phase       parked  goes to
    ----------  ------  ----------------------------------------------------------------------------
    EMPTY               PREPARING with the first join
    PREPARING   joins   COMPLETING when all members have joined, or their time is over; EMPTY if
                        none is left
    COMPLETING  syncs   STABLE once the leader's assignment is stored; PREPARING when somebody
                        comes, goes, or joins with something else
    STABLE              PREPARING for the same, and when the leader joins again
    DEAD                nothing: another coordinator has the group, or it was deleted

A generation is stored when it begins, before anybody is told of it, so that no other coordinator
gives it out again; then with its assignment, before anybody is told of that. Everything that is
said while something is being stored waits until it is. What cannot be stored ends the machine
(`close`): whoever loads the group next begins with what is stored.

A new coordinator goes on in the phase that is stored: members that know the generation sync, others
join again. Kafka's forgets a rebalance that was under way.

Source: GroupMetadataManager.java and ClassicGroup.java of Apache Kafka.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from math import inf

from pixy.classic_groups.codes import GroupCode
from pixy.classic_groups.members import ClassicMember, ClassicMembers, joined_bytes, restored
from pixy.classic_groups.values import (
    ClassicOptions,
    GroupJoin,
    GroupOutput,
    GroupSync,
    Joined,
    LeavingMember,
    StoredClassicGroup,
    Synced,
)

_PARKED_MAX = 2
"""Parked requests of one member: a client that has lost its connection asks again."""
_GENERATION_MAX = (1 << 31) - 1


class GroupPhase(Enum):
    """A phase, by its name in Kafka."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class ClassicGroup:
    """One group.

    Args:
        options: limits and times.
        new_id: makes an id that no member ever had, from a client's name.
        stored: what is stored of the group, None if nothing is.
        now_ms: the time.

    Attributes:
        phase: see `GroupPhase`.
        generation: number of the last rebalance that has gathered its members.
        protocol_type: the kind of its members, "" until there is one.
        protocol: the selected one, "" without members.
        leader: the member that assigns.
    """

    def __init__(
        self,
        options: ClassicOptions,
        new_id: Callable[[str], str],
        stored: StoredClassicGroup | None,
        now_ms: float,
    ) -> None:
        self._options = options
        self._new_id = new_id
        self.phase = GroupPhase.EMPTY
        self.generation = 0
        self.protocol_type = self.protocol = self.leader = ""
        self.members = ClassicMembers()
        # Ids that were given out and have not joined yet, with the end of their time.
        self._pending: dict[str, float] = {}
        # End of the wait for joins, inf unless PREPARING.
        self._join_ms = inf
        # Of a rebalance from EMPTY: how much longer than `_join_ms` it may be put off, and whether
        # somebody has come since it was last put off. Invariant: None unless PREPARING.
        self._put_off: tuple[float, bool] | None = None
        # End of the wait for syncs. Invariant: inf unless COMPLETING or STABLE.
        self._sync_ms = inf
        # Numbers of the last write and of the last that is stored. Invariant: ascending.
        self._write = self._written = 0
        # The write of the assignment of a COMPLETING generation, 0 before.
        self._sync_write = 0
        self._writes: list[tuple[int, StoredClassicGroup]] = []
        self._answers: list[tuple[int, Joined | Synced]] = []
        # Answers behind writes. Invariant: ascending.
        self._held: list[tuple[int, int, Joined | Synced]] = []
        if stored is not None:
            self._load(stored, now_ms)

    def _load(self, stored: StoredClassicGroup, now_ms: float) -> None:
        self.generation, self.protocol_type = stored.generation, stored.protocol_type
        self.protocol, self.leader = stored.protocol, stored.leader
        for each in stored.members:
            member = restored(each, stored.protocol, now_ms)
            member.has_synced = stored.is_assigned
            self.members.add(member)
        if len(self.members):
            self.phase = GroupPhase.STABLE if stored.is_assigned else GroupPhase.COMPLETING
        if self.phase is GroupPhase.COMPLETING:
            self._sync_ms = now_ms + self.members.rebalance_timeout_ms
        if len(self.members) > self._options.members_max:
            self._prepare(now_ms)

    # --- what is to be done -----------------------------------------------------------------------

    def take(self) -> GroupOutput:
        """Writes and answers since the last call."""
        output = GroupOutput(self._writes, self._answers)
        self._writes, self._answers = [], []
        return output

    @property
    def deadline_ms(self) -> float:
        """Time at which `advance` has something to do, inf for never."""
        timers = [self._join_ms, self._sync_ms]
        if not self._is_writing:
            timers += self._pending.values()
            timers += [each.expires_ms for each in self.members]
        return min(timers)

    @property
    def is_idle(self) -> bool:
        """True if nothing would be lost with this object."""
        is_empty = self.phase is GroupPhase.EMPTY and not self._pending
        return self.phase is GroupPhase.DEAD or (is_empty and not self._is_writing)

    @property
    def is_held(self) -> bool:
        """True if it has members, or somebody is about to be one."""
        return bool(len(self.members) or self._pending)

    def stored(self) -> StoredClassicGroup:
        """The group as it is stored; the assignments are empty unless it is STABLE."""
        return self._stored(is_assigned=self.phase is GroupPhase.STABLE)

    # --- requests ---------------------------------------------------------------------------------

    def join(self, ticket: int, join: GroupJoin, now_ms: float) -> None:
        """A member comes, or joins again. Answered by a `Joined` for the ticket.

        Args:
            ticket: of the request, never used before.
        """
        code = self._why_no_join(join)
        static = self.members.of_instance(join.instance_id)
        if code:
            self._say(ticket, Joined(code, join.member_id))
            if code is GroupCode.GROUP_MAX_SIZE_REACHED and join.member_id:
                self.leave([LeavingMember(join.member_id, None)], now_ms)
        elif join.member_id in self._pending and join.instance_id is None:
            self._add(ticket, join, join.member_id, now_ms)
        elif join.member_id:
            self._join_again(ticket, join, now_ms)
        elif static is not None:
            self._replace(ticket, join, static, now_ms)
        elif join.instance_id is None and join.takes_member_id:
            # KIP-394: whoever never comes back with the id was never a member.
            member_id = self._new_id(join.client_id)
            self._pending[member_id] = now_ms + join.session_timeout_ms
            self._say(ticket, Joined(GroupCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(ticket, join, self._new_id(join.instance_id or join.client_id), now_ms)

    def sync(self, ticket: int, sync: GroupSync, now_ms: float) -> None:
        """A member asks for its assignment; the leader brings all. Answered by a `Synced`."""
        code = self._why_no_sync(sync)
        if code:
            self._say(ticket, Synced(code))
            return
        member = self.members.by_id[sync.member_id]
        member.has_synced = True
        if all(each.has_synced for each in self.members):
            self._sync_ms = inf
        if self.phase is GroupPhase.STABLE:
            member.begin_session(now_ms)
            self._say(ticket, self._synced(member))
            return
        self._park(member.syncs, ticket, Synced(GroupCode.REBALANCE_IN_PROGRESS))
        if member.member_id == self.leader and not self._sync_write:
            self._assign(dict(sync.assignments), now_ms)

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: float) -> GroupCode:
        """A member is alive."""
        code = self._why_not_in(generation, member_id, instance_id)
        if code:
            return code
        self.members.by_id[member_id].begin_session(now_ms)
        if self.phase is GroupPhase.PREPARING:
            return GroupCode.REBALANCE_IN_PROGRESS
        return GroupCode.NONE

    def leave(self, leaving: Iterable[LeavingMember], now_ms: float) -> list[GroupCode]:
        """Members go; returns a code for each."""
        before = len(self.members)
        codes = [self._leave(each) for each in leaving]
        self._gone(before, now_ms)
        return codes

    def why_no_commit(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: float, *, named: bool
    ) -> GroupCode:
        """The reason to refuse a commit of offsets, NONE if there is none: its member is alive.

        Args:
            named: the client knows the code GROUP_ID_NOT_FOUND, version 9 and above.
        """
        if generation < 0 and self.phase is GroupPhase.EMPTY:
            return GroupCode.NONE  # KAFKA-14201: whatever else it says
        if self._is_unknown:
            return GroupCode.GROUP_ID_NOT_FOUND if named else GroupCode.ILLEGAL_GENERATION
        if generation < 0 and not member_id and instance_id is None and self.phase is not GroupPhase.DEAD:
            return GroupCode.UNKNOWN_MEMBER_ID
        code = self._why_not_in(generation, member_id, instance_id)
        if not code and self.phase is GroupPhase.COMPLETING:
            code = GroupCode.REBALANCE_IN_PROGRESS
        if not code:
            self.members.by_id[member_id].begin_session(now_ms)
        return code

    # --- events -----------------------------------------------------------------------------------

    def written(self, number: int, now_ms: float) -> None:
        """A write is stored, with all before it."""
        self._written = number
        while self._held and self._held[0][0] <= number:
            _, ticket, answer = self._held.pop(0)
            self._answers.append((ticket, answer))
        if number == self._sync_write and self.phase is GroupPhase.COMPLETING:
            self.phase = GroupPhase.STABLE
            for member in self.members:
                for ticket in _taken(member.syncs):
                    self._say(ticket, self._synced(member))
        for member in self.members:
            # Their answers have waited for this, and they for these.
            if not member.is_new:
                member.begin_session(now_ms)

    def close(self, code: GroupCode) -> None:
        """The group is another coordinator's, or gone: whatever waits is answered so."""
        self.phase = GroupPhase.DEAD
        for _, ticket, answer in self._held:
            refusal = Joined(code) if isinstance(answer, Joined) else Synced(code)
            self._answers.append((ticket, refusal))
        for member in self.members:
            self._answers += [(ticket, Joined(code, member.member_id)) for ticket in member.joins]
            self._answers += [(ticket, Synced(code)) for ticket in member.syncs]
        self.members = ClassicMembers()
        self._held, self._writes, self._pending = [], [], {}
        self._join_ms = self._sync_ms = inf
        self._put_off = None

    def advance(self, now_ms: float) -> None:
        """Time has passed."""
        if self._join_ms <= now_ms:
            self._end_joins(now_ms)
        if self._sync_ms <= now_ms:
            self._sync_ms = inf
            late = [each.member_id for each in self.members if not each.has_synced]
            self._expel(late, now_ms)
        if self._is_writing:
            return  # nobody is late because of what is not stored yet
        over = [member_id for member_id, end_ms in self._pending.items() if end_ms <= now_ms]
        for member_id in over:
            del self._pending[member_id]
        silent = [each.member_id for each in self.members if each.expires_ms <= now_ms]
        if over or silent:
            self._expel(silent, now_ms)

    def _end_joins(self, now_ms: float) -> None:
        if self._put_off is not None:
            left_ms, has_newcomers = self._put_off
            if has_newcomers and left_ms > 0:
                delay_ms = min(self._options.initial_delay_ms, left_ms)
                self._put_off = (left_ms - delay_ms, False)
                self._join_ms = now_ms + delay_ms
                return
        self._complete(now_ms)

    def _expel(self, member_ids: Sequence[str], now_ms: float) -> None:
        before = len(self.members)
        for member_id in member_ids:
            self._remove(member_id)
        self._gone(before, now_ms)

    # --- checks -----------------------------------------------------------------------------------

    def _why_no_join(self, join: GroupJoin) -> GroupCode:
        options = self._options
        if not options.session_min_ms <= join.session_timeout_ms <= options.session_max_ms:
            return GroupCode.INVALID_SESSION_TIMEOUT
        if join.member_id and self._is_unknown:
            return GroupCode.UNKNOWN_MEMBER_ID
        if self.phase is GroupPhase.DEAD:
            return GroupCode.COORDINATOR_NOT_AVAILABLE
        if self._is_full(join.member_id):
            return GroupCode.GROUP_MAX_SIZE_REACHED
        if not self._takes_protocols(join):
            return GroupCode.INCONSISTENT_GROUP_PROTOCOL
        return self._why_too_large(join)

    def _why_too_large(self, join: GroupJoin) -> GroupCode:
        options = self._options
        size, member = joined_bytes(join), self.members.get(join.member_id)
        if size + len(join.protocol_type) > options.member_bytes_max:
            return GroupCode.INVALID_REQUEST
        if self.members.size + size - (0 if member is None else member.size) > options.group_bytes_max:
            return GroupCode.GROUP_MAX_SIZE_REACHED
        return GroupCode.NONE

    def _is_full(self, member_id: str) -> bool:
        most, joined = self._options.members_max, self.members.joined
        if self.phase is GroupPhase.PREPARING:
            is_full = member_id not in joined and len(joined) >= most
        else:
            is_full = member_id not in self.members.by_id and len(self.members) >= most
        # Kafka bounds no ids that are given out.
        return is_full or (not member_id and len(self._pending) >= most)

    def _takes_protocols(self, join: GroupJoin) -> bool:
        if not join.protocol_type or not join.protocols:
            return False
        if not len(self.members):
            return True
        return join.protocol_type == self.protocol_type and self.members.supports(join.protocols)

    def _why_no_member(self, member_id: str, instance_id: str | None) -> GroupCode:
        """The check of a member, by its id and its instance."""
        if self.phase is GroupPhase.DEAD:
            return GroupCode.COORDINATOR_NOT_AVAILABLE
        if instance_id is not None:
            holder = self.members.of_instance(instance_id)
            if holder is not None and holder != member_id:
                return GroupCode.FENCED_INSTANCE_ID
            if holder is None:
                return GroupCode.UNKNOWN_MEMBER_ID
        if self.members.get(member_id) is None:
            return GroupCode.UNKNOWN_MEMBER_ID
        return GroupCode.NONE

    def _why_not_in(self, generation: int, member_id: str, instance_id: str | None) -> GroupCode:
        code = self._why_no_member(member_id, instance_id)
        if not code and generation != self.generation:
            return GroupCode.ILLEGAL_GENERATION
        return code

    def _why_no_sync(self, sync: GroupSync) -> GroupCode:
        code = self._why_not_in(sync.generation, sync.member_id, sync.instance_id)
        if code:
            return code
        if sync.protocol_type not in (None, self.protocol_type) or sync.protocol not in (None, self.protocol):
            return GroupCode.INCONSISTENT_GROUP_PROTOCOL
        if self.phase is GroupPhase.PREPARING:
            return GroupCode.REBALANCE_IN_PROGRESS
        return GroupCode.NONE

    @property
    def _is_unknown(self) -> bool:
        """True of a group that nobody has ever joined, or none that is remembered."""
        return not (self.generation or self.is_held or self.phase is GroupPhase.DEAD)

    # --- members ----------------------------------------------------------------------------------

    def _add(self, ticket: int, join: GroupJoin, member_id: str, now_ms: float) -> None:
        self._pending.pop(member_id, None)
        if not len(self.members):
            self.protocol_type = join.protocol_type
        member = ClassicMember(member_id, join)
        member.deadline_ms = now_ms + self._options.first_join_max_ms
        self.members.add(member)
        self.leader = self.leader or member_id
        if self._put_off is not None:
            self._put_off = (self._put_off[0], True)
        self._park_join(member, ticket)
        self._rebalance(now_ms)

    def _join_again(self, ticket: int, join: GroupJoin, now_ms: float) -> None:
        code = self._why_no_member(join.member_id, join.instance_id)
        if code:
            self._say(ticket, Joined(code, join.member_id))
            return
        member = self.members.by_id[join.member_id]
        is_same = member.protocols == tuple(join.protocols)
        leads_again = self.phase is GroupPhase.STABLE and member.member_id == self.leader
        if self.phase is GroupPhase.PREPARING or not is_same or leads_again:
            self.members.update(member, join)
            self._park_join(member, ticket)
            self._rebalance(now_ms)
        else:
            # Its answer was lost.
            member.begin_session(now_ms)
            self._say(ticket, self._joined(member))

    def _replace(self, ticket: int, join: GroupJoin, old_id: str, now_ms: float) -> None:
        """A static member has started again: it gets a new id, and the old one is fenced
        (KIP-345).
        """
        leader_before = self.leader
        before = self.members.remove(old_id)
        for each in _taken(before.joins):
            self._say(each, Joined(GroupCode.FENCED_INSTANCE_ID, old_id))
        for each in _taken(before.syncs):
            self._say(each, Synced(GroupCode.FENCED_INSTANCE_ID))
        member = ClassicMember(self._new_id(join.instance_id or ""), join)
        member.is_new, member.has_synced = False, before.has_synced
        member.assignment = before.assignment
        member.begin_session(now_ms)
        self.members.add(member)
        if self.leader == old_id:
            self.leader = member.member_id
        if self.phase is GroupPhase.STABLE and self.members.select_protocol() == self.protocol:
            self._store(is_assigned=True)
            if join.skips_assignment:
                leads = member.member_id == self.leader
                self._say(ticket, self._joined(member)._replace(skip_assignment=leads))
            else:
                # It would assign if it were told that it leads.
                self._say(ticket, self._joined(member)._replace(leader=leader_before, members=()))
        else:
            self._park_join(member, ticket)
            self._rebalance(now_ms)

    def _leave(self, leaving: LeavingMember) -> GroupCode:
        member_id, instance_id = leaving
        if self.phase is GroupPhase.DEAD:
            return GroupCode.COORDINATOR_NOT_AVAILABLE
        if not member_id:
            member_id = self.members.of_instance(instance_id) or ""
        if member_id in self._pending and instance_id is None:
            del self._pending[member_id]
            return GroupCode.NONE
        code = self._why_no_member(member_id, instance_id)
        if not code:
            self._remove(member_id)
        return code

    def _remove(self, member_id: str) -> None:
        member = self.members.remove(member_id)
        for ticket in _taken(member.joins):
            self._say(ticket, Joined(GroupCode.UNKNOWN_MEMBER_ID, member_id))
        for ticket in _taken(member.syncs):
            self._say(ticket, Synced(GroupCode.UNKNOWN_MEMBER_ID))
        if self.leader == member_id:
            self.leader = next(iter(self.members.by_id), "")

    def _gone(self, before: int, now_ms: float) -> None:
        """Members have gone, of which there were so many, or ids that were given out."""
        if self.phase is GroupPhase.PREPARING:
            self._maybe_complete(now_ms)
        elif len(self.members) < before:
            self._prepare(now_ms)

    # --- rebalances -------------------------------------------------------------------------------

    def _rebalance(self, now_ms: float) -> None:
        if self.phase is GroupPhase.PREPARING:
            self._maybe_complete(now_ms)
        else:
            self._prepare(now_ms)

    def _prepare(self, now_ms: float) -> None:
        """Begin to gather joins."""
        if self.phase is GroupPhase.COMPLETING:
            for member in self.members:
                for ticket in _taken(member.syncs):
                    member.begin_session(now_ms)
                    self._say(ticket, Synced(GroupCode.REBALANCE_IN_PROGRESS))
        self._sync_ms, self._sync_write = inf, 0
        is_first = self.phase is GroupPhase.EMPTY
        self.phase = GroupPhase.PREPARING
        timeout_ms = self.members.rebalance_timeout_ms
        if is_first:
            # Others are about to come.
            delay_ms = min(self._options.initial_delay_ms, timeout_ms)
            self._join_ms = now_ms + delay_ms
            self._put_off = (timeout_ms - delay_ms, False)
            if not delay_ms:
                self._complete(now_ms)
        else:
            self._join_ms = now_ms + timeout_ms
            self._maybe_complete(now_ms)

    def _maybe_complete(self, now_ms: float) -> None:
        have_all_joined = len(self.members.joined) == len(self.members) and not self._pending
        if have_all_joined and self._put_off is None:
            self._complete(now_ms)

    def _complete(self, now_ms: float) -> None:
        """No joins are waited for any more."""
        joined = self.members.joined
        late = [each.member_id for each in self.members if each.instance_id is None and not each.joins]
        for member_id in late:
            self._remove(member_id)
        if len(self.members) and not joined:
            # Static members are there for all of their sessions.
            self._join_ms = now_ms + self.members.rebalance_timeout_ms
            return
        self._join_ms, self._put_off = inf, None
        self.generation = self.generation % _GENERATION_MAX + 1
        if not len(self.members):
            self.phase, self.protocol, self.leader = GroupPhase.EMPTY, "", ""
            self._store(is_assigned=False)
            return
        if self.leader not in joined:
            self.leader = next(each.member_id for each in self.members if each.joins)
        self.phase = GroupPhase.COMPLETING
        self.protocol = self.members.select_protocol()
        self._sync_ms = now_ms + self.members.rebalance_timeout_ms
        self._store(is_assigned=False)
        for member in self.members:
            self.members.assign(member, b"")
            member.is_new = member.has_synced = False
            member.begin_session(now_ms)
            for ticket in _taken(member.joins):
                self._say(ticket, self._joined(member))
        joined.clear()

    def _assign(self, assignments: dict[str, bytes], now_ms: float) -> None:
        """The leader has decided."""
        size = sum(len(assignments.get(each.member_id, b"")) for each in self.members)
        if self.members.size + size > self._options.group_bytes_max:
            for member in self.members:
                for ticket in _taken(member.syncs):
                    self._say(ticket, Synced(GroupCode.UNKNOWN_SERVER_ERROR))
            self._prepare(now_ms)
            return
        for member in self.members:
            self.members.assign(member, assignments.get(member.member_id, b""))
        self._sync_write = self._store(is_assigned=True)

    # --- parts ------------------------------------------------------------------------------------

    def _joined(self, member: ClassicMember) -> Joined:
        leads = member.member_id == self.leader
        return Joined(
            GroupCode.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader,
            [each.seen(self.protocol) for each in self.members] if leads else (),
        )

    def _synced(self, member: ClassicMember) -> Synced:
        return Synced(GroupCode.NONE, member.assignment, self.protocol_type, self.protocol)

    def _stored(self, *, is_assigned: bool) -> StoredClassicGroup:
        members = [each.stored(self.protocol) for each in self.members]
        if not is_assigned:
            members = [each._replace(assignment=b"") for each in members]
        return StoredClassicGroup(
            self.generation, self.protocol_type, self.protocol, self.leader, is_assigned, members
        )

    def _store(self, *, is_assigned: bool) -> int:
        self._write += 1
        self._writes.append((self._write, self._stored(is_assigned=is_assigned)))
        return self._write

    @property
    def _is_writing(self) -> bool:
        return self._written < self._write

    def _park_join(self, member: ClassicMember, ticket: int) -> None:
        self.members.joined.add(member.member_id)
        self._park(member.joins, ticket, Joined(GroupCode.REBALANCE_IN_PROGRESS, member.member_id))

    def _park(self, parked: list[int], ticket: int, too_many: Joined | Synced) -> None:
        """Park a request of a member; of more than its connections can have the oldest goes."""
        if len(parked) == _PARKED_MAX:
            self._say(parked.pop(0), too_many)
        parked.append(ticket)

    def _say(self, ticket: int, answer: Joined | Synced) -> None:
        """Answer a request, once everything is stored that the answer may rest on."""
        if self._is_writing:
            self._held.append((self._write, ticket, answer))
        else:
            self._answers.append((ticket, answer))

    # --- invariants -------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Assert what holds after every step."""
        self.members.check_invariants()
        preparing = self.phase is GroupPhase.PREPARING
        assert (self._join_ms < inf) == preparing
        assert self._put_off is None or preparing
        assert self._sync_ms == inf or self.phase in (GroupPhase.COMPLETING, GroupPhase.STABLE)
        assert not self.members.joined or preparing
        assert not any(each.syncs for each in self.members) or self.phase is GroupPhase.COMPLETING
        if self.phase in (GroupPhase.EMPTY, GroupPhase.DEAD):
            assert not len(self.members)
        elif len(self.members):
            assert self.leader in self.members.by_id
        assert self._written <= self._write
        assert not self._held or self._is_writing


def _taken(tickets: list[int]) -> list[int]:
    """The tickets, of which none is left."""
    taken = tickets[:]
    tickets.clear()
    return taken
