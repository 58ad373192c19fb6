"""Options of the peers of a daemon, and the functions of a cluster that they call."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from pixy.peers.address import Address
from pixy.peers.frames import Payload
from pixy.peers.hello import Claim, Hello

NextSlice = Callable[[], bool]
"""Does the next slice of some work, of a few milliseconds at most; True: that was the last one."""

Answer = bytes | Sequence[Payload]
"""The answer to a call; a large one in parts, which are not copied and must not change."""

_DEFAULT_ADDRESS = Address("127.0.0.1", 19094)


@dataclass(frozen=True, slots=True)
class PeerOptions:
    """Options of `Peers`.

    Attributes:
        address: to listen on; None: only connections to others.
        clusters: keys of embedded clusters whose `Peers.channel` may be made later.
        secrets: shared by all nodes, and never sent: each handshake proves the first one and
            accepts any. May change at any time; none: nothing is proven.
        mutual_tls: the network authenticates both sides. Without it or a secret, nobody is dialled
            or listened to.
        alive_s: a connection that has sent nothing for this long sends a small frame.
        silence_s: a connection that has received nothing for this long ends.
        handshake_s: limit of connecting and handshake.
        retry_s: second pause between attempts to connect, after a first retry at once; doubles.
        retry_max_s: longest such pause.
        stable_s: a connection that has stood this long is retried at once again.
        main_bytes_max: largest payload of a message, and of a call or answer on a main connection.
            A node ends a connection that brings more. `PeerChannel.take_frames` raises it to what
            the nodes of a cluster send.
        bulk_bytes_max: largest payload of a call or answer on a bulk connection.
        queue_bytes: unsent bytes of a connection beyond which messages are dropped and calls fail.
        queue_frames: the same in frames.
        calls_max: calls in flight of a connection.
        calls_bytes: payload of these calls.
        call_s: longest time that a call is worked on, whatever its caller says.
        ping_s: time that a connection has to answer when another process comes with its node's id.
        handshakes_max: accepted connections that are not open yet; see `slots`.
        linger_s: a connection that is closed has this long to send the rest.
    """

    address: Address | None = _DEFAULT_ADDRESS
    clusters: frozenset[str] = frozenset()
    secrets: Callable[[], Sequence[bytes]] = tuple
    mutual_tls: bool = False
    alive_s: float = 0.5
    silence_s: float = 2.0
    handshake_s: float = 3.0
    retry_s: float = 0.05
    retry_max_s: float = 2.0
    stable_s: float = 1.0
    main_bytes_max: int = 16 << 20
    bulk_bytes_max: int = 64 << 20
    queue_bytes: int = 32 << 20
    queue_frames: int = 10_000
    calls_max: int = 4096
    calls_bytes: int = 64 << 20
    call_s: float = 60.0
    ping_s: float = 1.0
    handshakes_max: int = 128
    linger_s: float = 1.0


@dataclass(frozen=True, slots=True)
class PeerHooks:
    """Functions of a cluster that its `PeerChannel` calls, all on the event loop.

    Attributes:
        hello: the node's description of itself. Called for each handshake; everything in it is
            durable.
        recognize: decides by id and secret whether a node belongs to the cluster: a reason to
            refuse it, or None. Without lasting effect: whoever it is has proven nothing else.
            Called for each main and bulk connection in either direction.
        falls_back: True while a node of the cluster may speak protocol 1 alone: one that refuses
            protocol 2 is dialled with it.
        why_not_first: reason not to answer a node that dials with protocol 1, None if a node of the
            cluster may speak nothing else.
        admit: decides about a node that was recognized and is no duplicate: a reason to refuse it
            (older self), or None, and takes note of it.
        on_message: takes a message: node id, message kind, payload. In the order in which the node
            has sent them. Returns the rest of the work that it asks for (`NextSlice`), None if it
            is done: what comes behind it waits. `FrameDamage` and protobuf's `DecodeError` say that
            it is malformed, and end the connection; so do those of `on_call`.
        on_call: answers a call: caller, method, payload. A caller on a passing connection has no
            node id, whoever it is. A `PixyError` reaches the caller as it is.
            Cancelled when the caller's patience or its connection ends.
        on_up: the main connection that this node has dialled to another is open; called again after
            each reconnect.
        on_down: that connection has ended, other than by `disconnect` or `stop`. True: the peer has
            closed or reset it; False: nothing was heard of it.
        on_visit: a node of a cluster of this name dials this one, from a host, and has proven the
            shared secret. Only nodes of a cluster dial main and bulk connections.
    """

    hello: Callable[[], Hello]
    falls_back: Callable[[], bool]
    why_not_first: Callable[[], str | None]
    recognize: Callable[[Claim], str | None]
    admit: Callable[[Claim], str | None]
    on_message: Callable[[int, int, bytes | memoryview], NextSlice | None]
    on_call: Callable[[Hello, int, bytes], Awaitable[Answer]]
    on_up: Callable[[int, Hello], None]
    on_down: Callable[[int, bool], None]
    on_visit: Callable[[str], None] = lambda _: None
