"""Entry of a node into its data directory and its cluster: the start before any record is read.

locked       nobody else uses the directory
named        it has the secret by which its cluster knows it
a member     a directory that belongs to no cluster waits here, until it has founded or joined one
read         identity and journal
"""

from collections.abc import Callable
from functools import partial

from pixy.cluster.log import EnteredDirectory, NodeOptions, RecoveredNode, enter_directory, read_directory
from pixy.cluster.peering import NodePeers
from pixy.proto.state_pb2 import NodeIdentity
from pixy.storage import Disk, File, Worker, run_on, write_identity


class Bootstrap:
    """The data directory of one node, from its lock to its release.

    Args:
        disk: that it is on.
        options: of the node.
        make_peers: makes the peers of a node with this identity; None if it never has any.
        on_wait: called when the node waits for others.

    Attributes:
        files: the thread for work on files.
    """

    def __init__(
        self,
        disk: Disk,
        options: NodeOptions,
        make_peers: Callable[[NodeIdentity], NodePeers] | None,
        on_wait: Callable[[], None],
    ) -> None:
        self.files: Worker = options.worker("pixy-files", background=True)
        self._disk = disk
        self._directory = options.directory
        self._random_bytes = options.random_bytes
        self._make_peers = make_peers
        self._on_wait = on_wait
        self._joins = make_peers is not None and bool(options.cluster.join)
        self._lock: File | None = None

    async def recover(self) -> RecoveredNode:
        """Read the data directory, after a search for the cluster if it is new and there is a join
        list.

        Raises:
            DataDirectoryError, CorruptData: as `enter_directory` and `read_directory`.
        """
        disk, directory, files = self._disk, self._directory, self.files
        lock, identity = await run_on(
            files, lambda: enter_directory(disk, directory, self._random_bytes, joins=self._joins)
        )
        self._lock = lock
        if self._make_peers is not None:
            identity = await self._with_cluster(identity, self._make_peers)
        return await run_on(files, lambda: read_directory(disk, directory, EnteredDirectory(lock, identity)))

    async def _with_cluster(
        self, identity: NodeIdentity, make_peers: Callable[[NodeIdentity], NodePeers]
    ) -> NodeIdentity:
        """The durable identity of a node with a secret and a cluster."""
        if not identity.secret:
            identity.secret = self._random_bytes(16)
            await self._write(identity)
        peers = make_peers(identity)
        if not identity.cluster_id:
            self._on_wait()
            identity = await peers.find_cluster(identity.secret, self._random_bytes(16))
            await self._write(identity)
        return identity

    async def _write(self, identity: NodeIdentity) -> None:
        await run_on(self.files, partial(write_identity, self._disk, self._directory, identity))

    def release(self) -> None:
        """End the use of the directory."""
        self.files.stop()
        if self._lock is not None:
            self._lock.close()
            self._lock = None
