"""Nodes on real sockets or a simulated network, with one channel each."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from pixy.peers import (
    Address,
    Answer,
    Claim,
    Hello,
    NextSlice,
    PeerChannel,
    PeerHooks,
    PeerOptions,
    Peers,
    TcpNetwork,
)
from pixy.peers.network import Network
from tests.fakes.network import SimulatedNetwork, SimulatedProcess
from tests.fakes.waiting import until
from tests.sim.loop import VirtualLoop

CLUSTER_ID = bytes(range(16))
LOOPBACK = Address("127.0.0.1", 0)


def hello_of(node_id: int, **changes: Any) -> Hello:
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
    return replace(hello, **changes)


async def echo(caller: Hello, method: int, payload: bytes) -> bytes:
    """Answer with everything that has come."""
    return b"%d %d " % (caller.node_id, method) + payload


@dataclass(eq=False)
class PeerNode:
    """A node.

    Attributes:
        hello: its greeting; may be changed.
        messages: (node id, kind, payload) in the order of their arrival.
        ups: nodes whose connection came up.
        downs: (node id, closed) of connections that ended.
        recognize, admit, falls_back: see `PeerHooks`. Protocol 1 is answered as long as this node
            falls back.
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
    falls_back: bool = False
    recognize: Callable[[Claim], str | None] = lambda _: None
    admit: Callable[[Hello], str | None] = lambda _: None
    on_call: Callable[[Hello, int, bytes], Awaitable[Answer]] = echo
    on_message: Callable[[int, int, bytes | memoryview], NextSlice | None] | None = None

    def __post_init__(self) -> None:
        hooks = PeerHooks(
            hello=lambda: self.hello,
            falls_back=lambda: self.falls_back,
            why_not_first=lambda: None if self.falls_back else "protocol 1 is not spoken here",
            recognize=self._recognize,
            admit=lambda claim: self.admit(claim.hello),
            on_message=self._on_message,
            on_call=self._on_call,
            on_up=lambda node_id, _: self.ups.append(node_id),
            on_down=lambda node_id, closed: self.downs.append((node_id, closed)),
        )
        random = Random(self.hello.node_id)
        self.peers = Peers(self.network, self.options, random, self.faults.append)
        self.channel: PeerChannel = self.peers.channel(self.hello.cluster, hooks)
        self.address = LOOPBACK

    def _recognize(self, claim: Claim) -> str | None:
        return self.recognize(claim)

    def _on_call(self, caller: Hello, method: int, payload: bytes) -> Awaitable[Answer]:
        return self.on_call(caller, method, payload)

    def _on_message(self, node_id: int, kind: int, payload: bytes | memoryview) -> NextSlice | None:
        if self.on_message is not None:
            return self.on_message(node_id, kind, payload)
        self.messages.append((node_id, kind, bytes(payload)))
        return None

    @property
    def shown(self) -> Hello:
        """Its greeting as other nodes see it."""
        return replace(self.hello, secret=b"")

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
    count: int,
    options: PeerOptions | None = None,
    *,
    networks: Sequence[Network] | None = None,
    connected: bool = True,
) -> AsyncIterator[list[PeerNode]]:
    """Nodes 1 to `count` on real sockets, stopped at the end."""
    options = options or PeerOptions(address=LOOPBACK, mutual_tls=True)
    networks = networks or [TcpNetwork()] * count
    nodes = [PeerNode(hello_of(number), network, options) for number, network in enumerate(networks, 1)]
    async with _running(nodes, connected=connected):
        yield nodes


async def connect_all(nodes: Sequence[PeerNode]) -> None:
    """Connect every node to every other, and return when all connections stand."""
    for node in nodes:
        node.connect(*(other for other in nodes if other is not node))
    await until(
        lambda: (
            not any(
                node.channel.trouble(other.hello.node_id)
                for node in nodes
                for other in nodes
                if other is not node
            )
        )
    )


@asynccontextmanager
async def _running(nodes: Sequence[PeerNode], *, connected: bool) -> AsyncIterator[None]:
    try:
        for node in nodes:
            await node.start()
        if connected:
            await connect_all(nodes)
        yield
    finally:
        await asyncio.gather(*(node.stop() for node in nodes))
        assert [fault for node in nodes for fault in node.faults] == []


# --- virtual time ---------------------------------------------------------------------------------


class SimulatedPeers:
    """Nodes on a simulated network.

    Attributes:
        network: see `SimulatedNetwork`. Node n is on the host 127.0.0.n.
        nodes: in order of their ids.
        processes: the latest process of each node by its id.
    """

    def __init__(self, count: int, options: PeerOptions, seed: int, delays_s: tuple[float, float]) -> None:
        self.network = SimulatedNetwork(Random(seed), delays_s)
        self.options = options
        self.processes: dict[int, SimulatedProcess] = {}
        self.nodes = [self.make(node_id) for node_id in range(1, count + 1)]

    def make(self, node_id: int, **changes: Any) -> PeerNode:
        """A node as a new process on its host, not started."""
        process = self.processes[node_id] = self.network.process(host_of(node_id))
        return PeerNode(hello_of(node_id, **changes), process, self.options)


def host_of(node_id: int) -> str:
    """Host of a node."""
    return f"127.0.0.{node_id}"


def simulate(
    scenario: Callable[[SimulatedPeers], Awaitable[None]],
    count: int = 2,
    options: PeerOptions | None = None,
    *,
    seed: int = 0,
    delays_s: tuple[float, float] = (0.001, 0.01),
) -> None:
    """Run a scenario with connected nodes on virtual time."""

    async def run() -> None:
        peers = SimulatedPeers(
            count, options or PeerOptions(address=LOOPBACK, mutual_tls=True), seed, delays_s
        )
        async with _running(peers.nodes, connected=True):
            await scenario(peers)

    loop = VirtualLoop()
    unhandled: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
    assert unhandled == []
