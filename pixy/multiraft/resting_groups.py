"""Raft groups at rest on one node, and what replaces their ticks: a claim for each other node.

A leader that rests (`pixy.raft.rest`) is known to its followers by its node's claims: five times a
second each node tells each other one how many groups rest under its lead with that node, and a sum
over their ids and terms. So what is at rest costs per pair of nodes, and nothing per group.

    a node                              until
    ----------------------------------  ----------------------------------------------------------
    rests as a follower of another one  no claim of that node has equalled what rests here under
                                        its lead for an election timeout: its groups are ticked
                                        again, with that much of their timeout over
    rests as a leader                   no claim of a follower's node has come for an election
                                        timeout: the groups with it are ticked again, and a leader
                                        without a majority steps down after another one
    rests                               a connection of the other node ends or begins: another
                                        process of it may have no leaders

A claim that is lost, late or overtaken by a message of a group differs for once, and ends no rest.
One that never equals, whatever the reason, ends it: so a follower rests only while its leader says
in effect that it leads that very group in that very term, and hears from it if it needs anything.

Pure: no clock, nothing is sent here. Who wakes groups is `Driver`.
"""

from collections.abc import Iterator
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

from pixy.multiraft.raft_group import RaftGroup

CLAIM_EVERY_TICKS = 2
_GRACE_TICKS = 2
"""Time for a leader that is there after all to be heard, before its followers campaign."""

_GROUP = Struct("<QQ")
_MODULUS = 1 << 64


class RestClaim(NamedTuple):
    """The groups that rest under the lead of one node with another one: their number, and a sum
    over them.
    """

    number: int = 0
    digest: int = 0


class Waking(NamedTuple):
    """A group that is to be ticked again.

    Attributes:
        elapsed: ticks for which nothing has proven its leader.
        silent: node that is not heard of, 0 for none.
    """

    group: RaftGroup
    elapsed: int = 0
    silent: int = 0


class _Pair:
    """The groups that rest together with one other node.

    Attributes:
        led, followed: groups under the lead of this node, and of the other one, each with its
            number in the sum.
        claim: of this node. Invariant: that of `led`.
        expected: of the other one. Invariant: that of `followed`.
        unheard, unproven: ticks since a claim of the other node, and since one as expected.
    """

    __slots__ = ("claim", "expected", "followed", "led", "unheard", "unproven")

    def __init__(self) -> None:
        self.led: dict[RaftGroup, int] = {}
        self.followed: dict[RaftGroup, int] = {}
        self.claim = self.expected = RestClaim()
        self.unheard = self.unproven = 0


class RestingGroups:
    """Groups at rest.

    Args:
        election_tick: ticks of an election timeout.
    """

    def __init__(self, election_tick: int) -> None:
        self._election_tick = election_tick
        self._pairs: dict[int, _Pair] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def begin(self, group: RaftGroup, node_id: int) -> None:
        """A group rests on this node."""
        if group.resting or group.node is None:
            return
        group.resting = True
        self._count += 1
        raft = group.node.raft
        number = _number(group.raft_group, raft.term)
        if raft.lead != node_id:
            pair = self._pairs.setdefault(raft.lead, _Pair())
            pair.followed[group], pair.expected = number, _with(pair.expected, number)
            return
        for other in raft.tracker.progress:
            if other != node_id:
                pair = self._pairs.setdefault(other, _Pair())
                pair.led[group], pair.claim = number, _with(pair.claim, number)

    def end(self, group: RaftGroup) -> None:
        """A group rests no more."""
        if not group.resting:
            return
        group.resting = False
        self._count -= 1
        for node_id, pair in list(self._pairs.items()):
            number = pair.led.pop(group, None)
            if number is not None:
                pair.claim = _without(pair.claim, number)
            number = pair.followed.pop(group, None)
            if number is not None:
                pair.expected = _without(pair.expected, number)
            if not (pair.led or pair.followed):
                del self._pairs[node_id]

    def claims(self) -> Iterator[tuple[int, RestClaim]]:
        """The claim for each node with which something rests."""
        for node_id, pair in self._pairs.items():
            yield node_id, pair.claim

    def heard(self, node_id: int, claim: RestClaim) -> None:
        """A claim of another node has come."""
        pair = self._pairs.get(node_id)
        if pair is not None:
            pair.unheard = 0
            if claim == pair.expected:
                pair.unproven = 0

    def unproven_ticks(self, group: RaftGroup) -> int:
        """Ticks for which nothing has proven the leader of a follower at rest."""
        assert group.node is not None
        pair = self._pairs.get(group.node.raft.lead)
        return 0 if pair is None else pair.unproven

    def tick(self) -> list[Waking]:
        """Count a tick; returns what it ends the rest of."""
        waking: list[Waking] = []
        for node_id, pair in self._pairs.items():
            pair.unheard += 1
            pair.unproven += 1
            if pair.unproven >= self._election_tick:
                waking += [Waking(group, pair.unproven - _GRACE_TICKS) for group in pair.followed]
            if pair.unheard >= self._election_tick:
                waking += [Waking(group, 0, node_id) for group in pair.led]
        return waking

    def with_node(self, node_id: int) -> list[Waking]:
        """The groups that rest together with a node."""
        pair = self._pairs.get(node_id)
        return [] if pair is None else [Waking(group) for group in (*pair.led, *pair.followed)]


def _number(raft_group: int, term: int) -> int:
    digest = blake2b(_GROUP.pack(raft_group, term), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _with(claim: RestClaim, number: int) -> RestClaim:
    return RestClaim(claim.number + 1, (claim.digest + number) % _MODULUS)


def _without(claim: RestClaim, number: int) -> RestClaim:
    return RestClaim(claim.number - 1, (claim.digest - number) % _MODULUS)
