"""A running cluster with a topic and producers, for tests of what clients see when something
fails.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.integration.clusters import Cluster, ClusterNode
from tests.integration.ledger import Ledger
from tests.integration.producers import Failed, Producers, audit


class LoadedCluster:
    """A cluster with a new topic, and the ledger of everything that was produced to it.

    Args:
        cluster: the running cluster.
        topic: name of the topic.
        partitions: number of its partitions.
    """

    def __init__(self, cluster: Cluster, topic: str = "loaded", partitions: int = 3) -> None:
        self.cluster = cluster
        self.ledger = Ledger()
        self.topic = topic
        self._partitions = partitions
        cluster.create_topic(topic, partitions)

    def leader(self) -> ClusterNode:
        """Leader of the first partition."""
        return self.cluster.leader(f"{self.topic}-0")

    @contextmanager
    def produced(self, nodes: Sequence[ClusterNode] = (), pad_bytes: int = 0) -> Iterator[Producers]:
        """Producers at these nodes, or at all that run. In the end each of them answers, and
        everything is checked at each of them.

        Args:
            pad_bytes: size that is added to each value.
        """
        nodes = nodes or self.cluster.running
        with Producers(nodes, self.ledger, self.topic, pad_bytes=pad_bytes) as producers:
            producers.wait_answers(nodes)
            yield producers
            producers.wait_answers(nodes)
        gaps = {node: round(seconds, 2) for node, seconds in sorted(producers.longest_gap_s.items())}
        print(f"longest seconds without an answer, by node: {gaps}", file=sys.stderr)
        self.audit(nodes)

    def audit(self, nodes: Sequence[ClusterNode] = ()) -> None:
        """Check everything at these nodes, or at all that run."""
        audit(nodes or self.cluster.running, self.ledger, self.topic, self._partitions)


def failed_at(producers: Producers, node: ClusterNode) -> list[Failed]:
    """Failed calls at this node."""
    return [failed for failed in producers.failed if failed.node == node.number]


def failed_elsewhere(producers: Producers, node: ClusterNode) -> list[Failed]:
    """Failed calls at other nodes than this one."""
    return [failed for failed in producers.failed if failed.node != node.number]
