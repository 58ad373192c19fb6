"""Copies of topics in another cluster, continuous and exactly once.

It reads and writes both clusters as any client does, through their daemons, and keeps nothing of
its own: what is copied is known from the target alone. So it may end at any moment, and begin again
anywhere.
"""

from pixy.mirror.cluster_client import ClusterClient, OpenChannel
from pixy.mirror.events import Event
from pixy.mirror.mirror import Mirror, MirrorOptions

__all__ = ["ClusterClient", "Event", "Mirror", "MirrorOptions", "OpenChannel"]
