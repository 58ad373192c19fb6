"""The peers of one cluster.

Every node dials every other node of its cluster twice: the main connection carries messages and
small calls, the bulk connection large calls. What a node sends goes over a connection that it has
dialled; answers come back on it.

A new connection of the same process replaces the old one. One of another process with the id of a
node that is connected is a duplicate: it is refused, unless its incarnation is higher and no old
connection answers in time, as after a crash of the machine. This is asked behind `recognize`, so
a stranger does not disturb a connection, and before `admit`, so the layer above never takes note of
a copy while the original is there.

A passing connection is nobody's: it names no node, and is not judged. 64 of them may stand, with
small frames; for a further one, the oldest of the address that has the most ends.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import replace

import structlog

from pixy.aio.tasks import Tasks
from pixy.errors import ShuttingDown, Unavailable
from pixy.peers.activity import LATE_S
from pixy.peers.address import Address
from pixy.peers.dialling import Destination, KeptLink, dial
from pixy.peers.environment import PeerEnvironment
from pixy.peers.frames import MESSAGE, Payload
from pixy.peers.handshake_side import NotYet
from pixy.peers.hello import Claim, Greeting, Hello, LinkPurpose
from pixy.peers.link import PeerLink
from pixy.peers.open_links import AcceptedLink, DialledLink
from pixy.peers.options import Answer, PeerHooks
from pixy.peers.traffic import PeerTraffic

log = structlog.get_logger(__name__)

_INBOX_S = 0.1
_PASSING_MAX = 64


class PeerChannel:
    """Connections of one cluster; made by `Peers.channel`.

    Args:
        environment: of all connections.
        cluster: key under `proxies`.
        hooks: see `PeerHooks`.
        listen: see `Peers.listen`.

    Attributes:
        cluster: key under `proxies`.
        listen: as given.
        stopped: no connection is made or accepted any more.
        traffic: with each node.
    """

    def __init__(
        self,
        environment: PeerEnvironment,
        cluster: str,
        hooks: PeerHooks,
        listen: Callable[[], Awaitable[Address | None]],
    ) -> None:
        self._environment = environment
        self.cluster = cluster
        self.listen = listen
        self._hooks = hooks
        self._tasks = Tasks(environment.on_fault)
        self._addresses: dict[int, Address] = {}
        self._keepers: dict[int, list[asyncio.Task[None]]] = {}
        self._main: dict[int, KeptLink] = {}
        self._bulk: dict[int, KeptLink] = {}
        # Links of open main connections that were dialled: the way of messages.
        self._ways: dict[int, PeerLink] = {}
        self._accepted: dict[AcceptedLink, None] = {}
        # Answers that are being cancelled.
        self._cancelled: dict[asyncio.Future[Answer], None] = {}
        self.stopped = False
        self.traffic: dict[int, PeerTraffic] = {}

    # --- the nodes --------------------------------------------------------------------------------

    def connect(self, node_id: int, address: Address) -> None:
        """Keep connections to a node; another address replaces."""
        if self.stopped or self._addresses.get(node_id) == address:
            return
        self._drop(node_id)
        self._addresses[node_id] = address
        traffic = self.traffic.setdefault(node_id, PeerTraffic())
        main = self._main[node_id] = KeptLink(
            self._environment,
            self._destination(address, LinkPurpose.MAIN, node_id),
            self._is_up,
            lambda silent: self._is_down(node_id, silent),
            traffic,
        )
        bulk = self._bulk[node_id] = KeptLink(
            self._environment,
            self._destination(address, LinkPurpose.BULK, node_id),
            lambda _: None,
            lambda _: None,
            traffic,
        )
        self._keepers[node_id] = [
            self._tasks.spawn(each.keep(), f"connection to node {node_id}") for each in (main, bulk)
        ]

    def disconnect(self, node_id: int) -> None:
        """End all connections to and from a node. Those from it come back if it is admitted."""
        self._drop(node_id)
        self.traffic.pop(node_id, None)
        for each in list(self._accepted):
            if each.peer.node_id == node_id:
                each.link.close(f"node {node_id} was disconnected")

    def _drop(self, node_id: int) -> None:
        """Stop dialling a node."""
        self._addresses.pop(node_id, None)
        self._ways.pop(node_id, None)
        for kept in (self._main.pop(node_id, None), self._bulk.pop(node_id, None)):
            if kept is not None and kept.current is not None:
                kept.current.link.close("the node disconnects")
        for task in self._keepers.pop(node_id, ()):
            task.cancel()

    @property
    def hosts(self) -> set[str]:
        """Hosts of the addresses of the nodes."""
        return {address.host for address in self._addresses.values()}

    @property
    def sources(self) -> set[str]:
        """Addresses from which nodes have connected."""
        return {each.link.host for each in self._accepted if each.peer.node_id}

    def trouble(self, node_id: int) -> str:
        """The reason why this node is not connected to another; empty: both connections stand."""
        for kept in (self._main.get(node_id), self._bulk.get(node_id)):
            if kept is None:
                return "it is not a node of the cluster"
            if kept.current is None:
                return kept.trouble
        return ""

    def is_connected(self, node_id: int) -> bool:
        """True while there is a connection for messages to a node."""
        return node_id in self._ways

    def silent_s(self, node_id: int) -> float | None:
        """Seconds since something was heard of a node, to a quarter or so; None: no connection."""
        way = self._ways.get(node_id)
        return None if way is None or way.activity is None else way.activity.silent_s

    def take_frames(self, bytes_max: int) -> None:
        """Take and send frames up to this payload from here on, as far as others do; never less."""
        self._environment.take_frames(bytes_max)

    # --- sending ----------------------------------------------------------------------------------

    def send(self, node_id: int, kind: int, payload: Sequence[Payload]) -> bool:
        """Send a message. Never blocks.

        Args:
            kind: 0 to 255, for the layer above.
            payload: as much as the options and `take_frames` allow, in parts that must not change
                afterwards.

        Returns:
            False: it was dropped, because there is no connection, or its queue is full, or it is
            too large. True: it may still be lost with the connection.
        """
        way = self._ways.get(node_id)
        return way is not None and way.send(MESSAGE, kind, 0, 0, payload)

    def call(
        self, node_id: int, method: int, payload: bytes, timeout: float, *, bulk: bool = False
    ) -> Coroutine[None, None, bytes]:
        """Call a node.

        Args:
            method: 0 to 255, for the layer above.
            payload: as much as the options and `take_frames` allow; more on the bulk connection.
            timeout: seconds.

        Raises:
            Unavailable: no connection, or it takes no more, or it was lost. In the last case the
                outcome is unknown.
            DeadlineExceeded: no answer in time; the outcome is unknown.
            MessageTooLarge: the payload is.
            PixyError: the answer.
        """
        kept = (self._bulk if bulk else self._main).get(node_id)
        if kept is None or kept.current is None:
            return self._no_call(node_id)
        return kept.current.calls.call(method, payload, timeout)

    def call_view(
        self, node_id: int, method: int, payload: bytes, timeout: float
    ) -> Coroutine[None, None, bytes | memoryview]:
        """As `call` on the bulk connection; a large answer is a view of what was received, without
        a copy.
        """
        kept = self._bulk.get(node_id)
        if kept is None or kept.current is None:
            return self._no_call(node_id)
        return kept.current.calls.call_view(method, payload, timeout)

    async def _no_call(self, node_id: int) -> bytes:
        raise Unavailable(f"no connection to node {node_id}: {self.trouble(node_id)}")

    async def ask(self, address: Address, timeout: float) -> Hello:
        """Greeting of whatever node is at an address, which may be this one.

        Raises:
            PeerRefused: one of the two refuses.
            Unavailable: no handshake in time.
        """
        dialled = await self._dial_passing(address, timeout)
        dialled.link.close("asked", tell=False)
        return dialled.peer

    async def call_address(self, address: Address, method: int, payload: bytes, timeout: float) -> bytes:
        """Call whatever node is at an address, over a connection for this call.

        Raises:
            PeerRefused: one of the two refuses.
            Unavailable: no handshake in time, or the connection was lost.
            DeadlineExceeded: no answer in time; the outcome is unknown.
            PixyError: the answer.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        dialled = await self._dial_passing(address, timeout)
        try:
            return await dialled.calls.call(method, payload, until - loop.time())
        finally:
            dialled.link.close("answered", tell=False)

    async def _dial_passing(self, address: Address, timeout: float) -> DialledLink:
        if self.stopped:
            raise ShuttingDown
        destination = self._destination(address, LinkPurpose.PASSING)
        try:
            async with asyncio.timeout(timeout):
                return await dial(self._environment, destination)
        except TimeoutError as error:
            raise Unavailable(f"{address} does not answer within {timeout:.3g} s") from error

    def _destination(self, address: Address, purpose: LinkPurpose, node_id: int = 0) -> Destination:
        hello = self._anonymous if purpose is LinkPurpose.PASSING else self._hooks.hello
        return Destination(address, purpose, hello, self.judge, self._hooks.falls_back, node_id)

    def _anonymous(self) -> Hello:
        return self._hooks.hello().anonymous

    # --- connections ------------------------------------------------------------------------------

    def hello(self, purpose: LinkPurpose) -> Hello:
        """See `Acceptor`."""
        hello = self._hooks.hello()
        return replace(hello, secret=b"") if purpose is LinkPurpose.PASSING else hello

    def why_not_first(self, peer: Greeting, claim: Claim) -> str | None:
        """See `Acceptor`."""
        reason = self._hooks.why_not_first()
        if reason is None and (peer.purpose is not LinkPurpose.PASSING or peer.hello.node_id):
            reason = self._hooks.recognize(claim)
        return reason

    def visited(self, host: str) -> None:
        """See `Acceptor`."""
        self._hooks.on_visit(host)

    def judge(self, peer: Claim, purpose: LinkPurpose, then: Callable[[str | None], None]) -> None:
        """See `Judge`."""
        hello = peer.hello
        if self.stopped:
            then(NotYet("the node is stopping"))
            return
        if purpose is LinkPurpose.PASSING:
            then(None)
            return
        reason = self._hooks.recognize(peer)
        if reason is not None:
            then(reason)
            return
        rivals = list(self._rivals(hello))
        if not rivals:
            then(self._hooks.admit(peer))
        elif hello.incarnation <= max(rival.incarnation for _, rival in rivals):
            then(_duplicate(hello, rivals[0][1]))
        else:
            links = [link for link, _ in rivals]
            self._tasks.spawn(self._replace(links, peer, rivals[0][1], then), "a node with a known id")

    def accepted(self, link: PeerLink, peer: Greeting) -> None:
        """See `Acceptor`."""
        hello, purpose = peer.hello, peer.purpose
        if purpose is LinkPurpose.PASSING:
            hello = hello.anonymous
            self._make_room()
        else:
            for each in list(self._accepted):
                if (each.peer.node_id, each.purpose) == (hello.node_id, purpose):
                    each.link.close("a newer connection replaces this one")
            link.traffic = self.traffic.get(hello.node_id, link.traffic)
        accepted = AcceptedLink(self._environment, link, hello, purpose, self._hooks, self._gone)
        self._accepted[accepted] = None
        for kept in (self._main.get(hello.node_id), self._bulk.get(hello.node_id)):
            if kept is not None:
                kept.heard()

    def _make_room(self) -> None:
        """End a passing connection if another one would be too many."""
        passing = [
            each for each in self._accepted if each.purpose is LinkPurpose.PASSING and each.link.is_open
        ]
        if len(passing) >= _PASSING_MAX:
            hosts = Counter(each.link.host for each in passing)
            oldest = max(passing, key=lambda each: hosts[each.link.host])
            oldest.link.close("others ask or join")

    def _gone(self, accepted: AcceptedLink, cancelled: "Sequence[asyncio.Future[Answer]]") -> None:
        self._accepted.pop(accepted, None)
        for answer in cancelled:
            self._cancelled[answer] = None
            answer.add_done_callback(self._cancelled.pop)

    def _is_up(self, dialled: DialledLink) -> None:
        self._ways[dialled.peer.node_id] = dialled.link
        self._hooks.on_up(dialled.peer.node_id, dialled.peer)

    def _is_down(self, node_id: int, silent: bool) -> None:
        self._ways.pop(node_id, None)
        self._hooks.on_down(node_id, not silent)

    def _links(self) -> Iterator[tuple[PeerLink, Hello]]:
        """Open connections in either direction."""
        for kept in (*self._main.values(), *self._bulk.values()):
            if kept.current is not None:
                yield kept.current.link, kept.current.peer
        for accepted in self._accepted:
            yield accepted.link, accepted.peer

    def _rivals(self, peer: Hello) -> Iterator[tuple[PeerLink, Hello]]:
        """Connections of other processes with the same node id."""
        for link, other in self._links():
            if peer.node_id and other.node_id == peer.node_id and other.process != peer.process:
                yield link, other

    async def _replace(
        self, links: Sequence[PeerLink], peer: Claim, rival: Hello, then: Callable[[str | None], None]
    ) -> None:
        """Close the connections of a process that has gone, or refuse the one that comes."""
        loop = asyncio.get_running_loop()
        heard = [link.heard for link in links]
        for link in links:
            link.ping()
        timeout = self._environment.options.ping_s
        due = loop.time() + timeout
        _, remaining = await asyncio.wait([link.wait_gone() for link in links], timeout=timeout)
        if remaining and loop.time() - due > LATE_S:
            await asyncio.sleep(_INBOX_S)
        if any(link.is_open and link.heard > before for link, before in zip(links, heard, strict=True)):
            then(_duplicate(peer.hello, rival))
            return
        for link in links:
            link.abort("a later process of the node has connected")
        then(self._hooks.admit(peer))

    # --- the end ----------------------------------------------------------------------------------

    async def stop(self) -> None:
        """End all connections; calls in flight fail, and calls of peers are cancelled."""
        self.stopped = True
        for node_id in list(self._addresses):
            self._drop(node_id)
        for each in list(self._accepted):
            each.link.close("the node stops")
        await self._tasks.cancel_all()
        if self._cancelled:
            await asyncio.wait(list(self._cancelled))


def _duplicate(peer: Hello, rival: Hello) -> str:
    return (
        f"{peer} has the id of {rival}, which is connected: one of their data directories is a copy; stop the copy, "
        "remove its data directory and let it join as a new node"
    )
