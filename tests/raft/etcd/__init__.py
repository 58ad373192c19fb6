"""etcd's interface of a Raft node, for its transcripts, over the one that pixy's driver uses.

`EtcdNode` hands out `Ready`, to be acknowledged by `advance` or by messages of storage threads, and
does everything by `RaftNode.work`, `stored`, `applied`, `append_payload` and `own_stored`.
"""

from tests.raft.etcd.node import EtcdNode, EtcdOptions
from tests.raft.etcd.ready import Ready, StorageMessage

__all__ = ["EtcdNode", "EtcdOptions", "Ready", "StorageMessage"]
