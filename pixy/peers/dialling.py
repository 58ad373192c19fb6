"""Connections to other nodes: one attempt (`dial`), and attempts without end (`KeptLink`).

The first retry comes at once: a peer that has restarted, or a connection that was replaced, is back
without delay. Further ones follow at pauses that double up to `retry_max_s`, each shortened at
random by up to a half, so that nodes that have lost the same peer do not come back together. A
connection from the peer ends the pause after an attempt that failed: it is back.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TypeVar

import structlog

from pixy.aio.retries import Backoff
from pixy.errors import PeerRefused, PixyError, Unavailable
from pixy.faults import internal_error
from pixy.peers.address import Address
from pixy.peers.environment import PeerEnvironment
from pixy.peers.first_handshake import FirstHandshake
from pixy.peers.handshake import Handshake
from pixy.peers.handshake_side import HandshakeSide
from pixy.peers.hello import Greeting, Hello, LinkPurpose
from pixy.peers.link import PeerLink
from pixy.peers.open_links import DialledLink
from pixy.peers.opening import DiallingLink, Judge, SpeaksFirst, new_nonce
from pixy.peers.options import PeerOptions
from pixy.peers.protection import why_unprotected
from pixy.peers.traffic import PeerTraffic

T = TypeVar("T")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Destination:
    """A peer to be dialled.

    Attributes:
        address: of the peer.
        purpose: use of the connection.
        hello: this node's description of itself.
        judge: see `Judge`.
        falls_back: see `PeerHooks`.
        node_id: the node that is expected there; 0: any.
    """

    address: Address
    purpose: LinkPurpose
    hello: Callable[[], Hello]
    judge: Judge
    falls_back: Callable[[], bool]
    node_id: int = 0

    def __str__(self) -> str:
        return f"node {self.node_id} at {self.address}" if self.node_id else str(self.address)


async def dial(environment: PeerEnvironment, destination: Destination) -> DialledLink:
    """Open a connection, with protocol 1 if the other side speaks nothing else and may do so.

    Raises:
        PeerRefused: one of the two nodes refuses the connection.
        Unavailable: there was no connection and handshake within `handshake_s`.
    """
    reason = why_unprotected(destination.address, environment.options)
    if reason is not None:
        raise PeerRefused(reason)
    nonce, secrets = new_nonce(environment), environment.options.secrets()
    own = Greeting(destination.hello(), destination.purpose, nonce, bool(secrets))
    try:
        return await _dial(environment, destination, Handshake(secrets, nonce, own, destination.node_id), own)
    except SpeaksFirst as refusal:
        if not destination.falls_back():
            raise PeerRefused(
                f"{destination} refuses peer protocol 2, and no other is spoken here any more: {refusal}"
            ) from refusal
    return await _dial(environment, destination, FirstHandshake(secrets, own, destination.node_id), own)


async def _dial(
    environment: PeerEnvironment, destination: Destination, handshake: HandshakeSide, own: Greeting
) -> DialledLink:
    options = environment.options
    dialled: list[DialledLink] = []

    def opened(link: PeerLink, peer: Hello) -> None:
        dialled.append(DialledLink(environment, link, peer, destination.purpose))

    opening = DiallingLink(environment, handshake, own.purpose, destination.judge, opened)
    opened_in_time = False
    try:
        async with asyncio.timeout(options.handshake_s):
            await environment.network.connect(lambda: opening.link, destination.address)
            await opening.outcome
            opened_in_time = True
    except TimeoutError as error:
        raise Unavailable(f"{destination} does not answer within {options.handshake_s:.3g} s") from error
    except OSError as error:
        raise Unavailable(f"{destination} cannot be reached: {error.strerror or error}") from error
    finally:
        opening.end(keep=opened_in_time)
    return dialled[0]


class RetryPauses:
    """Pauses between attempts to connect.

    Args:
        options: see `PeerOptions`.
        random: shortens the pauses.
    """

    def __init__(self, options: PeerOptions, random: Random) -> None:
        self._stable_s = options.stable_s
        self._random = random
        self._backoff = Backoff(options.retry_s, options.retry_max_s)
        # The next attempt needs no pause.
        self._at_once = True

    def stood(self, seconds: float) -> None:
        """The last attempt led to a connection that has ended."""
        if seconds >= self._stable_s:
            self._at_once = True
            self._backoff.reset()

    def next(self) -> float:
        """Seconds until the next attempt."""
        if self._at_once:
            self._at_once = False
            return 0.0
        return self._backoff.grow() * self._random.uniform(0.5, 1.0)


class KeptLink:
    """A connection to a node that is dialled again whenever it has ended.

    Args:
        destination: the node.
        up: called when the connection is open.
        down: called when it has ended; True: the peer was silent.
        traffic: of the node.

    Attributes:
        current: the open connection.
        trouble: text of the last failure, empty while the connection is open.
    """

    def __init__(
        self,
        environment: PeerEnvironment,
        destination: Destination,
        up: Callable[[DialledLink], None],
        down: Callable[[bool], None],
        traffic: PeerTraffic,
    ) -> None:
        self._environment = environment
        self._destination = destination
        self._traffic = traffic
        # A connection has stood before.
        self._stood = False
        self._up = up
        self._down = down
        self._pauses = RetryPauses(environment.options, environment.random)
        # The peer has connected to this node since the last attempt began.
        self._heard = asyncio.Event()
        self.current: DialledLink | None = None
        self.trouble = "it has not been dialled yet"

    async def keep(self) -> None:
        """Keep the connection open, until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._heard.clear()
                was_away = True
                try:
                    current = await dial(self._environment, self._destination)
                except PixyError as failure:
                    self._failed(failure)
                except Exception as bug:
                    self._environment.on_fault(bug)
                    self._failed(internal_error(bug))
                else:
                    began = loop.time()
                    await self._serve(current)
                    self._pauses.stood(loop.time() - began)
                    was_away = False
                pause = self._pauses.next()
                # A peer that was there is heard in any case: two nodes that lose each other's
                # connections at once would not pause at all.
                await (self._pause_until_heard(pause) if was_away else asyncio.sleep(pause))
        finally:
            if self.current is not None:
                self.current.link.close("the node disconnects")
                self.current = None

    def heard(self) -> None:
        """The peer has connected to this node: if it was away, it is dialled now."""
        self._heard.set()

    async def _pause_until_heard(self, seconds: float) -> None:
        """Return after so many seconds, or when the peer is heard, but not before `retry_s`."""
        least = min(seconds, self._environment.options.retry_s)
        await asyncio.sleep(least)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds - least):
                await self._heard.wait()

    async def _serve(self, current: DialledLink) -> None:
        """Return when a connection has ended."""
        if current.link.is_open:
            self.current, self.trouble = current, ""
            current.link.traffic = self._traffic
            self._traffic.reconnects += self._stood
            self._stood = True
            self._log("connected to a peer", peer=str(current.peer), purpose=self._purpose)
            self._tell(self._up, current)
            end = await current.end
            self.current, self.trouble = None, end.reason
            self._log(
                "the connection to a peer has ended",
                peer=str(current.peer),
                purpose=self._purpose,
                reason=end.reason,
            )
            self._tell(self._down, end.silent)

    def _tell(self, hook: Callable[[T], None], news: T) -> None:
        """Call a function of the layer above; its exceptions must not end the attempts."""
        try:
            hook(news)
        except Exception as bug:
            self._environment.on_fault(bug)

    def _failed(self, failure: PixyError) -> None:
        if self.trouble != (trouble := str(failure)):
            self.trouble = trouble
            write = log.warning if isinstance(failure, PeerRefused) else self._log
            write(
                "no connection to a peer", peer=str(self._destination), purpose=self._purpose, reason=trouble
            )

    @property
    def _log(self) -> Callable[..., object]:
        """The bulk connection shares the fate of the main one, mostly."""
        return log.info if self._destination.purpose is LinkPurpose.MAIN else log.debug  # type: ignore[no-any-return]  # structlog's are of any type

    @property
    def _purpose(self) -> str:
        return self._destination.purpose.name.lower()
