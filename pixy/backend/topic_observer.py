"""Applies changes of topics and nodes to descriptions and consumer groups."""

from collections import deque
from collections.abc import Callable, Collection, Iterator

from pixy.backend.topic_descriptions import TopicDescriptions
from pixy.cluster import Coordinator, NodeObserver
from pixy.steps import run_in_steps

__all__ = ["TopicObserver"]


class TopicObserver(NodeObserver):
    """Observer of one node.

    Args:
        coordinator: the members of consumer groups.
        descriptions: the descriptions of topics.
        has_members: tells whether a consumer group has members, here or on another node.
        on_readiness: called when the node becomes ready or unready.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        descriptions: TopicDescriptions,
        has_members: Callable[[str], bool],
        on_readiness: Callable[[], None],
    ) -> None:
        self._coordinator = coordinator
        self._descriptions = descriptions
        self._has_members = has_members
        self._on_readiness = on_readiness
        # Pending reassignments of consumer groups, oldest first.
        self._assignments: deque[Iterator[None]] = deque()

    def topic_changed(self, name: str) -> None:
        self._descriptions.changed(name)
        self._assign(self._coordinator.topic_changed(name))

    def topic_deleted(self, name: str) -> None:
        self._descriptions.deleted(name)
        self._assign(self._coordinator.topic_deleted(name))

    def leaders_changed(self, topics: Collection[str]) -> None:
        for name in topics:
            self._descriptions.changed(name)

    def nodes_changed(self) -> None:
        self._descriptions.all_changed()

    def readiness_changed(self) -> None:
        self._on_readiness()

    def _assign(self, steps: Iterator[None]) -> None:
        """Reassign consumer groups one per iteration: there may be thousands."""
        self._assignments.append(steps)
        if len(self._assignments) == 1:
            run_in_steps(self._told())

    def _told(self) -> Iterator[None]:
        while self._assignments:
            yield from self._assignments[0]
            self._assignments.popleft()

    def has_members(self, consumer_group: str) -> bool:
        return self._has_members(consumer_group)
