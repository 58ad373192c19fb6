"""`GET /v1/topics/{topic}/records`: messages of a consumer group, in one answer or as a stream of
lines, and their acks.

An offer is the receipt of what it is answered with: it is delivered when that was handed to the
transport, and otherwise offered to another consumer. A stream sends further messages when the
transport has taken what was sent.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from pixy.aio.futures import resolve
from pixy.api.http.v1.problems import problem_of
from pixy.api.http.v1.records import encode, offer_json, records_body
from pixy.consume import ConsumeRequest, Offer, OffersReceipt
from pixy.errors import LongPollTimeout, PixyError, ShuttingDown
from pixy.proxy import Proxy
from pixy.web import AnswerHead, Exchange, HttpError

_TAKEN_AT_ONCE = 50
"""Messages that are taken in one step: half a millisecond."""
_ACKED_AT_ONCE = 50
_LINES = AnswerHead(200, "application/x-ndjson")
_RECORDS = AnswerHead(200, "application/json")
_HEARTBEAT = b"\n"


class RecordsQuery(NamedTuple):
    """The parameters of a request for records.

    Attributes:
        group: the consumer group.
        auto_ack: messages are acked when they were handed to the transport.
        records_max, bytes_max: of an answer, which has one record at least if there is one.
        wait_s: seconds to wait for the first, None for the long poll.
        is_base64: see `record_json`.
    """

    group: str
    auto_ack: bool
    records_max: int
    bytes_max: int
    wait_s: float | None
    is_base64: bool


class GroupReader:
    """Takes messages of one consumer group for one exchange."""

    def __init__(self, proxy: Proxy, request: ConsumeRequest, exchange: Exchange) -> None:
        self._proxy = proxy
        self._request = request
        self._exchange = exchange

    async def first(self, wait_s: float | None = None) -> Offer | None:
        """The next message; None if none came for the long poll, or within `wait_s` seconds.

        Raises:
            PixyError: why no message can be had.
        """
        answered: asyncio.Future[tuple[Offer | None, PixyError | None]]
        answered = asyncio.get_running_loop().create_future()

        def done(offer: Offer | None, error: PixyError | None) -> None:
            if answered.done():
                if offer is not None:
                    offer.undelivered()
            else:
                resolve(answered, (offer, error))

        pending = self._proxy.consume(self._request, done, None, self._exchange)
        try:
            async with asyncio.timeout(wait_s):
                offer, error = await answered
        except BaseException as ended:
            if pending is not None:
                pending.cancel()
            if answered.done() and not answered.cancelled() and (late := answered.result()[0]) is not None:
                late.undelivered()
            if isinstance(ended, TimeoutError):
                return None
            raise
        if error is not None and not isinstance(error, LongPollTimeout):
            raise error
        return offer

    def more(self, most: int, bytes_max: int) -> list[Offer]:
        """Messages that are at hand, at most as many, until they have so many bytes."""
        offers: list[Offer] = []
        while len(offers) < most and _size(offers) < bytes_max:
            found: list[Offer] = []

            def took(offer: Offer | None, _: PixyError | None, found: list[Offer] = found) -> None:
                if offer is not None:
                    found.append(offer)

            try:
                waiting = self._proxy.consume(self._request, took, None, self._exchange)
            except PixyError:
                break
            if waiting is not None:
                waiting.cancel()
            if not found:
                break
            offers += found
        return offers


async def answer_records(reader: GroupReader, exchange: Exchange, query: RecordsQuery) -> None:
    """Answer with the messages that are at hand, after waiting for the first."""
    offers: list[Offer] = []
    try:
        first = await reader.first(query.wait_s)
        if first is not None:
            offers.append(first)
        while offers and len(offers) < query.records_max and _size(offers) < query.bytes_max:
            most = min(query.records_max - len(offers), _TAKEN_AT_ONCE)
            more = reader.more(most, query.bytes_max - _size(offers))
            if not more:
                break
            offers += more
            await asyncio.sleep(0)
        lines = [offer_json(offer, is_base64=query.is_base64) for offer in offers]
    except BaseException:
        OffersReceipt(offers).undelivered()
        raise
    body = records_body(lines)
    exchange.answer(_RECORDS, body, OffersReceipt(offers))


async def stream_records(reader: GroupReader, exchange: Exchange, *, is_base64: bool) -> None:
    """Send messages as lines until the client leaves, or the daemon stops. An empty line says that
    none came for a long poll.
    """
    offer = await reader.first()  # what is refused has a status
    try:
        await exchange.begin(_LINES)
        while True:
            if offer is None:
                await exchange.send(_HEARTBEAT)
            else:
                line = offer_json(offer, is_base64=is_base64) + b"\n"
                sent, offer = offer, None
                await exchange.send(line, sent)
            try:
                offer = await reader.first()
            except ShuttingDown:
                return
    finally:
        if offer is not None:
            offer.undelivered()


def _size(offers: Sequence[Offer]) -> int:
    return sum(offer.size for offer in offers)


async def ack_all(proxy: Proxy, group: str, topic: str, given: Sequence[Any], exchange: Exchange) -> bytes:
    """Acknowledge messages; returns the answer, which has those that were refused."""
    places = [_place(each) for each in given]
    refused: list[dict[str, Any]] = []
    for at in range(0, len(places), _ACKED_AT_ONCE):
        some = places[at : at + _ACKED_AT_ONCE]
        answers = await asyncio.gather(*(_ack(proxy, group, topic, place, exchange) for place in some))
        refused += [
            {"partition": partition, "offset": offset, "error": problem_of(error)}
            for (partition, offset), error in zip(some, answers, strict=True)
            if error is not None
        ]
    return encode({"acked": len(places) - len(refused), "refused": refused}) + b"\n"


async def _ack(
    proxy: Proxy, group: str, topic: str, place: tuple[int, int], exchange: Exchange
) -> PixyError | None:
    answered: asyncio.Future[PixyError | None] = asyncio.get_running_loop().create_future()
    try:
        proxy.ack(group, topic, *place, partial(resolve, answered), exchange)
    except PixyError as error:
        return error
    return await answered


def _place(given: Any) -> tuple[int, int]:
    with suppress(TypeError, KeyError):
        partition, offset = given["partition"], given["offset"]
        if (
            type(partition) is int
            and type(offset) is int
            and 0 <= partition < 1 << 31
            and 0 <= offset < 1 << 63
        ):
            return partition, offset
    raise HttpError(400, "an ack has a partition and an offset, whole numbers and not negative")
