"""Names of topics by their ids, which newer requests have instead."""

from pixy.errors import PixyError
from pixy.proxy import Proxy


class TopicIds:
    """The topics of one cluster by id.

    Args:
        proxy: of the cluster.
    """

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        # Names that a topic with that id has had, checked at each use.
        self._names: dict[bytes, str] = {}

    async def find(self, topic_id: bytes) -> str:
        """The name of a topic, "" if there is none with this id."""
        try:
            if not self._is_of(topic_id, self._names.get(topic_id, "")):
                topics = await self._proxy.list_topics()
                self._names = {topic.topic_id: topic.name for topic in topics}
        except PixyError:
            return ""
        return self._names.get(topic_id, "")

    def _is_of(self, topic_id: bytes, name: str) -> bool:
        known = self._proxy.log.known(name) if name else None
        return known is not None and known.topic_id == topic_id
