"""Placement of replicas: the nodes of each partition of a topic.

Pure and deterministic: every replica of `metadata` decides the same when it applies the command
that adds the partitions. Each partition in turn gets

    its first replica    on the node with the fewest first replicas of the topic, then of all
                         topics, then with the fewest replicas; never that of the partition before
    its other replicas   on the nodes with the fewest replicas

and ties go to the lowest id. Nodes that cannot be reached, as far as the proposer of the command
knows, get a replica only where the others are too few for all replicas, never the first one, and
never so many that a partition has no majority without them: it has fewer replicas then.

The first replica is the preferred leader. So the leaders of each
topic are even, and in a cluster whose nodes came before its topics all leaders are, and all
replicas if the topics have equally many. A node that came later gets its share of leaders of each
new topic, not all of them until it has caught up: a topic is the unit of load. It gets the other
replicas first.

The road not taken: racks. Evenness and spreading over racks contradict each other where racks have
different numbers of nodes.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import chain

REPLICATION = 3
"""Replicas of a topic that does not say how many."""

ReplicaSets = tuple[tuple[int, ...], ...]
"""Nodes of the replicas of each partition, by its number; the first one is preferred as leader."""


_DIGITS_MAX = 9
"""Nobody has more nodes; and Python refuses thousands of digits."""


def replication_of(config: Mapping[str, str]) -> int:
    """Number of replicas that a topic with these options wants."""
    value = config.get("replication", "")
    number = int(value) if value.isdecimal() and len(value) <= _DIGITS_MAX else 0
    return number or REPLICATION


class ReplicaCounts:
    """Number of replicas on each node, over all topics.

    Attributes:
        replicas: by node.
        leaders: those of them that are the first one of their partition.
    """

    def __init__(self) -> None:
        self.replicas: Counter[int] = Counter()
        self.leaders: Counter[int] = Counter()

    def add(self, placed: ReplicaSets) -> None:
        """Count the replicas of new partitions."""
        self.replicas.update(chain.from_iterable(placed))
        self.leaders.update([replicas[0] for replicas in placed])

    def remove(self, placed: ReplicaSets) -> None:
        """Count the replicas of partitions that are gone no longer."""
        self.replicas.subtract(chain.from_iterable(placed))
        self.leaders.subtract([replicas[0] for replicas in placed])


def place(
    count: int,
    replication: int,
    nodes: Sequence[int],
    counts: ReplicaCounts,
    present: ReplicaSets = (),
    unreachable: Collection[int] = (),
) -> ReplicaSets:
    """Nodes for new partitions of a topic.

    Args:
        count: number of new partitions.
        replication: replicas of each; as many as there are nodes, if there are fewer.
        nodes: nodes that may get replicas, ascending, at least one.
        counts: replicas of all topics, this one included.
        present: replicas of the topic's partitions before the new ones.
        unreachable: nodes that cannot be reached. If that leaves one of `nodes`, all count alike:
            whoever reaches nobody adds no partition, so it reaches somebody by now.
    """
    reached = [node for node in nodes if node not in unreachable]
    if len(reached) < 2:
        reached = [*nodes]
    size = min(replication, len(nodes), 2 * len(reached) - 1)
    rest = [node for node in nodes if node not in reached] if size > len(reached) else []
    placing = _Placing(size, reached, rest, counts, present)
    placed: list[tuple[int, ...]] = []
    before: list[object] = []
    round_size = len(reached) * max(1, len(rest))
    while len(placed) < count:
        state = placing.state()
        if state == before:
            # A decision depends on nothing else: all further rounds are like the last one.
            placed += placed[-round_size:] * ((count - len(placed)) // round_size + 1)
            break
        before = state
        placed += [placing.next() for _ in range(round_size)]
    return tuple(placed[:count])


class _Placing:
    """Partitions of one topic, one after the other: each has its first replica on a node of
    `reached`, its others on further ones of them, and if these do not suffice on nodes of `rest`.
    """

    def __init__(
        self,
        size: int,
        reached: Sequence[int],
        rest: Sequence[int],
        counts: ReplicaCounts,
        present: ReplicaSets,
    ) -> None:
        self._size = size
        self._reached = reached
        self._rest = rest
        self._replicas = {node: counts.replicas[node] for node in (*reached, *rest)}
        self._leaders = {node: counts.leaders[node] for node in reached}
        led = Counter([replicas[0] for replicas in present])
        self._led_here = {node: led[node] for node in reached}
        self._last = present[-1][0] if present else 0

    def state(self) -> list[object]:
        """The counts relative to each other, and the last first replica."""
        compared = (
            (self._replicas, self._reached),
            (self._replicas, self._rest),
            (self._leaders, self._reached),
            (self._led_here, self._reached),
        )
        found: list[object] = [self._last]
        for counts, nodes in compared:
            low = min([counts[node] for node in nodes], default=0)
            found.append([counts[node] - low for node in nodes])
        return found

    def next(self) -> tuple[int, ...]:
        """Nodes of the next partition."""
        replicas, leaders, led_here, last = self._replicas, self._leaders, self._led_here, self._last
        first = min(
            self._reached,
            key=lambda node: (node == last, led_here[node], leaders[node], replicas[node], node),
        )
        others = sorted(
            [node for node in self._reached if node != first], key=lambda node: (replicas[node], node)
        )
        if self._rest:
            others += sorted(self._rest, key=lambda node: (replicas[node], node))
        chosen = (first, *others[: self._size - 1])
        for node in chosen:
            replicas[node] += 1
        leaders[first] += 1
        led_here[first] += 1
        self._last = first
        return chosen
