"""Connections to the brokers of a Kafka cluster, and its metadata.

Connections are aiokafka's (`aiokafka.conn`: framing, versions, TLS, SASL). Each belongs to one
broker and one *purpose*, because a broker answers the requests of a connection in order: requests
that it may hold (a fetch without data, the join of a group) have a connection of their own. So have
those that nothing may stand in front of: metadata, whose answers say whether the broker is there,
and commits. A purpose is any name.

Road not taken: `AIOKafkaClient`. It has one lock for all attempts to connect, so that a broker that
hangs blocks the others, its metadata requests create topics, and it has no topic ids.

Metadata is refreshed every `metadata_max_age_s`, and when a caller finds it stale
(`request_refresh`): at once the first time, then in intervals that grow to `retry_backoff_s` while
the responses bring nothing new. Brokers take turns, as one that is cut off from the controllers
answers with what it knew before: whenever a response brings nothing new, another broker is
connected to. A broker that does not answer is passed over, after a timeout that grows while no
broker answers. Meanwhile `fault` says why, and requests raise `BrokerFault` at once instead of
waiting for another attempt to fail. If a known topic is missing, all brokers are asked for it,
until they agree (`metadata`).
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import nullcontext, suppress
from math import inf
from typing import Any

import structlog
from aiokafka.conn import AIOKafkaConnection, CloseReason, collect_hosts, create_conn
from aiokafka.errors import IncompatibleBrokerVersion, KafkaConnectionError, KafkaError

from pixy.aio.retries import Attempts, Backoff
from pixy.aio.tasks import Tasks
from pixy.backend.kafka.errors import BrokerFault
from pixy.backend.kafka.metadata import Broker, Metadata
from pixy.backend.kafka.options import KafkaOptions
from pixy.errors import ShuttingDown, Unavailable
from pixy.faults import OnFault, report_to_loop
from pixy.kafka_protocol import VersionMismatch
from pixy.kafka_protocol.messages import METADATA
from pixy.records import TopicPartition

_log = structlog.get_logger(__name__)

CONTROL = "control"
"""The purpose of short requests that brokers answer at once, most of them for a client. A broker
has `_AT_ONCE` of them at a time, and the others wait here.
"""
COMMITS = "commits"
"""The purpose of commits."""
_METADATA = "metadata"
_AT_ONCE = 16

_NO_TOPIC_ID = bytes(16)
_ATTEMPT_S = 3.0
_OPINION_S = 1.0
"""Time limit of a broker that is asked because another may lag behind."""
_BACKOFF_MIN_S = 0.05
_IDLE_MS = 540_000
SHORT_PATIENCE_S = 5.0
_PAUSE_MIN_S = 0.02
_PAUSE_MAX_S = 0.5

Dial = Callable[..., Awaitable[Any]]
"""As aiokafka's `create_conn`."""

OnChange = Callable[[set[str]], None]


class _Link:
    """The connection to one broker for one purpose, or the error of the last attempt."""

    def __init__(self, key: tuple[int | str, str], client_id: str, backoff: Backoff) -> None:
        self.key = key
        self.client_id = client_id
        self.connection: Any = None
        self.connecting = asyncio.Lock()
        self.failure = ""
        self.backoff = backoff
        # No attempt before this time.
        self.not_before = 0.0
        # Time of the last Metadata request.
        self.asked_at = -inf

    @property
    def is_open(self) -> bool:
        """True if the connection can be used."""
        return self.connection is not None and self.connection.connected()


class _Refresh:
    """One Metadata request, shared by all callers since the previous one began."""

    def __init__(self) -> None:
        # None: all.
        self.topics: set[str] | None = set()
        self.done = False
        self.failure = ""

    def add(self, topics: Collection[str] | None) -> None:
        self.topics = None if topics is None or self.topics is None else self.topics | set(topics)


class KafkaClient:
    """A client of one cluster.

    Args:
        options: addresses and authentication.
        dial: opens connections.
        on_fault: called with an exception that is a bug.

    Attributes:
        metadata: the cluster's metadata.
        listeners: called after every change of metadata with the names of changed topics; empty:
            only brokers changed.
        fault: the reason why no broker can be reached, empty if one can.
        fault_listeners: called when `fault` begins and when it ends.
        reached: set once a broker has answered; never cleared.
    """

    def __init__(
        self, options: KafkaOptions, dial: Dial = create_conn, on_fault: OnFault = report_to_loop
    ) -> None:
        self._options = options
        self._on_fault = on_fault
        self._create_connection = dial
        self._loop = asyncio.get_running_loop()
        self.metadata = Metadata()
        self.listeners: list[OnChange] = []
        self.fault = "no broker was asked yet"
        self.fault_listeners: list[Callable[[], None]] = []
        self.reached = asyncio.Event()
        # By node id and purpose; by address for seeds.
        self._links: dict[tuple[int | str, str], _Link] = {}
        # By node id: requests of the purpose `CONTROL`.
        self._turns: defaultdict[int, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_AT_ONCE))
        self._refreshing = asyncio.Lock()
        # Shared by all callers that ask during a refresh.
        self._next_refresh: _Refresh | None = None
        self._wake = asyncio.Event()
        # Number of responses with changes.
        self._changes = 0
        # Partitions without a leader that were requested; each is logged once.
        self._leaderless: set[TopicPartition] = set()
        # The topics of the next refresh; None: all.
        self._stale: set[str] | None = None
        self._attempt_s = min(_ATTEMPT_S, options.dial_timeout_s)
        self._tasks = Tasks(on_fault)
        self._stopped = False

    async def start(self) -> None:
        """Request the metadata once.

        If no broker answers, `fault` says why, and retries follow in the background.
        """
        try:
            await self.refresh()
            self._stale = set()
        except Unavailable:
            self._wake.set()
        self._tasks.spawn(self._keep_fresh(), "kafka metadata")

    async def stop(self) -> None:
        """Close everything. Requests in flight end with `BrokerFault`. Idempotent."""
        self._stopped = True
        await self._tasks.cancel_all()
        connections = [link.connection for link in self._links.values() if link.connection is not None]
        self._links.clear()
        closed = [connection.close(reason=CloseReason.SHUTDOWN) for connection in connections]
        await asyncio.gather(*(each for each in closed if each is not None), return_exceptions=True)

    # --- requests ---------------------------------------------------------------------------------

    async def send(
        self,
        node_id: int,
        request: Any,
        purpose: str = CONTROL,
        timeout_s: float | None = None,
        client_id: str | None = None,
    ) -> Any:
        """Send a request to one broker and return its response.

        The caller checks the error codes in it.

        Args:
            purpose: selects the connection.
            timeout_s: limit for connecting and the response, `request_timeout_s` at most. The
                connection is closed then.
            client_id: client id of a new connection; None: the default.

        Raises:
            BrokerFault: no connection, a broken one, or a timeout; `sent` tells whether the request
                may have arrived.
            Unavailable: the broker's version is too old.
            ShuttingDown: the client has stopped.
        """
        limit_s = min(timeout_s or self._options.request_timeout_s, self._options.request_timeout_s)
        connection = None
        try:
            async with (
                asyncio.timeout(limit_s) as limit,
                self._turns[node_id] if purpose == CONTROL else nullcontext(),
            ):
                connection = await self._connection(node_id, purpose, client_id, limit)
                return await _ask(connection, request)
        except TimeoutError:
            if connection is not None:
                connection.close(reason=CloseReason.CONNECTION_TIMEOUT)
            message = f"broker {node_id} has not answered within {limit_s:g} s"
            raise BrokerFault(message, sent=connection is not None) from None

    async def connect(self, node_id: int, purpose: str, timeout_s: float) -> None:
        """Connect to a broker, unless there is a connection.

        Raises:
            BrokerFault: no connection could be opened in time; nothing was sent.
        """
        link = self._links.get((node_id, purpose))
        if link is not None and link.is_open:
            return
        try:
            async with asyncio.timeout(timeout_s) as limit:
                await self._connection(node_id, purpose, None, limit)
        except TimeoutError:
            self.request_refresh()
            raise BrokerFault(
                f"broker {node_id} could not be reached within {timeout_s:g} s", False
            ) from None

    def release(self, purpose: str) -> None:
        """Close the connections of a purpose; requests in flight on them fail."""
        for broker, name in [key for key in self._links if key[1] == purpose]:
            link = self._links.pop((broker, name))
            if link.connection is not None:
                link.connection.close()

    async def send_any(
        self, request: Any, *, timeout_s: float | None = None, repeatable: bool = False
    ) -> Any:
        """Send a request to any broker, one after the other until one answers.

        Args:
            timeout_s: for each broker.
            repeatable: the request may be executed more than once.

        Raises:
            BrokerFault: no broker can be reached, or one may have executed the request without an
                answer.
        """
        fault = BrokerFault(f"no Kafka broker can be asked: {self.fault}", sent=False)
        node_ids = list(self.metadata.brokers)
        random.shuffle(node_ids)
        for node_id in node_ids:
            try:
                return await self.send(node_id, request, timeout_s=timeout_s)
            except BrokerFault as error:
                fault = error
                if error.sent and not repeatable:
                    raise
        raise fault

    # --- metadata ---------------------------------------------------------------------------------

    def request_refresh(self, topics: Iterable[str] = ()) -> None:
        """Note that the metadata is stale, of these topics or at least of the brokers; a refresh
        follows soon.
        """
        if self._stale is not None:
            self._stale.update(topics)
        self._wake.set()

    async def refresh(self, topics: Collection[str] | None = None) -> None:
        """Refresh the metadata of topics (None: all), by a request sent after the call.

        Raises:
            BrokerFault: no broker answers.
        """
        refresh = self._next_refresh
        if refresh is None:
            refresh = self._next_refresh = _Refresh()
        refresh.add(topics)
        async with self._refreshing:
            if not refresh.done:
                self._next_refresh = None
                await self._run(refresh)
        if refresh.failure:
            raise BrokerFault(refresh.failure, sent=False)

    async def _run(self, refresh: "_Refresh") -> None:
        """Send the request of a refresh.

        If this is cancelled, the next of the waiting callers sends it.
        """
        try:
            answer = await self._ask_anybody(METADATA(_named(refresh.topics), False, False, {}))
        except BrokerFault as error:
            refresh.failure = str(error)
        else:
            self._apply(answer, refresh.topics)
            if self.metadata.doubted:
                await self._settle_doubts()
        refresh.done = True

    def _apply(self, answer: Any, topics: Collection[str] | None) -> None:
        if self.fault:
            _log.info("Kafka can be reached", brokers=len(answer.brokers))
            self._changes += 1
        self._set_fault("")
        self.reached.set()
        self._attempt_s = min(_ATTEMPT_S, self._options.dial_timeout_s)
        before = self.metadata.brokers
        changed = self.metadata.apply(answer, topics, self._loop.time())
        if self.metadata.brokers != before:
            self._drop_moved()
        elif not changed:
            return
        self._changed(changed)

    async def _settle_doubts(self) -> None:
        """Ask all brokers for the topics that some broker lacks."""
        request = METADATA(_named(self.metadata.doubted), False, False, {})
        asked = (self._opinion(node_id, request) for node_id in self.metadata.brokers)
        answers = [each for each in await asyncio.gather(*asked) if each is not None]
        if gone := self.metadata.settle(answers, self._loop.time()):
            self._changed(gone)
        if self.metadata.doubted:
            self.request_refresh(self.metadata.doubted)

    async def _opinion(self, node_id: int, request: Any) -> Any:
        """The response of a broker, None if there is none soon."""
        try:
            return await self.send(node_id, request, _METADATA, _OPINION_S)
        except Unavailable:
            return None

    def _changed(self, topics: set[str]) -> None:
        self._changes += 1
        self._forget_leaderless(topics)
        self.tell(topics)

    def tell(self, changed: set[str]) -> None:
        """Notify the listeners of changed topics."""
        for listener in self.listeners:
            listener(changed)

    def no_leader(self, partition: TopicPartition) -> str:
        """Note a request for a partition without a leader: refresh soon, log it once.

        Returns the reason for the caller.
        """
        self.request_refresh([partition.topic])
        if self.fault:
            return f"no Kafka broker can be reached: {self.fault}"
        if partition not in self._leaderless:
            self._leaderless.add(partition)
            _log.warning("a partition has no leader", topic=partition.topic, partition=partition.partition)
        return "the partition has no leader"

    def _forget_leaderless(self, topics: Collection[str]) -> None:
        for partition in [each for each in self._leaderless if each.topic in topics]:
            gone = partition.topic not in self.metadata.topics
            if gone or self.metadata.leader(*partition) >= 0:
                self._leaderless.discard(partition)
                if not gone:
                    topic, number = partition
                    _log.info("a partition has a leader again", topic=topic, partition=number)

    async def _keep_fresh(self) -> None:
        longest_s = self._options.retry_backoff_s
        backoff = Backoff(_BACKOFF_MIN_S, longest_s)
        brought_nothing = False
        while True:
            before, since = self._changes, self._loop.time()
            try:
                async with asyncio.timeout(self._options.metadata_max_age_s):
                    await self._wake.wait()
            except TimeoutError:
                self._stale, brought_nothing = None, True
            rested = self._loop.time() - since >= longest_s
            if brought_nothing:
                await self._connect_another()
            topics, self._stale = self._stale, set()
            self._wake.clear()
            try:
                await self.refresh(topics)
            except Exception as fault:
                if not isinstance(fault, Unavailable):
                    self._on_fault(fault)
                self._stale = None
                self._wake.set()
            brought_nothing = self._changes == before
            if rested or not brought_nothing:
                backoff.reset()
            await asyncio.sleep(backoff.grow())  # callers that find the metadata stale share the next answer

    async def _connect_another(self) -> None:
        """Connect for metadata to one more broker, which is asked next."""
        links = [self._link(node_id, _METADATA) for node_id in self.metadata.brokers]
        if left := [link for link in links if not link.is_open]:
            node_id, _ = random.choice(left).key
            assert isinstance(node_id, int)
            with suppress(TimeoutError, Unavailable):
                async with asyncio.timeout(_OPINION_S) as limit:
                    await self._connection(node_id, _METADATA, None, limit)

    async def _ask_anybody(self, request: Any) -> Any:
        """The response of the first broker that answers, known brokers before seeds."""
        failures = []
        for host, port, link in self._candidates():
            link.asked_at = self._loop.time()
            try:
                async with asyncio.timeout(self._attempt_s) as limit:
                    connection = await self._connect(host, port, link, limit)
                    answer = await _ask(connection, request)
                if answer.brokers:
                    return answer
                failures.append(f"{host}:{port} knows of no broker that lives")
            except TimeoutError:
                if link.connection is not None:
                    link.connection.close(reason=CloseReason.CONNECTION_TIMEOUT)
                failures.append(f"{host}:{port} has not answered within {self._attempt_s:g} s")
            except Unavailable as error:
                failures.append(str(error))
        self._attempt_s = min(2 * self._attempt_s, self._options.dial_timeout_s)
        fault = "; ".join(dict.fromkeys(failures))
        if not self.fault:
            _log.warning("no Kafka broker can be reached", error=fault)
        self._set_fault(fault)
        raise BrokerFault(f"no Kafka broker can be reached: {fault}", sent=False)

    def _set_fault(self, fault: str) -> None:
        changed = bool(fault) != bool(self.fault)
        self.fault = fault
        if changed:
            for listener in self.fault_listeners:
                listener()

    def _candidates(self) -> list[tuple[str, int, _Link]]:
        """Brokers with a connection in turns, then the others, then the seeds."""
        known = list(self.metadata.brokers.values())
        random.shuffle(known)
        found = [(each.host, each.port, self._link(each.node_id, _METADATA)) for each in known]
        found.sort(key=lambda each: (not each[2].is_open, each[2].asked_at))
        seeds = [(host, port) for host, port, _ in collect_hosts(list(self._options.seed_peers))]
        addresses = {(host, port) for host, port, _ in found}
        return found + [
            (host, port, self._link(f"{host}:{port}", _METADATA))
            for host, port in seeds
            if (host, port) not in addresses
        ]

    # --- connections ------------------------------------------------------------------------------

    def _link(self, broker: int | str, purpose: str, client_id: str | None = None) -> _Link:
        link = self._links.get((broker, purpose))
        if link is None:
            link = self._links[broker, purpose] = _Link(
                (broker, purpose),
                client_id or self._options.client_id,
                Backoff(_BACKOFF_MIN_S, self._options.retry_backoff_s),
            )
        return link

    async def _connection(
        self, node_id: int, purpose: str, client_id: str | None, limit: asyncio.Timeout
    ) -> Any:
        if self._stopped:
            raise ShuttingDown
        link = self._links.get((node_id, purpose))
        if link is not None and link.is_open:
            return link.connection
        broker = self.metadata.brokers.get(node_id)
        if broker is None:
            self.request_refresh()
            raise BrokerFault(f"broker {node_id} is not part of the cluster at the moment", sent=False)
        try:
            async with asyncio.timeout(self._options.dial_timeout_s) as dial_limit:
                link = self._link(node_id, purpose, client_id)
                return await self._connect(broker.host, broker.port, link, limit, dial_limit)
        except TimeoutError:
            self.request_refresh()
            address = f"{broker.host}:{broker.port}"
            limit_s = self._options.dial_timeout_s
            raise BrokerFault(
                f"broker {node_id} at {address} has not answered within {limit_s:g} s", False
            ) from None

    async def _connect(self, host: str, port: int, link: _Link, *limits: asyncio.Timeout) -> Any:
        """The connection of a link, opened if there is none.

        Args:
            limits: of the callers. A dial that exceeds one is a failure of the broker; one whose
                caller is cancelled is none, and the next caller dials anew.
        """
        async with link.connecting:
            if self._stopped:
                raise ShuttingDown
            if link.is_open:
                return link.connection
            if self._loop.time() < link.not_before:
                raise BrokerFault(link.failure, sent=False)
            try:
                link.connection = await self._dial(host, port, link.client_id)
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError) and not any(each.expired() for each in limits):
                    raise
                link.failure = f"cannot connect to {host}:{port}: {_reason(error)}"
                link.not_before = self._loop.time() + link.backoff.grow()
                if not isinstance(error, (OSError, KafkaError)):
                    raise
                self.request_refresh()
                raise BrokerFault(link.failure, sent=False) from None
            link.backoff.reset()
            if self._links.get(link.key) is not link:
                # The link was dropped meanwhile, and only this call can close the connection.
                link.connection.close()
                raise BrokerFault(f"the connection to {host}:{port} is not needed any more", sent=False)
            return link.connection

    async def _dial(self, host: str, port: int, client_id: str) -> Any:
        security = self._options.security
        return await self._create_connection(
            host,
            port,
            client_id=client_id,
            request_timeout_ms=self._options.request_timeout_s * 1000,
            ssl_context=security.ssl_context,
            security_protocol=security.protocol,
            max_idle_ms=_IDLE_MS,
            on_close=self._on_close,
            sasl_mechanism=security.mechanism or None,
            sasl_plain_username=security.user,
            sasl_plain_password=security.password,
            sasl_oauth_token_provider=security.token_provider,
        )

    def _on_close(self, _: AIOKafkaConnection, reason: CloseReason) -> None:
        if reason in (CloseReason.CONNECTION_BROKEN, CloseReason.CONNECTION_TIMEOUT) and not self._stopped:
            self.request_refresh()

    def _drop_moved(self) -> None:
        """Close connections to brokers that are gone or have another address, and to seeds."""
        for (broker, purpose), link in list(self._links.items()):
            place = self.metadata.brokers.get(broker) if isinstance(broker, int) else None
            if link.connecting.locked() or _is_at(link.connection, place):
                continue
            del self._links[broker, purpose]
            if link.connection is not None:
                link.connection.close()


def short_attempts(patience_s: float = SHORT_PATIENCE_S) -> Attempts:
    """Attempts of a short request, for some seconds.

    Only for requests that may be executed more than once.
    """
    return Attempts(patience_s, Backoff(_PAUSE_MIN_S, _PAUSE_MAX_S))


def _named(topics: Collection[str] | None) -> list[tuple[bytes, str, dict[int, bytes]]] | None:
    return None if topics is None else [(_NO_TOPIC_ID, name, {}) for name in topics]


def _reason(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return "no answer in time"
    return str(error) or type(error).__name__


def _is_at(connection: Any, place: Broker | None) -> bool:
    if place is None:
        return False
    return connection is None or (connection.host, connection.port) == (place.host, place.port)


async def _ask(connection: Any, request: Any) -> Any:
    """The response to a request.

    Raises:
        BrokerFault, Unavailable
    """
    address = f"{connection.host}:{connection.port}"
    try:
        answer = connection.send(request)
    except (IncompatibleBrokerVersion, VersionMismatch) as error:
        raise Unavailable(f"the broker at {address} cannot be used: {error}") from None
    except (KafkaError, NotImplementedError) as error:
        raise BrokerFault(f"the broker at {address} cannot be asked: {error}", sent=False) from None
    try:
        return await answer
    except KafkaConnectionError as error:
        cause = f" ({error.__cause__})" if error.__cause__ and str(error.__cause__) else ""
        raise BrokerFault(f"the connection to the broker at {address} broke{cause}", sent=True) from None
    except KafkaError as error:
        raise BrokerFault(f"the broker at {address} cannot be asked: {error}", sent=True) from None
