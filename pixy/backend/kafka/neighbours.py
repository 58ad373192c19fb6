"""The other pixies in front of the same Kafka cluster: what they own in consumer groups, and calls
to them.

Every pixy tells the others which partitions it owns: of all groups when it has connected, and of
one group after each assignment. Kafka itself knows no addresses of members, and no partition of a
group that is being rebalanced.

The list of peers is the same on all of them, so a pixy's place in the sorted list is its id.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

from pixy.backend.protocol import Owner
from pixy.errors import FailedPrecondition, Unavailable
from pixy.peers import Address, Claim, Hello, PeerChannel, PeerHooks, join_hash
from pixy.proto.consumer_calls_pb2 import OwnedPartitions
from pixy.records import TopicPartition

OpenChannel = Callable[[str, PeerHooks], PeerChannel]
"""Opens the connections to the pixies of one entry under `proxies`."""

_OWNED = 0
"""Message: an `OwnedPartitions`."""
_CALL = 0
"""Call: one of the consumer groups of another process."""
_AGAIN_S = 0.5
"""Pause before everything is told again to a pixy that could not take a message."""

_Owned = Mapping[str, Sequence[int]]
"""Partitions of one group, by topic."""


@dataclass(frozen=True, slots=True)
class NeighbourOptions:
    """Options of `Neighbours`.

    Attributes:
        name: key of the cluster under `proxies`.
        peers: addresses of all pixies, this one among them.
        address: of this one in that list.
        client_id: its name in consumer groups.
        started_ms: time of its start, since the epoch: of two processes at one address the later
            one is right.
        process: 8 random bytes.
        version: release of pixy.
    """

    name: str
    peers: tuple[Address, ...]
    address: Address
    client_id: str
    started_ms: int
    process: bytes
    version: str


class Neighbours:
    """The other pixies of an installation.

    Args:
        options: see `NeighbourOptions`.
        open_channel: see `OpenChannel`.
    """

    def __init__(self, options: NeighbourOptions, open_channel: OpenChannel) -> None:
        peers = sorted(options.peers)
        self._client_id = options.client_id
        self._addresses = {at: address for at, address in enumerate(peers, 1) if address != options.address}
        self._hello = Hello(
            cluster=options.name,
            cluster_id=sha256(f"kafka {options.name}".encode()).digest()[:16],
            node_id=peers.index(options.address) + 1,
            secret=b"",
            incarnation=options.started_ms,
            flush_number=0,
            process=options.process,
            join_hash=join_hash(peers),
            address=str(options.address),
            version=options.version,
        )
        hooks = PeerHooks(
            hello=lambda: self._hello,
            falls_back=self._falls_back,
            why_not_first=self._why_not_first,
            recognize=self._recognize,
            admit=lambda _: None,
            on_message=self._on_message,
            on_call=self._on_call,
            on_up=lambda node_id, _: self._tell_all(node_id),
            on_down=lambda *_: None,
        )
        self._channel = open_channel(options.name, hooks)
        # The others that have spoken protocol 2 with this process.
        self._speak_second: set[int] = set()
        self._handler: Callable[[int, bytes], Awaitable[bytes]] | None = None
        # What this process owns, by group; what others own, by group and their id.
        self._here: dict[str, _Owned] = {}
        self._there: dict[str, dict[int, _Owned]] = {}
        self._client_ids: dict[int, str] = {}
        self._stopped = False

    def _falls_back(self) -> bool:
        """True until every other pixy has spoken protocol 2 with this process."""
        return not self._speak_second.issuperset(self._addresses)

    def _why_not_first(self) -> str | None:
        if self._falls_back():
            return None
        return "peer protocol 1 is spoken here no more: all pixies of the list have had a later release"

    def _recognize(self, claim: Claim) -> str | None:
        hello = claim.hello
        if str(self._addresses.get(hello.node_id)) == hello.address:
            if claim.protocol > 1:
                self._speak_second.add(hello.node_id)
            return None
        return f"{hello} is not in the list of peers, or in another place of it: it must be the same on all"

    def start(self) -> None:
        """Connect to the others."""
        for node_id, address in self._addresses.items():
            self._channel.connect(node_id, address)

    async def stop(self) -> None:
        """End all connections."""
        self._stopped = True
        await self._channel.stop()

    def serve(self, handler: Callable[[int, bytes], Awaitable[bytes]]) -> None:
        """See `Backend.serve_nodes`."""
        self._handler = handler

    # --- questions --------------------------------------------------------------------------------

    def owner(self, group: str, partition: TopicPartition) -> Owner | None:
        """The pixy that owns a partition and can be asked, None if none is known."""
        topic, number = partition
        for node_id, owned in self._reached(group):
            if number in owned.get(topic, ()):
                return Owner(self._client_ids[node_id], node_id)
        return None

    def may_be_neighbour(self, client_id: str) -> bool:
        """True if this may be the client id of another pixy, connected or not: it says what it owns
        soon.
        """
        return len(self._client_ids) < len(self._addresses) or client_id in self._client_ids.values()

    def owners(self, group: str, topic: str) -> Sequence[int]:
        """See `Backend.other_owners`."""
        return [node_id for node_id, owned in self._reached(group) if owned.get(topic)]

    def _reached(self, group: str) -> Iterator[tuple[int, _Owned]]:
        for node_id, owned in self._there.get(group, {}).items():
            if self._channel.is_connected(node_id):
                yield node_id, owned

    async def ask(self, node_id: int, request: bytes, timeout_s: float) -> bytes:
        """See `Backend.ask_node`."""
        return await self._channel.call(node_id, _CALL, request, timeout_s)

    async def _on_call(self, caller: Hello, method: int, payload: bytes) -> bytes:
        if method != _CALL:
            raise FailedPrecondition(f"call {method} is not known to this release ({self._hello.version})")
        if not caller.node_id or self._handler is None:
            raise Unavailable(f"pixy at {self._hello.address} is starting")
        return await self._handler(caller.node_id, payload)

    # --- what is owned ----------------------------------------------------------------------------

    def assigned(self, group: str, owned: _Owned) -> None:
        """This process owns these partitions of a group from here on, and no others."""
        if owned:
            self._here[group] = {topic: tuple(numbers) for topic, numbers in owned.items()}
        elif self._here.pop(group, None) is None:
            return
        for node_id in self._addresses:
            if self._channel.is_connected(node_id):
                self._tell(node_id, [group])

    def _tell_all(self, node_id: int) -> None:
        if not self._stopped and self._channel.is_connected(node_id):
            self._tell(node_id, self._here, everything=True)

    def _tell(self, node_id: int, groups: Iterable[str], *, everything: bool = False) -> None:
        message = OwnedPartitions(client_id=self._client_id, everything=everything)
        for group in groups:
            topics = self._here.get(group, {}).items()
            message.groups.add(
                group=group,
                topics=[OwnedPartitions.Topic(topic=topic, partitions=numbers) for topic, numbers in topics],
            )
        if not self._channel.send(node_id, _OWNED, [message.SerializeToString()]):
            asyncio.get_running_loop().call_later(_AGAIN_S, partial(self._tell_all, node_id))

    def _on_message(self, node_id: int, kind: int, payload: bytes | memoryview) -> None:
        if kind != _OWNED:
            return
        message = OwnedPartitions.FromString(bytes(payload))
        self._client_ids[node_id] = message.client_id
        if message.everything:
            for group in list(self._there):
                self._forget(group, node_id)
        for each in message.groups:
            owned = {topic.topic: tuple(topic.partitions) for topic in each.topics}
            if owned:
                self._there.setdefault(each.group, {})[node_id] = owned
            else:
                self._forget(each.group, node_id)

    def _forget(self, group: str, node_id: int) -> None:
        there = self._there.get(group, {})
        if there.pop(node_id, None) is not None and not there:
            del self._there[group]
