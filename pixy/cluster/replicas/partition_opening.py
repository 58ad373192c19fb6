"""The opening of new partitions' raft groups, and the elections of their first leaders.

Nobody asks a group without a leader for anything, so each node opens the groups of new partitions
that it has replicas of, and its preferred ones campaign. Thousands at once would keep every node
busy for seconds, and other groups would lose their leaders meanwhile. So a node begins few
elections at a time, in short steps with pauses in between, and the next ones when every replica has
the first entry of these: a slow node slows all of them down. Pauses grow with the delay of the
event loop. Topics take turns: a small one does not wait for a large one.

A replica whose leader campaigns before its own step is opened by the candidate's message.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable

from pixy.aio.futures import resolve
from pixy.multiraft import RaftGroup
from pixy.raft import NONE

_STEP_S = 0.02
_PAUSE_PER_DELAY = 4
_ELECTIONS_PER_STEP = 2
_OPENED_PER_STEP = 20
_ELECTIONS_MAX = 4
"""Elections under way: further ones wait."""
_ELECTION_S = 0.5
"""Time after which an election is not waited for: too few nodes may be up."""


class _Unopened:
    """A topic with partitions that are not opened: their number, and the next one."""

    __slots__ = ("count", "next")

    def __init__(self, begin: int, count: int) -> None:
        self.next = begin
        self.count = count


class PartitionOpening:
    """Opens partitions of one node.

    Args:
        open_group: opens the raft group of a topic's partition; None if it has no peers here.
        is_preferred: true of a partition that this node is to lead.
        elect: campaigns in a group without a leader, until there is one.
    """

    def __init__(
        self,
        open_group: Callable[[str, int], RaftGroup | None],
        is_preferred: Callable[[str, int], bool],
        elect: Callable[[RaftGroup], None],
    ) -> None:
        self._open_group = open_group
        self._is_preferred = is_preferred
        self._elect = elect
        self._loop = asyncio.get_running_loop()
        # Topics by name, in the order of their turns.
        self._topics: dict[str, _Unopened] = {}
        self._turns: deque[str] = deque()
        # Opened groups that have had no leader yet, with their topics, and how many of each topic.
        self._leaderless: dict[RaftGroup, str] = {}
        self._by_topic: Counter[str] = Counter()
        # Elections of this node that are under way, with the loop times of their begin.
        self._elections: dict[RaftGroup, float] = {}
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        self._stopped = False

    def add(self, topic: str, begin: int, count: int) -> None:
        """Open the partitions of a topic from `begin` to `count`, some at once."""
        if self._stopped:
            return
        known = self._topics.get(topic)
        if known is not None:
            known.count = count
        elif begin < count:
            self._topics[topic] = _Unopened(begin, count)
            self._turns.append(topic)
        if self._timer is None:
            self._due_at = self._loop.time()
            self._step()

    def drop(self, topic: str) -> None:
        """Forget a deleted topic."""
        if self._topics.pop(topic, None) is not None:
            self._turns.remove(topic)
        if self._by_topic.pop(topic, 0):
            for group in [group for group, of in self._leaderless.items() if of == topic]:
                del self._leaderless[group]
        for group in [group for group in self._elections if group.removed is not None]:
            del self._elections[group]
        self._maybe_wake(topic)

    def stop(self) -> None:
        """Open nothing more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self._topics, self._turns = {}, deque()
        self._leaderless, self._by_topic = {}, Counter()
        for topic in list(self._waiting):
            self._maybe_wake(topic)

    def leader_changed(self, group: RaftGroup) -> None:
        """A group has another leader, or none."""
        if self._leaderless and group.leader != NONE and group in self._leaderless:
            topic = self._leaderless.pop(group)
            self._by_topic[topic] -= 1
            if not self._by_topic[topic]:
                del self._by_topic[topic]
                self._maybe_wake(topic)

    async def wait_led(self, topic: str, timeout_s: float) -> None:
        """Wait until the partitions of a topic that this node has replicas of have had a leader,
        or the time is over.
        """
        if not self._is_pending(topic):
            return
        led: asyncio.Future[None] = self._loop.create_future()
        self._waiting.setdefault(topic, []).append(led)
        await asyncio.wait([led], timeout=timeout_s)
        led.cancel()

    def _is_pending(self, topic: str) -> bool:
        return topic in self._topics or topic in self._by_topic

    def _maybe_wake(self, topic: str) -> None:
        if not self._is_pending(topic):
            for led in self._waiting.pop(topic, ()):
                resolve(led, None)

    def _step(self) -> None:
        self._timer = None
        now = self._loop.time()
        for group, begun in list(self._elections.items()):
            if now - begun >= _ELECTION_S or _is_over(group):
                del self._elections[group]
        elections = min(_ELECTIONS_PER_STEP, _ELECTIONS_MAX - len(self._elections))
        opened = 0
        while self._turns and elections > 0 and opened < _OPENED_PER_STEP:
            elections -= self._open_next(now)
            opened += 1
        if self._turns:
            pause = max(_STEP_S, _PAUSE_PER_DELAY * (now - self._due_at))
            self._due_at = self._loop.time() + pause
            self._timer = self._loop.call_at(self._due_at, self._step)

    def _open_next(self, now: float) -> int:
        """Open the next partition of the topic whose turn it is; returns the elections begun."""
        name = self._turns.popleft()
        topic = self._topics[name]
        number = topic.next
        topic.next += 1
        if topic.next < topic.count:
            self._turns.append(name)
        else:
            del self._topics[name]
        group = self._open_group(name, number)
        begun = 0
        if group is not None and group.leader == NONE:
            self._leaderless[group] = name
            self._by_topic[name] += 1
            if self._is_preferred(name, number):
                self._elections[group] = now
                self._elect(group)
                begun = 1
        self._maybe_wake(name)
        return begun


def _is_over(group: RaftGroup) -> bool:
    """True if a group has a leader, and if that is this node, all replicas have its first entry."""
    if group.leader == NONE:
        return False
    return not group.leads or _has_followers(group)


def _has_followers(group: RaftGroup) -> bool:
    assert group.node is not None
    return all(progress.match for progress in group.node.raft.tracker.progress.values())
