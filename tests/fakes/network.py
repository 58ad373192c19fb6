"""A simulated network of TCP connections, on any event loop.

Hosts have names, and each process on them is a `Network` of `pixy.peers`. Every way from one host
to another has a delay, and faults of its own:

- cut: packets are lost. TCP sends them again, so bytes are held, nobody is told, and everything
  arrives after `join`. A connection is made only while both ways are open.
- stalled: the receiver does not read; what is sent fills its window, then the sender's buffer.
- reset: the connections between two hosts end, as by a router that restarts.

A host that crashes sends nothing more, so its peers have half-open connections; once it is back it
answers their packets with a reset. A process that is killed leaves its connections to the system,
which resets them, or ends them in order (FIN).

Time and chance come from the loop and from a `Random`, so a run with virtual time repeats.
"""

import asyncio
from collections.abc import Callable, Iterable
from random import Random

from pixy.errors import StartError
from pixy.peers import Address
from tests.fakes.streams import SimulatedTransport, Way

_FIRST_PORT = 40_000

Factory = Callable[[], asyncio.BaseProtocol]


class SimulatedNetwork:
    """Hosts and the ways between them.

    Args:
        random: for delays, and for the places where what was sent is split.
        delays_s: shortest and longest delay of a packet.

    Attributes:
        random: see above.
        listening: listening sockets of all processes.
    """

    def __init__(self, random: Random, delays_s: tuple[float, float] = (0.0, 0.0)) -> None:
        self.random = random
        self._delays_s = delays_s
        self._down: set[str] = set()
        self._ways: dict[tuple[str, str], Way] = {}
        self._processes: list[SimulatedProcess] = []
        self._ports = _FIRST_PORT
        self.listening: dict[Address, SimulatedListening] = {}

    def process(self, host: str) -> "SimulatedProcess":
        """A new process on a host."""
        process = SimulatedProcess(self, host)
        self._processes.append(process)
        return process

    def is_up(self, host: str) -> bool:
        """False while a host that has crashed is not back."""
        return host not in self._down

    def next_port(self) -> int:
        """A port that was not used before."""
        self._ports += 1
        return self._ports

    def way(self, source: str, target: str) -> Way:
        """The way from one host to another."""
        return self._ways.setdefault((source, target), Way(self._delays_s))

    def send_reset(self, sender: "SimulatedTransport", receiver: "SimulatedTransport") -> None:
        """Send a packet that nobody sends again."""
        way = self.way(sender.process.host, receiver.process.host)
        if not way.cut:
            delay = self.random.uniform(*way.delays_s)
            asyncio.get_running_loop().call_later(delay, receiver.reset)

    # --- faults -----------------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Lose all packets from one host to another."""
        self.way(source, target).cut = True

    def join(self, source: str, target: str) -> None:
        """End a cut; what was held arrives."""
        way = self.way(source, target)
        way.cut = False
        way.changed()

    def split(self, side: Iterable[str], others: Iterable[str]) -> None:
        """Cut all ways between two sides."""
        others = list(others)
        for one in side:
            for other in others:
                self.cut(one, other)
                self.cut(other, one)

    def heal(self) -> None:
        """End all cuts and stalls."""
        for way in self._ways.values():
            way.cut = way.stalled = False
        for way in list(self._ways.values()):
            way.changed()

    def stall(self, source: str, target: str) -> None:
        """Have one host read nothing of what another sends."""
        self.way(source, target).stalled = True

    def resume(self, source: str, target: str) -> None:
        """End a stall."""
        way = self.way(source, target)
        way.stalled = False
        way.changed()

    def reset(self, one: str, other: str) -> None:
        """End all connections between two hosts."""
        for stream in [*self.way(one, other).streams, *self.way(other, one).streams]:
            stream.receiver.reset()

    def crash(self, host: str) -> None:
        """Stop a host without a packet: its peers have half-open connections."""
        self._down.add(host)
        for process in self._processes:
            if process.host == host:
                process.vanish()

    def restart(self, host: str) -> None:
        """Have a host back that has crashed; its processes have to be made anew."""
        self._down.discard(host)
        for (_, target), way in list(self._ways.items()):
            if target == host:
                way.changed()


class SimulatedProcess:
    """A process on a host: a `Network`. Dead ones learn nothing and have no effect any more.

    Attributes:
        network: it belongs to.
        host: name of its host.
        transports: its ends of connections.
    """

    def __init__(self, network: SimulatedNetwork, host: str) -> None:
        self.network = network
        self.host = host
        self._alive = True
        self.transports: dict[SimulatedTransport, None] = {}

    def addresses_of(self, host: str) -> tuple[str, ...]:
        """See `Network`: hosts have no other names."""
        return ()

    async def listen(
        self, factory: Factory, address: Address, _: Callable[[str], bool] | None = None
    ) -> "SimulatedListening":
        """See `Network`. Admits all."""
        network, port = self.network, address.port or self.network.next_port()
        if Address(self.host, port) in network.listening:
            raise StartError(f"cannot listen on {address} for peers: address in use")
        return SimulatedListening(self, factory, Address(self.host, port))

    async def connect(self, factory: Factory, address: Address) -> asyncio.BaseTransport:
        """See `Network`."""
        network, random = self.network, self.network.random
        there, back = network.way(self.host, address.host), network.way(address.host, self.host)
        await there.cross(random)
        if not self._alive or not network.is_up(address.host):
            await asyncio.get_running_loop().create_future()  # no answer, ever
        listening = network.listening.get(address)
        await back.cross(random)
        if listening is None or not self._alive:
            raise ConnectionRefusedError(f"no process listens on {address}")
        own = SimulatedTransport(self, factory())
        theirs = SimulatedTransport(listening.process, listening.factory())
        own.pair(theirs, Address(self.host, network.next_port()), address)
        theirs.begin_later(random.uniform(*there.delays_s))
        own.begin()
        return own

    def kill(self, *, reset: bool = True) -> None:
        """End the process: the system resets its connections, or ends them in order."""
        self._alive = False
        self._close_all()
        for transport in list(self.transports):
            transport.leave(reset=reset)

    def vanish(self) -> None:
        """End the process with its host, without a packet."""
        self._alive = False
        self._close_all()
        for transport in list(self.transports):
            transport.vanish()

    def _close_all(self) -> None:
        for listening in list(self.network.listening.values()):
            if listening.process is self:
                del self.network.listening[listening.address]


class SimulatedListening:
    """A listening socket.

    Attributes:
        process: whose it is.
        factory: makes the protocols of its connections.
    """

    def __init__(self, process: SimulatedProcess, factory: Factory, address: Address) -> None:
        self.process = process
        self.factory = factory
        self.address = address
        process.network.listening[address] = self

    async def close(self) -> None:
        """See `Listening`."""
        self.process.network.listening.pop(self.address, None)
