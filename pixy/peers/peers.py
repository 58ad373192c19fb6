"""All connections of a daemon to its peers: one listening socket for all its clusters, one timer
that watches all connections.
"""

import asyncio
from collections.abc import Iterator
from random import Random, SystemRandom

import structlog

from pixy.errors import ConfigError
from pixy.faults import OnFault, report_to_loop
from pixy.peers.activity import PauseDetector
from pixy.peers.address import Address
from pixy.peers.channel import PeerChannel
from pixy.peers.environment import PeerEnvironment
from pixy.peers.handshake_checks import unknown_entry
from pixy.peers.handshake_side import NotYet
from pixy.peers.link import PeerLink
from pixy.peers.network import Listening, Network
from pixy.peers.opening import AcceptingLink
from pixy.peers.options import PeerHooks, PeerOptions
from pixy.peers.protection import why_unprotected
from pixy.peers.slots import HandshakeSlots
from pixy.peers.stranger_rate import StrangerRate
from pixy.peers.traffic import PeerTraffic

log = structlog.get_logger(__name__)

_CHECKS_PER_ALIVE = 2


class Peers:
    """Connections to all peers.

    Args:
        network: opens connections.
        options: see `PeerOptions`.
        random: for nonces and pauses. Nonces must not be predictable, except in simulations.
        on_fault: called with exceptions that nobody expected, those of `PeerHooks` among them. The
            connection on which they occur ends.
    """

    def __init__(
        self,
        network: Network,
        options: PeerOptions,
        random: Random | None = None,
        on_fault: OnFault = report_to_loop,
    ) -> None:
        self._environment = PeerEnvironment(network, options, random or SystemRandom(), on_fault)
        self._channels: dict[str, PeerChannel] = {}
        count = options.handshakes_max
        self._slots = HandshakeSlots[AcceptingLink](count, count // 4, self._is_node)
        self._rate = StrangerRate()
        self._listening: Listening | None = None
        self._opening = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._interval = options.alive_s / _CHECKS_PER_ALIVE
        self._pauses: PauseDetector | None = None

    def channel(self, cluster: str, hooks: PeerHooks) -> PeerChannel:
        """Connections of one cluster."""
        assert cluster not in self._channels, f"cluster {cluster} has its peers"
        channel = self._channels[cluster] = PeerChannel(self._environment, cluster, hooks, self.listen)
        return channel

    def traffic(self) -> Iterator[tuple[str, int, PeerTraffic]]:
        """Traffic with each node of each cluster."""
        for cluster, channel in self._channels.items():
            for node_id, traffic in channel.traffic.items():
                yield cluster, node_id, traffic

    async def start(self, *, listens: bool = True) -> Address | None:
        """Begin; other nodes may be dialled from here on.

        Args:
            listens: others may dial this node. Else that begins with `listen`.

        Returns:
            as `listen`.

        Raises:
            StartError: as `listen`.
        """
        self._pauses = PauseDetector(self._interval, asyncio.get_running_loop().time())
        self._check_later()
        return await self.listen() if listens else None

    async def listen(self) -> Address | None:
        """Listen, unless that is so already.

        Returns:
            the address with its real port; None: `options.address` is None.

        Raises:
            StartError: the address cannot be used.
            ConfigError: no secret and no certificates keep strangers out.
        """
        address = self._environment.options.address
        if address is None:
            return None
        async with self._opening:
            if self._listening is None:
                reason = why_unprotected(address, self._environment.options)
                if reason is not None:
                    raise ConfigError(f"peer_addr {reason}")
                self._listening = await self._environment.network.listen(self._accept, address, self._admits)
        return self._listening.address

    async def stop(self) -> None:
        """Accept nothing more, and end all connections."""
        if self._listening is not None:
            await self._listening.close()
        for channel in self._channels.values():
            await channel.stop()
        for link in list(self._environment.links):
            link.close("the node stops")
        await self._wait_closed()
        if self._timer is not None:
            self._timer.cancel()

    def _accept(self) -> PeerLink:
        return AcceptingLink(self._environment, self._find, self._slots).link

    def _admits(self, host: str) -> bool:
        """True if a connection of this address is taken."""
        now = asyncio.get_running_loop().time()
        if self._is_node(host) or self._rate.takes(host, now):
            return True
        event = "a connection is refused: its address has had its share of this second"
        self._environment.refusals.strangers.write("warning", event, now, peer=host)
        return False

    def _is_node(self, host: str) -> bool:
        """True if a registered node has this address, or comes from it."""
        host, network = host.removeprefix("::ffff:"), self._environment.network
        for channel in self._channels.values():
            if any(each == host or host in network.addresses_of(each) for each in channel.hosts):
                return True
            if any(each.removeprefix("::ffff:") == host for each in channel.sources):
                return True
        return False

    def _find(self, cluster: str) -> PeerChannel | str:
        """The channel of a cluster, or a reason to refuse a connection for it."""
        channel = self._channels.get(cluster)
        if channel is not None:
            stops = NotYet(f'cluster "{cluster}" is stopping on the node that was dialled')
            return stops if channel.stopped else channel
        if cluster in self._environment.options.clusters:
            return NotYet(f'cluster "{cluster}" is starting on the node that was dialled')
        return unknown_entry(cluster)

    async def _wait_closed(self) -> None:
        """Return when all transports are gone; those that linger are aborted."""
        links = self._environment.links
        if not links:
            return
        linger_s = self._environment.options.linger_s
        waits = [link.wait_gone() for link in links]
        _, lingering = await asyncio.wait(waits, timeout=linger_s)
        for link in links:
            link.discard()
        if lingering:
            await asyncio.wait(lingering, timeout=linger_s)

    def _check_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._check)

    def _check(self) -> None:
        """Look at the silence of all connections."""
        assert self._pauses is not None
        self._check_later()
        now = asyncio.get_running_loop().time()
        self._environment.refusals.strangers.tick(now)
        elapsed = self._pauses.elapsed(now)
        if elapsed is None:
            log.info("the process was paused: what peers have sent meanwhile is handled first")
            return
        for link in list(self._environment.links):
            link.check(elapsed, now)
