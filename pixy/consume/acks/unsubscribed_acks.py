"""Acks of topics that are not consumed here: the owner of the partition acks them.

Without an owner this process subscribes, but for an offset beyond the end. Joining first would take
partitions away from the process that offered the record. While the owner is undecided or cannot be
reached, the acks wait, as long as the patience with owners lasts.
"""

from collections.abc import Callable
from functools import partial

from pixy.backend import TopicPartition
from pixy.consume.acks.ack_lane import AckDone, AckLane, AckOutcome, NotAnswered, WaitingAck
from pixy.consume.acks.passed_acks import check_ack, owner_backoff, pass_acks
from pixy.consume.acks.waiting_acks import WaitingAcks
from pixy.consume.core import UNDECIDED, Client, address_of
from pixy.consume.partition import ConsumeEnvironment
from pixy.errors import AckBeyondEnd, AckElsewhere, InvalidAck, PixyError, TooManyRequests


class UnsubscribedAcks:
    """The waiting acks of one proxy that belong to no subscription.

    Args:
        environment: the cluster, options, time and tasks.
        find: the acks of the subscription of a group and topic, None if there is none.
        subscribe: those of one that is begun for a client address, if there is none; raises
            `TooManyRequests` or `ShuttingDown`.
    """

    def __init__(
        self,
        environment: ConsumeEnvironment,
        find: Callable[[str, str], WaitingAcks | None],
        subscribe: Callable[[str, str, str], WaitingAcks],
    ) -> None:
        self._environment = environment
        self._find = find
        self._subscribe = subscribe
        # None is empty.
        self._lanes: dict[tuple[str, str, int], AckLane] = {}

    def ack(self, group: str, topic: str, ack: tuple[int, int], done: AckDone, client: Client | None) -> None:
        """Settle an ack."""
        partition, offset = ack
        address = address_of(client)
        try:
            check_ack(self._environment.backend, topic, ack)
            self._environment.ack_limit.take(address)
        except (InvalidAck, TooManyRequests) as error:
            done(error)
            return
        key = group, topic, partition
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = AckLane(self._environment, *key)
            name = f"acks of {topic}/{partition} for {group}"
            self._environment.tasks.spawn(self._run(key, lane), name, partial(self._abort, key, lane))
        lane.add(WaitingAck(offset, done, address))

    async def _run(self, key: tuple[str, str, int], lane: AckLane) -> None:
        timers, backoff = self._environment.timers, owner_backoff()
        while lane.acks:
            try:
                if not await self._pass(lane):
                    count, end = len(lane.acks), await self._end_unless_subscribed(lane)
                    await lane.decide(partial(self._hand_over, lane, end), count)
                backoff.reset()
            except UNDECIDED as error:
                lane.refusal, pause = error, backoff.grow()
                await lane.expire(timers.monotonic() + pause)
                if lane.acks:
                    await timers.sleep(pause)
            except AckElsewhere as error:
                await lane.answer(error)
        del self._lanes[key]

    async def _pass(self, lane: AckLane) -> bool:
        """Have the owner ack records; False if there is none, or a subscription by now."""
        if self._find(lane.group, lane.topic) is not None:
            return False
        partition, first = TopicPartition(lane.topic, lane.partition), lane.acks[0]
        passing = self._environment.passing
        async with passing.turn(lane.group, partition, first.address, lane.deadline):
            return self._find(lane.group, lane.topic) is None and await pass_acks(self._environment, lane)

    async def _end_unless_subscribed(self, lane: AckLane) -> int | None:
        """The end of the partition, None if the subscription has to find out."""
        if self._find(lane.group, lane.topic) is not None:
            return None
        try:
            return await self._environment.ends.ask(lane.topic, lane.partition)
        except PixyError:
            return None

    def _hand_over(self, lane: AckLane, end: int | None, ack: WaitingAck) -> AckOutcome:
        """Give an ack to the subscription. None is begun for an ack beyond the end: a mistyped name
        would be a consumer group from then on.

        Args:
            end: of the partition, told since the ack came; None if it is not known.
        """
        try:
            acks = self._find(lane.group, lane.topic)
            if acks is None and end is not None and ack.offset >= end:
                raise AckBeyondEnd.of(lane.topic, lane.partition, ack.offset, end)
            if acks is None:
                acks = self._subscribe(lane.group, lane.topic, ack.address)
        except PixyError as error:
            return error
        acks.adopt(lane.partition, ack)
        return NotAnswered.MOVED

    def _abort(self, key: tuple[str, str, int], lane: AckLane, error: PixyError) -> None:
        self._lanes.pop(key, None)
        lane.abort(error)
