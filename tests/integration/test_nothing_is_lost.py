"""The daemon is killed with SIGKILL repeatedly under load; nothing that it has answered may be
lost.

While it runs, clients produce (synchronously and asynchronously), consume for three groups that ack
in different ways, and set the offsets of a fourth; one more polls the committed offsets. After each
start a fresh group reads new records, and `ledger` compares. Journal files and segments are small,
so that kills hit their rotation too; some hit recovery.

PIXY_CRASH_CYCLES is the number of kills (15), PIXY_CRASH_SEED repeats the random choices of a run;
timing depends on the machine.
"""

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc
import pytest

from pixy.proto import kafkapixy_pb2 as pb
from pixy.records import OffsetRange, TopicPartition
from tests.integration.conftest import MakeDaemon
from tests.integration.daemon import Daemon, proxy_config
from tests.integration.ledger import Committed, GroupLedger, Ledger, MovedLedger, Position

if TYPE_CHECKING:
    from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyAsyncStub

pytestmark = [pytest.mark.process, pytest.mark.no_debug]

TOPICS = ("orders", "events")
PARTITIONS = 3
PARTITION_KEYS = [TopicPartition(topic, partition) for topic in TOPICS for partition in range(PARTITIONS)]
CUT_OFF = {
    signal.SIGKILL: {grpc.StatusCode.UNAVAILABLE},
    # A call that arrives just as the gRPC server closes is cancelled by it.
    signal.SIGTERM: {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED},
}
MESSAGE_KEYS = (None, b"", *(b"key-%d" % number for number in range(8)))
CALL_SECONDS_MAX = 60.0
QUIET_SECONDS_MAX = 20.0
"""Time without a record after which those that are not read are missing."""
LIFE_SECONDS = (0.05, 1.2)
DEATHS_WHILE_STARTING = 0.2
STARTING_SECONDS = (0.1, 0.6)

CONFIG = {
    "journal": {"file_bytes": "1MiB", "max_unapplied_bytes": "1MiB"},
    "storage": {"segment_bytes": "1MiB", "checkpoint_entries": 20},
    "default_partitions": PARTITIONS,
    "consumer": {
        "long_polling_timeout": "500ms",
        "offsets_commit_interval": "40ms",
        "max_pending_messages": 1_000_000,
        "max_pending_bytes": "1GiB",
    },
}


class Crashes:
    """The clients of one daemon, over all its lives."""

    def __init__(self, daemon: Daemon, rng: random.Random) -> None:
        self.daemon = daemon
        self.rng = rng
        self.ledger = Ledger()
        self.moved = MovedLedger()
        self.explicit = GroupLedger("explicit", workers=4)
        self.riding = GroupLedger("riding", workers=4)
        self.auto = GroupLedger("auto", workers=4, auto_ack=True)
        self.groups = (self.explicit, self.riding, self.auto)
        self.values = 0
        # Asynchronous messages accepted in this life.
        self.accepted: list[bytes] = []
        # Values of unanswered produces: they are sent again.
        self.unanswered: list[tuple[str, bytes | None, bytes]] = []
        # All records below were read by a fresh group.
        self.audited = dict.fromkeys(PARTITION_KEYS, 0)
        self.stub: KafkaPixyAsyncStub

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        async with self.daemon.aio_channel() as channel:
            self.stub = self.daemon.aio_stub(channel)
            yield

    # --- producers --------------------------------------------------------------------------------

    def next_message(self) -> tuple[str, bytes | None, bytes]:
        if self.unanswered:
            return self.unanswered.pop()
        self.values += 1
        value = b"message %d " % self.values + b"." * self.rng.choice((0, 10, 100, 20_000))
        return self.rng.choice(TOPICS), self.rng.choice(MESSAGE_KEYS), value

    async def send(self, topic: str, key: bytes | None, value: bytes, async_mode: bool) -> pb.ProdRs:
        self.ledger.sent[value] += 1
        request = pb.ProdRq(
            topic=topic, key_value=key or b"", key_undefined=key is None, message=value, async_mode=async_mode
        )
        return await self.stub.Produce(request, timeout=CALL_SECONDS_MAX)

    async def produce(self) -> None:
        while True:
            topic, key, value = self.next_message()
            try:
                answer = await self.send(topic, key, value, async_mode=False)
            except (grpc.RpcError, asyncio.CancelledError):
                self.unanswered.append((topic, key, value))
                raise
            self.ledger.acknowledge(Position(topic, answer.partition, answer.offset), value)

    async def produce_async(self) -> None:
        while True:
            for _ in range(20):
                message = self.next_message()
                await self.send(*message, async_mode=True)
                self.accepted.append(message[2])
            await self.stub.ListTopics(pb.ListTopicRq(), timeout=CALL_SECONDS_MAX)

    # --- consumers --------------------------------------------------------------------------------

    async def poll(self, request: pb.ConsNAckRq) -> pb.ConsRs:
        """One poll, or several, if a busy machine ends them before the group has begun."""
        while True:
            try:
                return await self.stub.ConsumeNAck(request, timeout=CALL_SECONDS_MAX)
            except grpc.aio.AioRpcError as error:
                if "has not begun to consume" not in (error.details() or ""):
                    raise

    async def consume(self, group: GroupLedger, request: pb.ConsNAckRq) -> Position | None:
        """One poll; None without a message."""
        request.group = group.name
        try:
            answer = await self.poll(request)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return None
            raise
        position = Position(request.topic, answer.partition, answer.offset)
        self.ledger.see(position, answer.message)
        group.offer(position)
        if group.auto_ack:
            group.acked.add(position)
            group.confirmed.add(position)
        return position

    async def consume_and_ack(self, topic: str) -> None:
        """Ack some records at once, some later in random order, some not in this life."""
        group, kept = self.explicit, list[Position]()
        while True:
            position = await self.consume(group, pb.ConsNAckRq(topic=topic, no_ack=True))
            if position is not None and self.rng.random() < 0.9:
                kept.append(position)
            while kept and self.rng.random() < 0.8:
                await self.ack(group, kept.pop(self.rng.randrange(len(kept))))

    async def ack(self, group: GroupLedger, position: Position) -> None:
        group.acked.add(position)
        topic, partition, offset = position
        request = pb.AckRq(topic=topic, group=group.name, partition=partition, offset=offset)
        await self.stub.Ack(request, timeout=CALL_SECONDS_MAX)
        group.confirmed.add(position)

    async def consume_n_ack(self, topic: str) -> None:
        """Each request acks the previous record."""
        last: Position | None = None
        while True:
            request = pb.ConsNAckRq(topic=topic, no_ack=last is None)
            if last is not None:
                self.riding.acked.add(last)
                _, request.ack_partition, request.ack_offset = last
            acked, last = last, await self.consume(self.riding, request)
            if acked is not None:
                self.riding.confirmed.add(acked)

    async def consume_auto(self, topic: str) -> None:
        while True:
            await self.consume(self.auto, pb.ConsNAckRq(topic=topic, auto_ack=True))

    # --- offsets ----------------------------------------------------------------------------------

    async def offsets(self, group: str, topic: str) -> dict[TopicPartition, pb.PartitionOffset]:
        request = pb.GetOffsetsRq(topic=topic, group=group)
        answer = await self.stub.GetOffsets(request, timeout=CALL_SECONDS_MAX)
        return {TopicPartition(topic, entry.partition): entry for entry in answer.offsets}

    async def watch_offsets(self) -> None:
        while True:
            for group in self.groups:
                for topic in TOPICS:
                    for key, entry in (await self.offsets(group.name, topic)).items():
                        group.show(key, Committed.shown(entry))

    async def set_offsets(self, topic: str) -> None:
        while True:
            ends = [self.ledger.ends.get(TopicPartition(topic, number), 0) for number in range(PARTITIONS)]
            offsets = tuple(self.rng.randint(0, end) for end in ends)
            self.moved.begin(topic, offsets)
            entries = [pb.PartitionOffset(partition=p, offset=offset) for p, offset in enumerate(offsets)]
            request = pb.SetOffsetsRq(topic=topic, group="moved", offsets=entries)
            await self.stub.SetOffsets(request, timeout=CALL_SECONDS_MAX)
            self.moved.answer(topic)
            shown = await self.offsets("moved", topic)
            assert tuple(entry.offset for entry in shown.values()) == offsets

    # --- lives ------------------------------------------------------------------------------------

    def clients(self) -> list[Coroutine[object, object, None]]:
        return [
            *(self.produce() for _ in range(6)),
            *(self.produce_async() for _ in range(2)),
            *(self.consume_and_ack(topic) for topic in TOPICS * 2),
            *(self.consume_n_ack(topic) for topic in TOPICS * 2),
            *(self.consume_auto(topic) for topic in TOPICS * 2),
            *(self.set_offsets(topic) for topic in TOPICS),
            self.watch_offsets(),
        ]

    async def begin_life(self, *, after_crash: bool = True) -> None:
        """Check everything before any change, and read new records."""
        self.accepted.clear()
        for group in self.groups:
            shown = {
                key: Committed.shown(entry)
                for topic in TOPICS
                for key, entry in (await self.offsets(group.name, topic)).items()
            }
            group.begin_life(shown, after_crash=after_crash)
        for topic in TOPICS:
            shown_moved = await self.offsets("moved", topic)
            self.moved.begin_life(topic, tuple(entry.offset for entry in shown_moved.values()))
        await self.audit(f"audit-{time.monotonic_ns()}", self.audited)

    async def audit(self, group: str, since: dict[TopicPartition, int]) -> None:
        """A fresh group reads everything from `since` on."""
        served: dict[TopicPartition, OffsetRange] = {}
        for topic in TOPICS:
            entries = [
                pb.PartitionOffset(partition=key.partition, offset=offset)
                for key, offset in since.items()
                if key.topic == topic
            ]
            request = pb.SetOffsetsRq(topic=topic, group=group, offsets=entries)
            await self.stub.SetOffsets(request, timeout=CALL_SECONDS_MAX)
            served |= {
                key: OffsetRange(entry.begin, entry.end)
                for key, entry in (await self.offsets(group, topic)).items()
            }
        records: dict[TopicPartition, list[tuple[int, bytes]]] = {
            key: [
                (at.offset, value)
                for at, value in self.ledger.read.items()
                if at[:2] == key and at.offset < offset
            ]
            for key, offset in since.items()
        }
        await asyncio.gather(*(self.read(group, topic, served, since, records) for topic in TOPICS))
        for key in PARTITION_KEYS:
            self.ledger.check_log(key, served[key], records[key])
            self.audited[key] = served[key].end

    async def read(
        self,
        group: str,
        topic: str,
        served: dict[TopicPartition, OffsetRange],
        since: dict[TopicPartition, int],
        records: dict[TopicPartition, list[tuple[int, bytes]]],
    ) -> None:
        missing = sum(served[key].end - since[key] for key in PARTITION_KEYS if key.topic == topic)
        request = pb.ConsNAckRq(topic=topic, group=group, auto_ack=True)
        loop = asyncio.get_running_loop()
        read_at = loop.time()

        async def reader() -> None:
            nonlocal missing, read_at
            while missing > 0:
                missing -= 1
                try:
                    answer = await self.poll(request)
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.NOT_FOUND:
                        raise
                    # A busy machine may take longer than a poll. Reported by check_log if for good.
                    missing += loop.time() < read_at + QUIET_SECONDS_MAX
                    continue
                read_at = loop.time()
                records[TopicPartition(topic, answer.partition)].append((answer.offset, answer.message))

        await asyncio.gather(*(reader() for _ in range(16)))

    async def live(self, seconds: float, number: signal.Signals) -> None:
        """Run the load, then send the signal; returns when all clients have noticed."""
        tasks = [asyncio.create_task(client) for client in self.clients()]
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        assert not done or _failure(done) is None, f"a client failed before the signal: {_failure(done)}"
        self.daemon.signal(number)
        await asyncio.wait(tasks, timeout=CALL_SECONDS_MAX)
        for task in tasks:
            assert task.done(), "a client waits though the daemon is gone"
            error = task.exception()
            if not isinstance(error, grpc.aio.AioRpcError):
                assert error is not None
                raise error
            assert error.code() in CUT_OFF[number], f"{task} ended with {error}"

    async def consume_the_rest(self) -> None:
        """Consume and ack the uncommitted records of every group, up to the end."""

        async def consumer(group: GroupLedger, topic: str) -> None:
            while (
                position := await self.consume(group, pb.ConsNAckRq(topic=topic, no_ack=True))
            ) is not None:
                await self.ack(group, position)

        everybody = [(group, topic) for group in self.groups for topic in TOPICS]
        await asyncio.gather(*(consumer(group, topic) for group, topic in everybody * 4))
        for group in self.groups:
            group.end_life(self.audited)


def _failure(tasks: set["asyncio.Task[None]"]) -> BaseException | None:
    return next((task.exception() for task in tasks), None)


async def start_with_deaths(crashes: Crashes) -> None:
    """Start, sometimes only after one or two kills on the way."""
    daemon, rng = crashes.daemon, crashes.rng
    while rng.random() < DEATHS_WHILE_STARTING:
        daemon.start_nowait()
        await asyncio.sleep(rng.uniform(*STARTING_SECONDS))  # a random moment
        daemon.kill()
    daemon.start()


@pytest.mark.parametrize("cycles", [4, pytest.param(15, marks=pytest.mark.long)])
async def test_nothing_is_lost(make_daemon: MakeDaemon, cycles: int) -> None:
    cycles = int(os.environ.get("PIXY_CRASH_CYCLES", str(cycles)))
    seed = int(os.environ.get("PIXY_CRASH_SEED", str(random.SystemRandom().randrange(1 << 32))))
    print(f"repeat with PIXY_CRASH_SEED={seed} PIXY_CRASH_CYCLES={cycles}", file=sys.stderr)
    crashes = Crashes(make_daemon({"shutdown_timeout": "1s", **proxy_config(**CONFIG)}), random.Random(seed))
    daemon = crashes.daemon
    daemon.start()
    async with crashes.connected():
        for topic in TOPICS:
            answer = await crashes.send(topic, None, f"first of {topic}".encode(), async_mode=False)
            crashes.ledger.acknowledge(
                Position(topic, answer.partition, answer.offset), f"first of {topic}".encode()
            )
    for _ in range(cycles):
        async with crashes.connected():
            await crashes.begin_life()
            await crashes.live(crashes.rng.uniform(*LIFE_SECONDS), signal.SIGKILL)
        for group in crashes.groups:
            group.end_life()
        daemon.kill()
        await start_with_deaths(crashes)

    # A life with a clean exit loses nothing, not even asynchronously accepted messages.
    async with crashes.connected():
        await crashes.begin_life()
        await crashes.live(0.5, signal.SIGTERM)
    assert daemon.wait() == 0, daemon.log()
    accepted = list(crashes.accepted)
    daemon.start()
    async with crashes.connected():
        await crashes.begin_life(after_crash=False)
        crashes.ledger.check_present(accepted)
        await crashes.audit("audit from the first record on", dict.fromkeys(PARTITION_KEYS, 0))
        crashes.ledger.check_copies()
        await crashes.consume_the_rest()
    daemon.stop()
    daemon.start()
    async with crashes.connected():
        for group in crashes.groups:
            for topic in TOPICS:
                assert [entry.lag for entry in (await crashes.offsets(group.name, topic)).values()] == [
                    0
                ] * PARTITIONS
    daemon.stop()
    print(
        f"{cycles} deaths, {len(crashes.ledger.acknowledged)} answered of {crashes.values} messages, "
        f"{len(crashes.auto.given_up)} lost by auto ack",
        file=sys.stderr,
    )
