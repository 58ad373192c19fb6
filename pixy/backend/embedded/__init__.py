"""The backend of a node's own cluster: partitions here or at other nodes, groups, staged writes.

It finds who has a partition and asks there; what is stored and agreed on is in `pixy.cluster`.
"""

from pixy.backend.embedded.embedded import EmbeddedBackend

__all__ = [
    "EmbeddedBackend",
]
