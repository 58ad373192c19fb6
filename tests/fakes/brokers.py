"""A scripted Kafka cluster: responses by broker and request type, without sockets and on any event
loop.

Pass `Brokers.dial` to a backend or a client. Metadata is served from `topics`, broker 0 is the
coordinator of everything; other requests are answered by handlers that a test sets with `on`, which
return the fields of the response in order. A handler may be a coroutine that answers later;
requests without a handler are never answered. A connection that is cut, or closed by the client,
fails its pending requests.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from inspect import isawaitable
from io import BytesIO
from typing import Any

from aiokafka.conn import CloseReason
from aiokafka.errors import KafkaConnectionError

from pixy.backend.kafka import KafkaOptions

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, DESCRIBE_GROUPS, INIT_PRODUCER_ID = 8, 9, 10, 15, 22
DESCRIBE_CONFIGS = 32

Handler = Callable[[Any], Any]
"""Maps the fields of a request to those of its response, or to a coroutine that returns them."""


class Brokers:
    """The cluster.

    Attributes:
        topics: leader of each partition by topic; -1: none.
        topic_ids: ids of topics, by default made of their names.
        behind: the topics as brokers know them that lag behind, by node id.
        before_dial: awaited with the node id before a connection is made; may be replaced by a
            test.
        requests: API key and fields of each request, in order.
    """

    def __init__(self, topics: dict[str, list[int]], nodes: int = 1) -> None:
        self.topics = topics
        self.topic_ids: dict[str, bytes] = {}
        self.behind: dict[int, dict[str, list[int]]] = {}
        self.nodes = range(nodes)
        self.requests: list[tuple[int, Any]] = []
        self.connections: list[_Connection] = []
        self.before_dial: Callable[[int], Any] = lambda _: None
        self._handlers: dict[int, Handler] = {FIND_COORDINATOR: _coordinator}

    def on(self, key: int, handler: Handler) -> None:
        """Set the handler for a request type."""
        self._handlers[key] = handler

    def count(self, key: int) -> int:
        """Number of requests received of a type."""
        return sum(each == key for each, _ in self.requests)

    def options(self, **changed: Any) -> KafkaOptions:
        """Options for this cluster."""
        return KafkaOptions(**{"seed_peers": ("broker-0:9092",), "client_id": "tests", **changed})

    async def dial(self, host: str, port: int, **_: Any) -> "_Connection":
        """Same signature as aiokafka's `create_conn`."""
        waiting = self.before_dial(int(host.removeprefix("broker-")))
        if isawaitable(waiting):
            await waiting
        connection = _Connection(self, host, port)
        self.connections.append(connection)
        return connection

    def cut(self) -> None:
        """Break all connections."""
        for connection in self.connections:
            connection.close(CloseReason.CONNECTION_BROKEN)

    async def answer(self, struct: Any, node_id: int) -> Any:
        """A broker's response to a request."""
        self.requests.append((struct.api.key, struct.fields))
        handler = self._handlers.get(struct.api.key)
        if handler is None and struct.api.key == METADATA:
            handler = partial(self._metadata, self.behind.get(node_id))
        if handler is None:
            await asyncio.Event().wait()
        assert handler is not None
        fields = handler(struct.fields)
        if isawaitable(fields):
            fields = await fields
        # Encode and decode it, as on the wire.
        return struct.api.decode(BytesIO(struct.api.encode_response(fields)))

    def _metadata(self, behind: dict[str, list[int]] | None, request: Any) -> tuple[Any, ...]:
        known, epoch = (self.topics, 1) if behind is None else (behind, 0)
        named = known if request.topics is None else [name for _, name, *_ in request.topics]
        brokers: list[Any] = [(node, f"broker-{node}", 9092, None, {}) for node in self.nodes]
        return 0, brokers, "scripted", 0, [self._describe(name, known.get(name), epoch) for name in named], {}

    def _describe(self, name: str, leaders: Iterable[int] | None, epoch: int) -> tuple[Any, ...]:
        if leaders is None:
            return 3, name, bytes(16), False, [], 0, {}
        partitions: list[Any] = [
            (0 if leader >= 0 else 5, number, leader, epoch, list(self.nodes), [], [], {})
            for number, leader in enumerate(leaders)
        ]
        topic_id = self.topic_ids.get(name, name.encode()).ljust(16, b"\0")
        return 0, name, topic_id, False, partitions, 0, {}


def _coordinator(_: Any) -> tuple[Any, ...]:
    return 0, 0, None, 0, "broker-0", 9092


class _Connection:
    def __init__(self, brokers: Brokers, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.node_id = int(host.removeprefix("broker-"))
        self._brokers = brokers
        self._waiting: set[asyncio.Task[Any]] = set()
        self._open = True

    def connected(self) -> bool:
        return self._open

    def send(self, request: Any) -> Any:
        if not self._open:
            raise KafkaConnectionError("the connection is closed")
        struct = request.prepare(dict.fromkeys(range(100), (0, 99)))
        answer = asyncio.ensure_future(self._brokers.answer(struct, self.node_id))
        self._waiting.add(answer)
        answer.add_done_callback(self._waiting.discard)
        return _broken_if_cut(answer)

    def close(self, reason: Any = None) -> None:
        self._open = False
        for answer in self._waiting:
            answer.cancel("cut")


async def _broken_if_cut(answer: "asyncio.Future[Any]") -> Any:
    try:
        return await asyncio.shield(answer)
    except asyncio.CancelledError:
        if answer.cancelled():
            raise KafkaConnectionError("the connection was cut") from None
        raise
