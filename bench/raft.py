"""`python -m bench.raft`: speed and size of the Raft core, without disk and network.

Three nodes in one process go through the full cycle: all work is stored in memory, its messages are
stepped into the others, committed entries are applied. Payloads have 100 bytes and are never
copied. Limits are those of a production node, so that sizes are computed. For comparison pysyncobj,
if installed (`pip install pysyncobj`): three nodes in one process as well, with its only transport,
over loopback, set to send as soon as possible.

Everything runs in one thread and waits for nothing, so a second is one of processor time: other
load on the machine does not count.
"""

import argparse
import gc
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from random import Random

from bench.kit.processes import free_ports
from pixy.raft import ConfState, Entry, Message, MessageType, RaftConfig, RaftNode, Snapshot, Work
from tests.raft.memory_storage import MemoryStorage

PAYLOAD = b"x" * 100
CONFIG = RaftConfig(
    election_tick=10,
    max_inflight_messages=256,
    max_inflight_bytes=8 << 20,
    max_size_per_message=1 << 20,
    pre_vote=True,
    check_quorum=True,
)


def _storage() -> MemoryStorage:
    storage = MemoryStorage()
    storage.apply_snapshot(Snapshot(1, 1, ConfState((1, 2, 3))))
    return storage


def _done(node: RaftNode, storage: MemoryStorage, work: Work) -> list[Message]:
    """Do the work; returns the messages to send."""
    messages, append = list(work.messages), work.append
    if append is not None:
        if append.hard_state is not None:
            storage.set_hard_state(append.hard_state)
        storage.append(append.entries)
        messages += node.stored(append)
    if work.committed_entries:
        node.applied(work.committed_entries)
    return messages


class Group:
    """Three nodes with the first one as leader."""

    def __init__(self) -> None:
        random = Random(1)
        self.storages = {node_id: _storage() for node_id in (1, 2, 3)}
        self.nodes = {
            node_id: RaftNode(node_id, self.storages[node_id], CONFIG, random, applied=1)
            for node_id in (1, 2, 3)
        }
        self.applied = dict.fromkeys((1, 2, 3), 1)
        self.inboxes: dict[int, list[Message]] = {1: [], 2: [], 3: []}
        self.leader = self.nodes[1]
        self.leader.campaign()
        self.settle()

    def settle(self) -> None:
        """Run until all nodes are idle. As in a driver, only nodes with events are processed."""
        touched = {1: self.leader}
        while touched:
            node_id, node = touched.popitem()
            storage = self.storages[node_id]
            while (work := node.work()) is not None:
                for message in _done(node, storage, work):
                    self.inboxes[message.to].append(message)
                if work.committed_entries:
                    self.applied[node_id] = work.committed_entries[-1].index
            if not touched:
                self._deliver(touched)

    def _deliver(self, touched: dict[int, RaftNode]) -> None:
        for node_id, inbox in self.inboxes.items():
            if inbox:
                node = touched[node_id] = self.nodes[node_id]
                for message in inbox:
                    node.step(message)
                inbox.clear()

    def compact(self) -> None:
        """Compact the logs, which bounds the memory of a long run."""
        for storage in self.storages.values():
            storage.compact(storage.last_index())


def _rate(work: Callable[[], int], seconds: float, rounds: int = 5) -> float:
    """Rate of a function's work per second: the median of several rounds."""
    rates = []
    for _ in range(rounds):
        gc.collect()
        done, began = 0, time.process_time()
        while (elapsed := time.process_time() - began) < seconds:
            done += work()
        rates.append(done / elapsed)
    return statistics.median(rates)


def one_in_flight(seconds: float) -> float:
    """Proposals per second, each applied by all three nodes before the next."""
    group = Group()

    def work() -> int:
        for _ in range(200):
            group.leader.propose(PAYLOAD)
            group.settle()
        group.compact()
        return 200

    return _rate(work, seconds)


def batches(seconds: float) -> float:
    """Entries per second in proposals of a hundred, each applied by all three nodes before the
    next.
    """
    group = Group()
    payloads = [PAYLOAD] * 100

    def work() -> int:
        for _ in range(10):
            group.leader.propose(*payloads)
            group.settle()
        group.compact()
        return 1000

    return _rate(work, seconds)


def follower_append(seconds: float) -> float:
    """Microseconds for a follower's append of a hundred entries: step, storing, applying."""
    storage = _storage()
    node = RaftNode(2, storage, CONFIG, Random(1), applied=1)
    index = 1

    def work() -> int:
        nonlocal index
        entries = [Entry(2, index + at, data=PAYLOAD) for at in range(1, 101)]
        message = Message(MessageType.APP, 2, 1, 2, 1 if index == 1 else 2, index, entries, commit=index)
        index += 100
        began = time.process_time()
        node.step(message)
        while (todo := node.work()) is not None:
            _done(node, storage, todo)
        times.append(time.process_time() - began)
        if index % 10_000 == 1:
            storage.compact(storage.last_index() - 100)  # committed and applied entries
        return 1

    times: list[float] = []
    _rate(work, seconds, rounds=1)
    return statistics.median(times) * 1e6


def bytes_at_rest(groups: int = 2000) -> float:
    """Bytes of one replica of an idle group of three voters after an election, with its storage."""
    random = Random(1)
    kept: list[tuple[RaftNode, MemoryStorage]] = []
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(groups):
        storage = _storage()
        node = RaftNode(1, storage, CONFIG, random, applied=1)
        _elect(node, storage)
        storage.compact(storage.last_index())
        kept.append((node, storage))
    gc.collect()
    size = (tracemalloc.get_traced_memory()[0] - before) / groups
    tracemalloc.stop()
    return size


def _elect(node: RaftNode, storage: MemoryStorage) -> None:
    """Elect the node with the votes of the other two."""
    node.campaign()
    answers = {MessageType.PRE_VOTE: MessageType.PRE_VOTE_RESP, MessageType.VOTE: MessageType.VOTE_RESP}
    while (work := node.work()) is not None:
        for message in _done(node, storage, work):
            if message.type in answers:
                node.step(Message(answers[message.type], 1, message.to, message.term))
            elif message.type is MessageType.APP:
                index = message.index + len(message.entries)
                node.step(Message(MessageType.APP_RESP, 1, message.to, message.term, index=index))


# --- pysyncobj ------------------------------------------------------------------------------------


def pysyncobj_rate(seconds: float, in_flight: int) -> float | None:
    """Replicated calls per second of pysyncobj; None if not installed."""
    try:
        from pysyncobj import SyncObj, SyncObjConf, replicated  # type: ignore[import-not-found]  # not a dependency
    except ImportError:
        return None

    class Counter(SyncObj):  # type: ignore[misc]  # it has no types
        @replicated  # type: ignore[untyped-decorator]
        def take(self, payload: bytes) -> int:
            return len(payload)

    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    nodes = [
        Counter(
            address,
            [other for other in addresses if other != address],
            SyncObjConf(autoTick=False, appendEntriesPeriod=1e-4),
        )
        for address in addresses
    ]

    def tick() -> None:
        for node in nodes:
            node.doTick(0.0)

    deadline = time.monotonic() + 30
    while not all(node.isReady() for node in nodes):
        tick()
        if time.monotonic() > deadline:
            raise TimeoutError("pysyncobj elects no leader")
    leader = next(node for node in nodes if node._isLeader())

    def work() -> int:
        done = 0

        def finished(*_: object) -> None:
            nonlocal done
            done += 1

        for _ in range(in_flight):
            leader.take(PAYLOAD, callback=finished)
        while done < in_flight:
            tick()
        return in_flight

    rate = _rate(work, seconds, rounds=3)
    for node in nodes:
        node.destroy()
    return rate


def main() -> int:
    """Measures everything and prints it."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m bench.raft", description="How fast and how small the Raft core is."
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of each round")
    seconds = parser.parse_args().seconds
    rows = [
        ("proposals/s, one in flight", one_in_flight(seconds), 12_000, False),
        ("entries/s, batches of 100", batches(seconds), 300_000, False),
        ("us for a follower to take 100 entries", follower_append(seconds), 80, True),
        ("bytes of a replica at rest", bytes_at_rest(), 6 * 1024, True),
    ]
    for name, figure, wanted, less in rows:
        met = figure <= wanted if less else figure >= wanted
        print(
            f"{name:42s} {figure:12,.0f}   wanted {'<=' if less else '>='} {wanted:,}{'' if met else '   MISSED'}"
        )
    for in_flight in (1, 100):
        rate = pysyncobj_rate(seconds, in_flight)
        shown = "not installed" if rate is None else f"{rate:12,.0f}"
        print(f"{f'pysyncobj: calls/s, {in_flight} in flight':42s} {shown}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
