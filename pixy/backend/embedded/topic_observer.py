"""Applies changes of topics, nodes and consumer groups to descriptions and to members."""

from collections.abc import Callable, Collection

from pixy.backend.embedded.local_members import LocalMembers
from pixy.backend.embedded.topic_descriptions import TopicDescriptions
from pixy.cluster import NodeObserver


class TopicObserver(NodeObserver):
    """Observer of one node.

    Args:
        members: of consumer groups in this process.
        descriptions: the descriptions of topics.
        on_readiness: called when the node becomes ready or unready.
    """

    def __init__(
        self, members: LocalMembers, descriptions: TopicDescriptions, on_readiness: Callable[[], None]
    ) -> None:
        self._members = members
        self._descriptions = descriptions
        self._on_readiness = on_readiness

    def topic_changed(self, name: str) -> None:
        self._descriptions.changed(name)
        self._members.topic_changed(name)

    def topic_deleted(self, name: str) -> None:
        self._descriptions.deleted(name)
        self._members.topic_changed(name)

    def leaders_changed(self, topics: Collection[str]) -> None:
        for name in topics:
            self._descriptions.changed(name)

    def nodes_changed(self) -> None:
        self._descriptions.all_changed()
        self._members.nodes_changed()

    def readiness_changed(self) -> None:
        self._on_readiness()

    def groups_changed(self, names: Collection[str]) -> None:
        self._members.groups_changed(names)

    def groups_replaced(self) -> None:
        self._members.groups_replaced()
