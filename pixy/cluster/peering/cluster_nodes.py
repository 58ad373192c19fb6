"""The other nodes of a cluster, as one node sees them: connections, admission, beats.

Every node connects to every one that has started. A node that comes is admitted if metadata knows
its id, it has proven its secret, and it is no older self (`peer_starts`), of which others may know
more (`told_refusals`). One that metadata does
not know is told to come again, and costs nothing: no entry, no record, no dial. Twice a second each
node tells the others what it is: start, newest flush, clock, steady time.

    a connection from          metadata knows it     it was told of       neither
    -------------------------  --------------------  -------------------  -----------------------
    it                         with its secret       with its secret      NOT_YET
    this node, to its address  with its secret       with its secret      yes: where this node was
                                                                          sent, by whoever let it
                                                                          join, or by its join list

Metadata may lag: of a node that has just joined it is empty, and while a node was away others may
have come. Such a node asks one that it has dialled for the table of nodes (`PeerMethod.NODES`), as
soon as it is connected to one that it does not know, or was dialled by one. What it is told counts
until metadata can be read: one that it does not have then is dropped (`node_lookup`).

A node counts as lost when its connection has ended and it cannot be reached at once, and as found
when a connection stands again. Raft's own timeouts do not depend on that; elections are quicker
with it (`failover`).
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import structlog

from pixy.clock import Clock
from pixy.cluster.log import PeerStart, PeerStartRecord, StartClaim
from pixy.cluster.peering.peer_messages import (
    Beat,
    MessageKind,
    RefusedProposal,
    encode_beat,
    encode_claim,
    encode_proposal,
    encode_raft,
    encode_refusal,
    encode_steady_time,
)
from pixy.cluster.peering.relays import Relays
from pixy.cluster.peering.told_refusals import ToldRefusals, encode_starts
from pixy.cluster.replicas import OtherClocks
from pixy.cluster.state import NodeInfo, other_secret, why_left, why_older
from pixy.multiraft import Forwarded, RestClaim
from pixy.peers import Address, Claim, Hello, NotYet, PeerChannel
from pixy.raft import MalformedMessage, Message
from pixy.raft.sizes import payload_size

log = structlog.get_logger(__name__)

_FRAME_BYTES = 4 << 20
"""Payload of entries from which on a frame takes no more: larger than any batch of usual clients,
and far below what a connection refuses.
"""

_VOUCHED_S = 2.0
"""Time in which a node that is reached through others is heard of at least once."""


@dataclass(slots=True)
class PeerNode:
    """Another node.

    Attributes:
        node_id: its id.
        address: at which it is reached.
        up: True while a connection to it stands.
        heard_at: loop time of its last message or handshake, None before.
        clock_ahead_ms: its clock less the monotonic time of this node, as of the last beat of the
            connection that stands; None without one.
        steady_ahead_ms: the same of its `NodeTime.steady_ms`; None too if it does not tell it.
        incarnation, process: as of its last handshake, 0 and empty for none.
        version: of its release.
    """

    node_id: int
    address: str
    up: bool = False
    heard_at: float | None = None
    clock_ahead_ms: int | None = None
    steady_ahead_ms: int | None = None
    incarnation: int = 0
    process: bytes = b""
    version: str = ""


class ClusterNodes:
    """The other nodes.

    Args:
        node_id: this node.
        channel: to them.
        relays: to those that there is no connection to.
        starts: newest known start of each.
        registered: the nodes that metadata knows, by id.
        clock: of this node.
        on_lost: called with the id of a node that went.

    Attributes:
        told: the nodes that another one has told of and metadata does not know. Replaced by each
            answer.
        met_unknown: a node that neither metadata nor `told` knows has dialled this one.
        clock_heard: set by each beat that tells a clock.
    """

    def __init__(
        self,
        node_id: int,
        channel: PeerChannel,
        relays: Relays,
        starts: PeerStartRecord,
        registered: Callable[[], dict[int, NodeInfo]],
        clock: Clock,
        on_lost: Callable[[int], None],
    ) -> None:
        self.node_id = node_id
        self._channel = channel
        self._relays = relays
        self._starts = starts
        self._registered = registered
        self._clock = clock
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._members: dict[int, PeerNode] = {}
        # Forwarded proposals that leave at the end of this iteration of the loop, by leader.
        self._forwarded: dict[int, list[bytes | bytearray]] = {}
        self._refused: dict[int, str] = {}
        # Nodes that this one refuses as older selves, with the newest starts that it knows of them,
        # and what the others tell of such nodes.
        self._older: dict[int, PeerStart] = {}
        self._told_older = ToldRefusals()
        self.told: dict[int, NodeInfo] = {}
        self.met_unknown = False
        self.clock_heard = asyncio.Event()

    def __iter__(self) -> Iterator[PeerNode]:
        return iter(self._members.values())

    def get(self, node_id: int) -> PeerNode | None:
        """Another node, None if it is not known."""
        return self._members.get(node_id)

    def is_up(self, node_id: int) -> bool:
        """True for this node, and while a connection to another one stands."""
        member = self._members.get(node_id)
        return node_id == self.node_id or (member is not None and member.up)

    def is_reachable(self, node_id: int) -> bool:
        """True for this node, and for others while they can be reached, if only through others."""
        return node_id == self.node_id or self._relays.through(node_id) is not None

    @property
    def is_connected(self) -> bool:
        """True while a connection to any other node stands."""
        return any(member.up for member in self._members.values())

    def starts(self) -> dict[int, int]:
        """Incarnations with which nodes have come last; nothing that others say of them."""
        return {each.node_id: each.incarnation for each in self._members.values() if each.incarnation}

    def clocks(self) -> OtherClocks:
        """Clocks of connected nodes among those that have started and stay.

        How many these are is not known before metadata has this node.
        """
        nodes = self._registered()
        if self.node_id not in nodes:
            return OtherClocks(0)
        staying = [
            node.node_id
            for node in nodes.values()
            if node.has_started and not node.removed and node.node_id != self.node_id
        ]
        members = filter(None, map(self._members.get, staying))
        clocks = [
            (each.clock_ahead_ms, each.steady_ahead_ms) for each in members if each.clock_ahead_ms is not None
        ]
        steady = [(clock, steady) for clock, steady in clocks if steady is not None]
        return OtherClocks(len(staying) + 1, [clock for clock, _ in clocks], steady)

    # --- connections ------------------------------------------------------------------------------

    def set_nodes(self, nodes: Mapping[int, NodeInfo]) -> None:
        """Connect to the nodes that have started, to lost ones no more, and anew to one that was
        let in before metadata told that it is an older self.

        One that has joined and not started yet comes by itself.

        Metadata may be behind what a handshake or another node has told.
        """
        for node_id in [each for each in self._members if each in nodes and nodes[each].lost]:
            del self._members[node_id]
            self._channel.disconnect(node_id)
            self._relays.left(node_id)
            self._older.pop(node_id, None)
            self._told_older.forget(node_id)
        for node in nodes.values():
            if node.has_started and not node.lost and node.node_id not in self._members:
                self.add_address(node.node_id, node.address)
        for member in list(self._members.values()):
            known = nodes.get(member.node_id)
            reason = why_older(known, member.incarnation, member.process) if known and member.up else None
            if reason is not None:
                self._cast_out(member, reason)

    def told_older(self, teller: int, newest: Mapping[int, PeerStart]) -> None:
        """Another node tells which nodes it refuses as older selves."""
        now = self._loop.time()
        self._told_older.tell(teller, newest, now)
        for node_id, reason in list(self._told_older.doubted(now)):
            member = self._members.get(node_id)
            if node_id != teller and member is not None and member.up:
                log.warning("a node was let in that another one refuses", node=node_id, reason=reason)
                self._cast_out(member, reason, told=True)

    def _cast_out(self, member: PeerNode, reason: str, *, told: bool = False) -> None:
        """End the connections to an older self that was let in; what comes next is judged."""
        node_id, address = member.node_id, member.address
        self._refuse(node_id, reason, told=told)
        self._channel.disconnect(node_id)
        member.up, member.address = False, ""
        self.add_address(node_id, address)
        self._on_lost(node_id)

    def _refuse(self, node_id: int, reason: str, *, told: bool = False) -> None:
        """Note that a node is an older self, and send it nothing by way of others, unless these
        reach the one that it is a copy of.

        Args:
            told: another node says so.
        """
        self._refused[node_id] = reason
        newest = self._starts.starts.newest(node_id)
        if newest is not None and not told:
            self._older[node_id] = newest
        if self._loop.time() - self._relays.heard_at.get(node_id, float("-inf")) > _VOUCHED_S:
            self._relays.refused.add(node_id)

    def add_address(self, node_id: int, address: str) -> None:
        """Connect to a node at an address: that of a handshake, or of metadata."""
        if node_id == self.node_id or not address:
            return
        try:
            parsed = Address.of_node(address)
        except ValueError as error:
            log.error("a node cannot be reached: its address is none", node=node_id, reason=str(error))
            return
        member = self._members.setdefault(node_id, PeerNode(node_id, ""))
        if member.address != address:
            # The connection to the former address ends without a word.
            member.address, member.up = address, False
            member.clock_ahead_ms = member.steady_ahead_ms = None
            self._channel.connect(node_id, parsed)

    @property
    def has_unknown(self) -> bool:
        """True while this node dials one that metadata does not know."""
        return not self._members.keys() <= self._registered().keys()

    def registered_are_all(self) -> None:
        """Metadata has every node that there is: dial no others."""
        self.told = {}
        self._drop_unknown(self._members)

    def _drop_unknown(self, node_ids: Iterable[int]) -> None:
        known = self._registered()
        for node_id in list(node_ids):
            if node_id in self._members and node_id not in known and node_id not in self.told:
                del self._members[node_id]
                self._channel.disconnect(node_id)

    def tell(self, nodes: Iterable[NodeInfo]) -> None:
        """Another node has told of the nodes of the cluster."""
        known, before = self._registered(), self.told
        self.told = {
            node.node_id: node
            for node in nodes
            if node.node_id > 0 and node.node_id not in (*known, self.node_id) and not node.lost
        }
        for node in self.told.values():
            if node.has_started and node.node_id not in self._members:
                self.add_address(node.node_id, node.address)
        self._drop_unknown(before)

    def knows(self, node_id: int) -> bool:
        """True for a node that may speak Raft, and make calls."""
        # Without a step in between, for every message asks.
        node = self._registered().get(node_id) or self.told.get(node_id)
        return node is not None and not node.lost

    def _find(self, node_id: int) -> NodeInfo | None:
        return self._registered().get(node_id) or self.told.get(node_id)

    def recognize(self, claim: Claim) -> str | None:
        """Reason to refuse a node as none of the cluster, None if it is one. See the module."""
        node_id = claim.hello.node_id
        known = self._find(node_id)
        if known is None:
            if claim.dialled:
                self._take_up(claim.hello)
                return None
            self.met_unknown = True
            return NotYet(f"node {node_id} is not known here yet")
        if not known.lost and claim.has_secret(known.secret):
            return None
        reason = self._refused[node_id] = why_left(known.node_id) if known.lost else other_secret(known)
        return reason

    def _take_up(self, hello: Hello) -> None:
        """Know a node that was dialled by the secret that it sends.

        A release with protocol 1 does so, and cannot be asked for the table of nodes.
        """
        if hello.secret:
            self.told = {
                **self.told,
                hello.node_id: NodeInfo(hello.node_id, hello.secret, hello.address, "", "", 0, hello.version),
            }

    def admit(self, claim: Claim) -> str | None:
        """Reason to refuse a node that was recognized as an older self, None if it is welcome."""
        hello = claim.hello
        known = self._find(hello.node_id)
        if known is None:
            return self._why_older_than_told(hello)
        start = _claim_of(known, hello)
        reason = self._told_older.why_refused(start, self._loop.time())
        if reason is not None and self._starts.starts.why_refused(start) is None:
            self._refuse(hello.node_id, reason, told=True)
            return reason
        reason = self._why_older(known, hello, self._starts.admit)
        if reason is not None:
            self._refuse(hello.node_id, reason)
            return reason
        self._told_older.admitted(start, self._loop.time())
        self._refused.pop(hello.node_id, None)
        self._older.pop(hello.node_id, None)
        self._relays.refused.discard(hello.node_id)
        # Identity is id and secret: a node may come with another address.
        self.add_address(hello.node_id, hello.address)
        member = self._members.get(hello.node_id)
        if member is not None:
            member.incarnation, member.process = hello.incarnation, hello.process
        return None

    def take_start(self, node_id: int, start: PeerStart) -> None:
        """Take the newest start of a node from the one that has let this node join. One that cannot
        be is left out.
        """
        if start.incarnation:
            self._starts.admit(StartClaim(node_id, start, registered=start.incarnation))

    def _why_older_than_told(self, hello: Hello) -> str | None:
        """Reason to refuse an older self of a node that metadata lacks; nothing of it is kept."""
        told = self._starts.starts.newest(hello.node_id)
        if told is None:
            return None
        start = PeerStart(hello.incarnation, hello.flush_number)
        claim = StartClaim(hello.node_id, start, hello.process, hello.found_flush_number, told.incarnation)
        reason = self._starts.starts.why_refused(claim)
        if reason is not None:
            self._refuse(hello.node_id, reason)
        return reason

    def why_not_vouched(self, hello: Hello) -> str | None:
        """Reason to refuse a node that another one speaks for, None if it may be that one.

        Nothing of it is kept, neither start nor address: only its own handshake proves them.
        """
        known = self._find(hello.node_id)
        if known is None or known.lost:
            self.met_unknown = self.met_unknown or known is None
            return (
                NotYet(f"node {hello.node_id} is not known here")
                if known is None
                else why_left(known.node_id)
            )
        reason = self._why_older(known, hello, self._starts.starts.why_refused)
        reason = reason or self._told_older.why_refused(_claim_of(known, hello), self._loop.time())
        if reason is None:
            self._relays.refused.discard(hello.node_id)
        return reason

    def _why_older(
        self,
        known: NodeInfo,
        hello: Hello,
        judge: Callable[[StartClaim], str | None],
    ) -> str | None:
        try:
            Address.of_node(hello.address)
        except ValueError as error:
            return f"node {hello.node_id} cannot be reached at the address that it gives: {error}"
        reason = why_older(known, hello.incarnation, hello.process)
        if reason is not None:
            return reason
        return judge(_claim_of(known, hello))

    @property
    def refused(self) -> dict[int, str]:
        """Nodes whose last handshake was refused, with the reasons."""
        return self._refused

    def on_up(self, node_id: int, hello: Hello) -> None:
        """A connection to a node stands."""
        member = self._members.get(node_id)
        if member is None:
            return
        was_up, member.up = member.up, True
        member.heard_at = self._loop.time()
        member.incarnation, member.process = hello.incarnation, hello.process
        member.version = hello.version
        if not was_up:
            log.info("a node can be reached", node=node_id, address=member.address)

    def on_down(self, node_id: int, closed: bool) -> None:
        """The connection to a node has ended."""
        member = self._members.get(node_id)
        if member is None or not member.up:
            return
        member.up = False
        member.clock_ahead_ms = member.steady_ahead_ms = None
        log.warning(
            "a node cannot be reached",
            node=node_id,
            address=member.address,
            reason="it has closed the connection" if closed else "it is silent",
        )
        self._on_lost(node_id)

    # --- messages ---------------------------------------------------------------------------------

    def send_raft(self, node_id: int, messages: Sequence[tuple[int, Message]], flush_number: int) -> None:
        """As `Send`.

        Args:
            flush_number: newest durable flush of the journal.
        """
        begin = size = 0
        for at, (_, message) in enumerate(messages):
            if message.entries:
                entries = payload_size(message.entries)
                if size and size + entries > _FRAME_BYTES:
                    self._relays.send(
                        node_id, MessageKind.RAFT, encode_raft(messages[begin:at], flush_number)
                    )
                    begin, size = at, 0
                size += entries
        rest = messages[begin:] if begin else messages
        self._relays.send(node_id, MessageKind.RAFT, encode_raft(rest, flush_number))

    def forward(self, node_id: int, proposal: Forwarded) -> None:
        """Send a proposal to the node that leads its group; all of an iteration leave together."""
        if not self._forwarded:
            self._loop.call_soon(self._send_forwarded)
        self._forwarded.setdefault(node_id, []).extend(encode_proposal(proposal))

    def refuse(self, refusal: RefusedProposal) -> None:
        """Tell a node that its proposal is refused."""
        self._relays.send(refusal.proposal.node_id, MessageKind.REFUSALS, (encode_refusal(refusal),))

    def _send_forwarded(self) -> None:
        forwarded, self._forwarded = self._forwarded, {}
        for node_id, parts in forwarded.items():
            begin = size = 0
            for at in range(0, len(parts), 2):  # header and payload
                if size and size + len(parts[at + 1]) > _FRAME_BYTES:
                    self._relays.send(node_id, MessageKind.PROPOSALS, parts[begin:at])
                    begin, size = at, 0
                size += len(parts[at + 1])
            self._relays.send(node_id, MessageKind.PROPOSALS, parts[begin:])

    def beat(self, incarnation: int, flush_number: int, steady_ms: int | None) -> None:
        """Tell the others what this node is: start, newest durable flush, steady time if known."""
        self._beat(self._members, incarnation, flush_number, steady_ms)

    def beat_first(self, node_id: int, incarnation: int, flush_number: int, steady_ms: int | None) -> None:
        """Tell a node with a new connection the same: it may wait for a clock."""
        self._beat([node_id], incarnation, flush_number, steady_ms)

    def _beat(
        self, node_ids: Iterable[int], incarnation: int, flush_number: int, steady_ms: int | None
    ) -> None:
        reaches = tuple(member.node_id for member in self._members.values() if member.up)
        payload = encode_beat(Beat(incarnation, flush_number, self._clock.wall_ms(), reaches))
        steady = b"" if steady_ms is None else encode_steady_time(steady_ms)
        older = encode_starts(self._older)
        for node_id in node_ids:
            is_connected = self._channel.is_connected(node_id)
            # Whoever knows the clock of a node has its steady time, if there is one.
            if steady and is_connected:
                self._channel.send(node_id, MessageKind.STEADY_TIME, (steady,))
            self._relays.send(node_id, MessageKind.BEAT, (payload,))
            if older and is_connected:
                self._channel.send(node_id, MessageKind.OLDER_SELVES, (older,))

    def claim(self, node_id: int, claim: RestClaim) -> None:
        """Tell a node what rests with it under the lead of this one."""
        self._relays.send(node_id, MessageKind.CLAIM, (encode_claim(claim),))

    def flushed(self, node_id: int, flush_number: int) -> None:
        """A node has synced this flush, on which its messages rest."""
        member = self._members.get(node_id)
        if member is not None and member.incarnation:
            member.heard_at = self._loop.time()
            self._starts.flushed(node_id, member.incarnation, flush_number)

    def heard(self, node_id: int, beat: Beat, *, relayed: bool = False) -> None:
        """A node has told what it is.

        Args:
            relayed: another node has passed it on: it proves no start, and no clock.

        Raises:
            MalformedMessage: the beat is of a later start than the handshake.
        """
        member = self._members.get(node_id)
        if member is not None and not relayed:
            if beat.incarnation > member.incarnation:
                raise MalformedMessage(
                    f"node {node_id} beats as start {beat.incarnation} and has come as {member.incarnation}"
                )
            self._starts.admit(StartClaim(node_id, PeerStart(beat.incarnation, beat.flush_number)))
        self._relays.heard(node_id, beat.reaches)
        if member is not None:
            member.heard_at = self._loop.time()
            if member.up and not relayed:
                member.clock_ahead_ms = beat.wall_ms - self._clock.monotonic_ns() // 1_000_000
                self.clock_heard.set()

    def heard_steady_time(self, node_id: int, steady_ms: int) -> None:
        """A node has told its steady time."""
        member = self._members.get(node_id)
        if member is not None and member.up:
            member.steady_ahead_ms = steady_ms - self._clock.monotonic_ns() // 1_000_000


def _claim_of(known: NodeInfo, hello: Hello) -> StartClaim:
    """The start that a node claims for itself in its greeting."""
    start = PeerStart(hello.incarnation, hello.flush_number)
    return StartClaim(hello.node_id, start, hello.process, hello.found_flush_number, known.incarnation)
