"""The network of the simulated machines: TCP connections between hosts, as `pixy.peers` uses them.

What a connection promises, and no more, is kept: bytes arrive in order, in other pieces than they
were sent, or not at all.

- A cut way carries nothing. Bytes sent on it wait, as the kernel would send them again, and arrive
  some time after the way is open. Acknowledgements wait too: a sender whose window is used up keeps
  the rest in its own buffer, and its protocol is told to pause.
- The end of a process closes or resets its connections; both arrive behind what was sent before. A
  host that loses its power says nothing: the other side keeps a half-open connection, which is
  reset once something reaches the host after its next start.
- A paused process reads nothing, while its host accepts connections and bytes up to the window.
- Lost packets delay what follows them. A byte may be changed: checksums of TCP miss some.

`tests/fakes/network` is the network for tests of nodes that are no processes: here each end belongs
to a process, which may end or be paused at any moment.
"""

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pixy.errors import StartError
from tests.sim.kit.lives import Life
from tests.sim.kit.scene import Scene
from tests.sim.whole.transport import SimulatedTransport, Way

_SYN_AGAIN_S = 1.0
_CONNECT_S = 20.0
_EPHEMERAL = 40_000


@dataclass(frozen=True, slots=True)
class Weather:
    """Delays and damage of what is on its way.

    Attributes:
        delays_s: smallest and largest delay.
        lost: probability that a packet has to be sent again.
        again_s: largest delay of such a packet.
        damaged: probability that a byte is changed.
        bytes_per_s: speed of each way; 0: without limit.
        window_bytes: bytes under way, or not read, after which a sender keeps the rest.
    """

    delays_s: tuple[float, float]
    lost: float = 0.0
    again_s: float = 0.5
    damaged: float = 0.0
    bytes_per_s: float = 0.0
    window_bytes: int = 1 << 18


CALM = Weather((0.0001, 0.001))


class Address(Protocol):
    """Address at which a process listens."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


@dataclass(slots=True)
class _Host:
    """A host.

    Attributes:
        is_on: its kernel runs, and answers whatever reaches it.
    """

    name: str
    is_on: bool
    listeners: "dict[int, _Listener]"
    transports: dict[SimulatedTransport, None]


class _Listener:
    """A listening socket of a process."""

    def __init__(
        self, host: _Host, life: Life, factory: Callable[[], asyncio.BaseProtocol], address: Any
    ) -> None:
        self._host = host
        self.life = life
        self.factory = factory
        self.address = address

    async def close(self) -> None:
        """Refuse connections from here on."""
        if self._host.listeners.get(self.address.port) is self:
            del self._host.listeners[self.address.port]


class SimulatedNetwork:
    """Connects hosts.

    Args:
        scene: see `Scene`.
        weather: see `Weather`.

    Attributes:
        weather: may be changed at any time.
        rng: source of all its randomness.
    """

    def __init__(self, scene: Scene, weather: Weather) -> None:
        self.scene = scene
        self.weather = weather
        self.rng = scene.random("network")
        self._hosts: dict[str, _Host] = {}
        self._cuts: dict[Way, int] = {}
        # Called when ways are about to be cut.
        self.on_cut: list[Callable[[], None]] = []
        self._slow: dict[Way, Weather] = {}
        # What waits for a way, or a host, to be open again.
        self._waiting: dict[Way, deque[Callable[[], None]]] = {}
        self._ports = _EPHEMERAL

    # --- hosts ------------------------------------------------------------------------------------

    def of(self, host: str, life: Life) -> "HostNetwork":
        """The network as a process sees it."""
        return HostNetwork(self, self._host(host), life)

    def _host(self, name: str) -> _Host:
        host = self._hosts.get(name)
        if host is None:
            host = self._hosts[name] = _Host(name, False, {}, {})
        return host

    def turn_on(self, name: str) -> None:
        """A host has power: whatever reaches it is answered."""
        host = self._host(name)
        host.is_on = True
        self._open_again([way for way in self._waiting if way.receiver == name])

    def ended(self, name: str, life: Life, *, power: bool) -> None:
        """A process has ended.

        Args:
            power: True if its host has lost its power.
        """
        host = self._host(name)
        host.listeners = {port: each for port, each in host.listeners.items() if each.life is not life}
        host.is_on = host.is_on and not power
        for transport in [each for each in host.transports if each.life is life]:
            transport.vanish(said=not power, reset=self._chance(0.3))

    # --- faults -----------------------------------------------------------------------------------

    def cut(self, ways: Iterable[tuple[str, str]], duration_s: float) -> None:
        """Carry nothing from one host to another for a while."""
        for hear in list(self.on_cut):
            hear()
        cut = [Way(*way) for way in ways]
        for way in cut:
            self._cuts[way] = self._cuts.get(way, 0) + 1
        self.scene.loop.outside(duration_s, self._join, cut)

    def _join(self, ways: list[Way]) -> None:
        for way in ways:
            self._cuts[way] = max(0, self._cuts.get(way, 0) - 1)
        self._open_again(ways)

    def slow_down(self, ways: Iterable[tuple[str, str]], duration_s: float, weather: Weather) -> None:
        """Other weather on some ways for a while."""
        slowed = [Way(*way) for way in ways]
        self._slow |= dict.fromkeys(slowed, weather)

        def end() -> None:
            for way in slowed:
                self._slow.pop(way, None)

        self.scene.loop.outside(duration_s, end)

    def storm(self, duration_s: float, weather: Weather) -> None:
        """Other weather for a while."""
        before, self.weather = self.weather, weather

        def end() -> None:
            self.weather = replace(CALM, window_bytes=before.window_bytes) if self.scene.healed else before

        self.scene.loop.outside(duration_s, end)

    def reset_connections(self, one: str, other: str) -> None:
        """Something in between ends all connections between two hosts."""
        for transport in [each for each in self._host(one).transports if each.remote_host == other]:
            for each in (transport, transport.peer):
                if each is not None:
                    each.lost(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    @property
    def has_cuts(self) -> bool:
        """True if any way is cut."""
        return any(self._cuts.values())

    def heal(self, hosts: Iterable[str] | None = None) -> None:
        """From here on everything arrives soon, between these hosts or all."""
        names = set(self._hosts if hosts is None else hosts)
        self.weather = replace(CALM, window_bytes=self.weather.window_bytes)
        healed = [
            way for way in {**self._cuts, **self._slow} if way.sender in names and way.receiver in names
        ]
        for way in healed:
            self._cuts.pop(way, None)
            self._slow.pop(way, None)
        self._open_again(healed)

    def is_cut(self, way: tuple[str, str]) -> bool:
        """True if a way carries nothing."""
        return bool(self._cuts.get(Way(*way)))

    def _open_again(self, ways: Iterable[Way]) -> None:
        for way in ways:
            if not self.is_open(way):
                continue
            waiting = self._waiting.pop(way, deque())
            # Kernels send again at growing intervals.
            delay = self.rng.random() * self.rng.choice((0.05, 0.5, 2.0))
            for go_on in waiting:
                self.scene.loop.outside(delay, go_on)

    def is_open(self, way: Way) -> bool:
        """True if a way carries what is sent on it to a host that is on."""
        return not self._cuts.get(way) and self._host(way.receiver).is_on

    # --- ways -------------------------------------------------------------------------------------

    def _chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def weather_on(self, way: Way) -> Weather:
        """The weather on a way."""
        return self._slow.get(way, self.weather)

    def delay(self, way: Way) -> float:
        """Time that the next packet takes."""
        weather = self.weather_on(way)
        delay = self.rng.uniform(*weather.delays_s)
        if weather.lost and self._chance(weather.lost):
            delay += self.rng.random() * weather.again_s
        return delay

    def wait_open(self, way: Way, go_on: Callable[[], None]) -> None:
        """Go on some time after a way is open."""
        self._waiting.setdefault(way, deque()).append(go_on)

    # --- connections ------------------------------------------------------------------------------

    def listen(
        self, host: _Host, life: Life, factory: Callable[[], asyncio.BaseProtocol], address: Any
    ) -> Any:
        """See `HostNetwork`."""
        if address.host != host.name:
            raise StartError(f"cannot listen on {address} for peers: it is not an address of this host")
        if not address.port:
            address = address._replace(port=self._next_port())
        if address.port in host.listeners:
            raise StartError(f"cannot listen on {address} for peers: address in use")
        listener = host.listeners[address.port] = _Listener(host, life, factory, address)
        return listener

    def _next_port(self) -> int:
        self._ports += 1
        return self._ports

    def dial(
        self,
        host: _Host,
        life: Life,
        factory: Callable[[], asyncio.BaseProtocol],
        address: Address,
        answer: "asyncio.Future[asyncio.Transport]",
    ) -> None:
        """Begin to connect; the answer comes in the process of the caller."""
        there, back = Way(host.name, address.host), Way(address.host, host.name)
        until = self.scene.now + _CONNECT_S
        remote = self._host(address.host)

        def fail(error: OSError) -> None:
            if not answer.done():
                answer.set_exception(error)

        def reach() -> None:
            if not life.alive:
                return
            if self.scene.now > until:
                life.run(fail, TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))
            elif not self.is_open(there) or self._cuts.get(back):
                self.scene.loop.outside(_SYN_AGAIN_S * self.rng.uniform(0.9, 1.1), reach)
            else:
                listener = remote.listeners.get(address.port)
                if listener is None:
                    refused = ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
                    self.scene.loop.outside(self.delay(back), life.run, fail, refused)
                else:
                    self._establish(host, life, factory, listener, answer)

        self.scene.loop.outside(self.delay(there), reach)

    def _establish(
        self,
        host: _Host,
        life: Life,
        factory: Callable[[], asyncio.BaseProtocol],
        listener: _Listener,
        answer: "asyncio.Future[asyncio.Transport]",
    ) -> None:
        names = (host.name, self._next_port()), (listener.address.host, listener.address.port)
        near = SimulatedTransport(self, life, *names)
        far = SimulatedTransport(self, listener.life, *names[::-1])
        near.peer, far.peer = far, near
        for transport in (near, far):
            self._host(transport.local_host).transports[transport] = None
        far.life.run(far.begin, listener.factory)

        def connected() -> None:
            if answer.done():
                near.abort()
                return
            near.begin(factory)
            if not answer.done():
                answer.set_result(near)

        self.scene.loop.outside(self.delay(Way(far.local_host, near.local_host)), life.run, connected)

    def forget(self, transport: SimulatedTransport) -> None:
        """A transport has ended."""
        self._host(transport.local_host).transports.pop(transport, None)

    @property
    def transports(self) -> list[SimulatedTransport]:
        """All open ends of connections."""
        return [each for host in self._hosts.values() for each in host.transports]


class HostNetwork:
    """The network as a process sees it: `pixy.peers.Network`.

    Args:
        network: the whole network.
        host: the host of the process.
        life: the process.
    """

    def __init__(self, network: SimulatedNetwork, host: _Host, life: Life) -> None:
        self._network = network
        self._host = host
        self._life = life

    def addresses_of(self, host: str) -> tuple[str, ...]:
        """Hosts have no other names."""
        return ()

    async def listen(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        address: Any,
        admits: Callable[[str], bool] | None = None,
    ) -> Any:
        """Listen at an address of the host; all are admitted.

        Raises:
            StartError: it is taken, or another host's.
        """
        return self._network.listen(self._host, self._life, factory, address)

    async def connect(self, factory: Callable[[], asyncio.BaseProtocol], address: Any) -> asyncio.Transport:
        """Connect to an address.

        Raises:
            OSError: nobody answers there.
        """
        answer: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()
        self._network.dial(self._host, self._life, factory, address, answer)
        return await answer
