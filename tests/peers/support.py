"""Nodes on real sockets or a simulated network, with one channel each."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random

from pixy.peers import Address, Hello, Network, PeerChannel, PeerHooks, PeerOptions, Peers, TcpNetwork
from tests.fakes.waiting import until

__all__ = ["CLUSTER_ID", "LOOPBACK", "PeerNode", "hello_of", "peer_nodes"]

CLUSTER_ID = bytes(range(16))
LOOPBACK = Address("127.0.0.1", 0)


def hello_of(node_id: int, **changes: object) -> Hello:
    """Greeting of a node of the tests' cluster."""
    hello = Hello(
        cluster="default",
        cluster_id=CLUSTER_ID,
        node_id=node_id,
        secret=bytes([node_id]) * 16,
        incarnation=1,
        flush_number=0,
        process=bytes([node_id]) * 8,
        join_hash=b"",
        address=f"node{node_id}:1",
        version="1.0",
    )
    return replace(hello, **changes)  # type: ignore[arg-type]  # fields by name


async def echo(caller: Hello, method: int, payload: bytes) -> bytes:
    """Answer with everything that has come."""
    return f"{caller.node_id} {method} ".encode() + payload


@dataclass
class PeerNode:
    """A node.

    Attributes:
        hello: its greeting; may be changed.
        messages: (node id, kind, payload) in the order of their arrival.
        ups: nodes whose connection came up.
        downs: (node id, closed) of connections that ended.
        admit: see `PeerHooks`.
        on_call: see `PeerHooks`.
        faults: exceptions that nobody expected.
    """

    hello: Hello
    network: Network
    options: PeerOptions
    messages: list[tuple[int, int, bytes]] = field(default_factory=list)
    ups: list[int] = field(default_factory=list)
    downs: list[tuple[int, bool]] = field(default_factory=list)
    faults: list[BaseException] = field(default_factory=list)
    admit: Callable[[Hello], str | None] = lambda _: None
    on_call: Callable[[Hello, int, bytes], Awaitable[bytes]] = echo

    def __post_init__(self) -> None:
        hooks = PeerHooks(
            hello=lambda: self.hello,
            admit=self._admit,
            on_message=self._on_message,
            on_call=self._on_call,
            on_up=lambda node_id, _: self.ups.append(node_id),
            on_down=lambda node_id, closed: self.downs.append((node_id, closed)),
        )
        random = Random(self.hello.node_id)
        self.peers = Peers(self.network, self.options, random, self.faults.append)
        self.channel: PeerChannel = self.peers.channel(self.hello.cluster, hooks)
        self.address = LOOPBACK

    def _admit(self, hello: Hello) -> str | None:
        return self.admit(hello)

    def _on_call(self, caller: Hello, method: int, payload: bytes) -> Awaitable[bytes]:
        return self.on_call(caller, method, payload)

    def _on_message(self, node_id: int, kind: int, payload: bytes | memoryview) -> None:
        self.messages.append((node_id, kind, bytes(payload)))

    async def start(self) -> None:
        """Listen."""
        address = await self.peers.start()
        assert address is not None
        self.address = address

    async def stop(self) -> None:
        """End all connections."""
        await self.peers.stop()

    def connect(self, *others: "PeerNode") -> None:
        """Dial other nodes."""
        for other in others:
            self.channel.connect(other.hello.node_id, other.address)


@asynccontextmanager
async def peer_nodes(
    count: int, options: PeerOptions | None = None, *, connected: bool = True
) -> AsyncIterator[list[PeerNode]]:
    """Nodes 1 to `count` on real sockets, stopped at the end."""
    options = options or PeerOptions(address=LOOPBACK)
    nodes = [PeerNode(hello_of(node_id), TcpNetwork(), options) for node_id in range(1, count + 1)]
    try:
        for node in nodes:
            await node.start()
        if connected:
            await connect_all(nodes)
        yield nodes
    finally:
        await asyncio.gather(*(node.stop() for node in nodes))
        assert [fault for node in nodes for fault in node.faults] == []


async def connect_all(nodes: list[PeerNode]) -> None:
    """Connect every node to every other, and return when all main connections are up."""
    for node in nodes:
        node.connect(*(other for other in nodes if other is not node))
    await until(lambda: all(len(node.ups) == len(nodes) - 1 for node in nodes))
