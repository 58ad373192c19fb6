"""Members of one classic group: by id and by instance, and the protocols that they share."""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf

from pixy.classic_groups.values import GroupJoin, MemberProtocol, SeenMember, StoredClassicMember

_PROTOCOL_BYTES = 200
"""Memory of a protocol besides its name and metadata."""


class ClassicMember:
    """One member.

    Attributes:
        member_id: of this start of the client.
        instance_id: of a static member, else None.
        client_id, client_host: for operators.
        protocols: those that it knows, by its preference.
        session_timeout_ms, rebalance_timeout_ms: as it has asked for.
        assignment: what the leader has given it in this generation.
        joins, syncs: tickets of its parked requests.
        is_new: it has never had an answer to a join.
        has_synced: it has asked for its assignment in this generation.
        deadline_ms: end of its session.
    """

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "deadline_ms",
        "has_synced",
        "instance_id",
        "is_new",
        "joins",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "syncs",
    )

    def __init__(self, member_id: str, join: GroupJoin) -> None:
        self.member_id = member_id
        self.instance_id = join.instance_id
        self.assignment = b""
        self.joins: list[int] = []
        self.syncs: list[int] = []
        self.is_new = True
        self.has_synced = False
        self.deadline_ms = inf
        self.update(join)

    def update(self, join: GroupJoin) -> None:
        """Take over what a join says."""
        self.client_id, self.client_host = join.client_id, join.client_host
        self.protocols = tuple(join.protocols)
        self.session_timeout_ms = join.session_timeout_ms
        self.rebalance_timeout_ms = (
            join.session_timeout_ms if join.rebalance_timeout_ms is None else join.rebalance_timeout_ms
        )

    @property
    def expires_ms(self) -> float:
        """End of its membership. None while a request of it is parked, but a new member: its client
        may have given up, and be here under another id (KAFKA-7610).
        """
        is_parked = self.syncs or (self.joins and not self.is_new)
        return inf if is_parked else self.deadline_ms

    def begin_session(self, now_ms: float) -> None:
        """It has a full session timeout from now on."""
        self.deadline_ms = now_ms + self.session_timeout_ms

    def metadata_of(self, protocol: str) -> bytes:
        """Its subscription in the terms of a protocol."""
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")

    @property
    def size(self) -> int:
        """Bytes of its names, protocols and assignment."""
        return joined_bytes(self) + len(self.member_id) + len(self.assignment)

    def seen(self, protocol: str) -> SeenMember:
        """The member as the leader sees it."""
        return SeenMember(self.member_id, self.instance_id, self.metadata_of(protocol))

    def stored(self, protocol: str) -> StoredClassicMember:
        """The member as it is stored."""
        return StoredClassicMember(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            self.metadata_of(protocol),
            self.assignment,
        )


def joined_bytes(of: GroupJoin | ClassicMember) -> int:
    """Bytes of names and metadata in a join, or of a member, with the objects that they are."""
    texts = len(of.client_id) + len(of.client_host) + len(of.instance_id or "")
    return texts + sum(_PROTOCOL_BYTES + len(each.name) + len(each.metadata) for each in of.protocols)


def restored(stored: StoredClassicMember, protocol: str, now_ms: float) -> ClassicMember:
    """A member as it was stored, with a full session timeout."""
    join = GroupJoin(
        member_id=stored.member_id,
        instance_id=stored.instance_id,
        client_id=stored.client_id,
        client_host=stored.client_host,
        protocol_type="",
        protocols=[MemberProtocol(protocol, stored.metadata)],
        session_timeout_ms=stored.session_timeout_ms,
        rebalance_timeout_ms=stored.rebalance_timeout_ms,
    )
    member = ClassicMember(stored.member_id, join)
    member.assignment = stored.assignment
    member.is_new = False
    member.begin_session(now_ms)
    return member


class ClassicMembers:
    """The members of a group, in the order in which they came.

    Attributes:
        by_id: members by id.
        joined: ids of those with parked joins. Invariant: they are in `by_id`.
        size: bytes of all members.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, ClassicMember] = {}
        self.joined: set[str] = set()
        self.size = 0
        # Ids of static members by instance.
        self._by_instance: dict[str, str] = {}
        # Number of members that know a protocol, by its name.
        self._supporters: Counter[str] = Counter()

    def __iter__(self) -> Iterator[ClassicMember]:
        return iter(self.by_id.values())

    def __len__(self) -> int:
        return len(self.by_id)

    def get(self, member_id: str) -> ClassicMember | None:
        """A member by its id."""
        return self.by_id.get(member_id)

    def of_instance(self, instance_id: str | None) -> str | None:
        """Id of the static member of an instance."""
        return None if instance_id is None else self._by_instance.get(instance_id)

    def add(self, member: ClassicMember) -> None:
        """A member comes."""
        self.by_id[member.member_id] = member
        if member.instance_id is not None:
            self._by_instance[member.instance_id] = member.member_id
        self._count(member)

    def remove(self, member_id: str) -> ClassicMember:
        """A member goes."""
        member = self.by_id.pop(member_id)
        self.joined.discard(member_id)
        if member.instance_id is not None and self._by_instance.get(member.instance_id) == member_id:
            del self._by_instance[member.instance_id]
        self._discount(member)
        return member

    def update(self, member: ClassicMember, join: GroupJoin) -> None:
        """A member joins again."""
        self._discount(member)
        member.update(join)
        self._count(member)

    def assign(self, member: ClassicMember, assignment: bytes) -> None:
        """Replace the assignment of a member."""
        self.size += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def supports(self, protocols: Sequence[MemberProtocol]) -> bool:
        """True if all members know one of these protocols."""
        return any(self._supporters[each.name] == len(self.by_id) for each in protocols)

    def select_protocol(self) -> str:
        """The protocol with most votes. Each member votes for its first one among those that all
        know; of equals the one that somebody voted for first.
        """
        votes: Counter[str] = Counter()
        for member in self:
            common = (
                each.name for each in member.protocols if self._supporters[each.name] == len(self.by_id)
            )
            votes[next(common)] += 1
        return votes.most_common(1)[0][0]

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest of all members."""
        return max((each.rebalance_timeout_ms for each in self), default=0)

    def _count(self, member: ClassicMember) -> None:
        self._supporters.update({each.name for each in member.protocols})
        self.size += member.size

    def _discount(self, member: ClassicMember) -> None:
        self._supporters.subtract({each.name for each in member.protocols})
        self._supporters = +self._supporters
        self.size -= member.size

    def check_invariants(self) -> None:
        """Assert what holds after every step."""
        assert self.size == sum(each.size for each in self)
        assert self.joined == {each.member_id for each in self if each.joins}
        instances = {each.instance_id: each.member_id for each in self if each.instance_id is not None}
        assert self._by_instance == instances
        assert +self._supporters == Counter(
            name for each in self for name in {protocol.name for protocol in each.protocols}
        )
