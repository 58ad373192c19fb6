"""Counts of durable records by topic."""

_TOPICS_MAX = 10_000
"""Topics that are counted apart: clients make and delete any number of them."""


class ProducedCounts:
    """Records that were written, and their bytes, since the start.

    Attributes:
        by_topic: the two counts of each topic.
        beyond: those of all further topics, together.
    """

    def __init__(self) -> None:
        self.by_topic: dict[str, list[int]] = {}
        self.beyond = [0, 0]

    def add(self, topic: str, records: int, size: int) -> None:
        """Count records of a topic."""
        counts = self.by_topic.get(topic)
        if counts is None:
            if len(self.by_topic) < _TOPICS_MAX:
                counts = self.by_topic[topic] = [0, 0]
            else:
                counts = self.beyond
        counts[0] += records
        counts[1] += size

    def forget(self, topic: str) -> None:
        """A topic was deleted."""
        for at, count in enumerate(self.by_topic.pop(topic, ())):
            self.beyond[at] += count
