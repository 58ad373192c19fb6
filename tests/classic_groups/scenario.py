"""A classic group under test: its clients, its time, and what is stored of it."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from pixy.classic_groups import (
    ClassicGroup,
    ClassicOptions,
    GroupCode,
    GroupJoin,
    GroupSync,
    Joined,
    LeavingMember,
    MemberProtocol,
    StoredClassicGroup,
    Synced,
)

SESSION_MS = 10_000
REBALANCE_MS = 60_000
DELAY_MS = 3000


class GroupScenario:
    """One group. Each request gets a ticket; `answers` has what was answered.

    Attributes:
        group: the machine.
        now_ms: the time.
        stored: what is stored, newest last.
        holds_writes: nothing is stored until `store`.
    """

    def __init__(
        self, options: ClassicOptions | None = None, stored: StoredClassicGroup | None = None
    ) -> None:
        self.options = options or ClassicOptions(initial_delay_ms=DELAY_MS)
        self.now_ms = 0.0
        self.stored: list[StoredClassicGroup] = [] if stored is None else [stored]
        self.writes: list[int] = []
        self.answers: dict[int, Joined | Synced] = {}
        self.holds_writes = False
        self._records: list[StoredClassicGroup] = []
        self._tickets, self._ids = count(1), count(1)
        self.group = self._made(stored)

    def _made(self, stored: StoredClassicGroup | None) -> ClassicGroup:
        return ClassicGroup(self.options, lambda name: f"{name}-{next(self._ids)}", stored, self.now_ms)

    def move(self) -> None:
        """Another coordinator takes over, with what is stored."""
        self.group.close(GroupCode.NOT_COORDINATOR)
        self.settle()
        self.writes.clear()
        self._records.clear()
        self.group = self._made(self.stored[-1] if self.stored else None)

    def settle(self) -> None:
        """Take the outputs."""
        while True:
            self.group.check_invariants()
            output = self.group.take()
            for ticket, answer in output.answers:
                assert ticket not in self.answers, "answered twice"
                self.answers[ticket] = answer
            for number, record in output.writes:
                self.writes.append(number)
                self._records.append(record)
            if not self.writes or self.holds_writes:
                return
            self._store()

    def _store(self) -> None:
        self.stored.append(self._records.pop(0))
        self.group.written(self.writes.pop(0), self.now_ms)

    def store(self) -> None:
        """Store what was held."""
        self._store()
        self.settle()

    def wait(self, ms: float) -> None:
        """Let time pass, with each timer at its time."""
        end_ms = self.now_ms + ms
        while (deadline_ms := self.group.deadline_ms) <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.group.advance(self.now_ms)
            self.settle()
        self.now_ms = end_ms

    # --- requests ---------------------------------------------------------------------------------

    def join(self, member_id: str = "", **changes: Any) -> int:
        """A ticket for a join."""
        ticket = next(self._tickets)
        self.group.join(ticket, joining(member_id, **changes), self.now_ms)
        self.settle()
        return ticket

    def joined(self, ticket: int) -> Joined:
        """The answer of a join."""
        answer = self.answers[ticket]
        assert isinstance(answer, Joined)
        return answer

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: Mapping[str, bytes] | None = None,
        instance_id: str | None = None,
        **more: Any,
    ) -> int:
        """A ticket for a sync."""
        ticket = next(self._tickets)
        sync = GroupSync(member_id, instance_id, generation, list((assignments or {}).items()), **more)
        self.group.sync(ticket, sync, self.now_ms)
        self.settle()
        return ticket

    def synced(self, ticket: int) -> Synced:
        """The answer of a sync."""
        answer = self.answers[ticket]
        assert isinstance(answer, Synced)
        return answer

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None = None) -> GroupCode:
        """The answer of a heartbeat."""
        code = self.group.heartbeat(member_id, instance_id, generation, self.now_ms)
        self.settle()
        return code

    def leave(self, *member_ids: str, instance_id: str | None = None) -> Sequence[GroupCode]:
        """The answers of members that leave."""
        codes = self.group.leave([LeavingMember(each, instance_id) for each in member_ids], self.now_ms)
        self.settle()
        return codes

    def commit(
        self, member_id: str, generation: int, instance_id: str | None = None, *, named: bool = True
    ) -> GroupCode:
        """The answer of a commit."""
        return self.group.why_no_commit(member_id, instance_id, generation, self.now_ms, named=named)

    # --- phases -----------------------------------------------------------------------------------

    def preparing(self, *clients: str) -> list[str]:
        """Members that have joined an empty group, and wait for others; their ids."""
        known = {*self.group.members.by_id}
        for client in clients:
            self.join(client_id=client, takes_member_id=False)
        return [each for each in self.group.members.by_id if each not in known]

    def completing(self, *clients: str) -> list[str]:
        """Members of a generation without an assignment; the first one leads."""
        ids = self.preparing(*clients)
        self.wait(2 * DELAY_MS)
        return ids

    def stable(self, *clients: str) -> list[str]:
        """Members with an assignment each, which is the name of its client."""
        ids = self.preparing(*clients)
        self.wait(2 * DELAY_MS)
        self.sync_all()
        return ids

    def sync_all(self) -> None:
        """All members sync; each is assigned the name of its client."""
        group = self.group
        plan = {each.member_id: each.client_id.encode() for each in group.members}
        for member_id in list(group.members.by_id):
            self.sync(member_id, group.generation, plan if member_id == group.leader else None)


def joining(member_id: str = "", **changes: Any) -> GroupJoin:
    """A join of a dynamic member of a usual consumer."""
    of: dict[str, Any] = {
        "instance_id": None,
        "client_id": "client",
        "client_host": "127.0.0.1",
        "protocol_type": "consumer",
        "protocols": [MemberProtocol("range", b"topics")],
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": REBALANCE_MS,
    }
    return GroupJoin(member_id, **{**of, **changes})
