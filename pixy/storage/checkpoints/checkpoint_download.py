"""A checkpoint of another node on its way: `<end offset>-<epoch>.checkpoint.part`.

The file has its final size from the start, so a full disk is found before anything is fetched.
What has arrived is in it from the beginning on, and is not synced: after a restart the download
goes on behind the batches that are whole and valid. A complete file is verified, and then taken
over (`CheckpointStore.adopt`).

Two nodes may write a checkpoint of one id in different bytes: with other timestamps, and with the
records in another order. A download that goes on from another node's file, where the sizes are
equal, mixes them. Their records are the same, as their states are; so a mixture with valid batches
and different keys has each record once, and any other counts as damaged.
"""

from contextlib import suppress
from typing import NamedTuple

from pixy.errors import CorruptData
from pixy.storage.checkpoints.checkpoint import (
    PART,
    Checkpoint,
    CheckpointId,
    CheckpointStore,
    decode_checkpoint,
    intact_bytes,
)
from pixy.storage.disk import CHECKPOINT_BYTES_MAX, Buffer, read_whole


class DownloadedBytes(NamedTuple):
    """State of a download: `size` is that of the whole checkpoint, 0 while unknown; the bytes
    before `position` are there.
    """

    size: int
    position: int


class CheckpointDownload:
    """The file of one download. All methods block, and run on the worker of the store.

    Args:
        store: checkpoints of the state group.
        id: the checkpoint.
    """

    def __init__(self, store: CheckpointStore, id: CheckpointId) -> None:
        self._disk = store.disk
        self._directory = store.directory
        self._id = id
        self._path = store.directory / id.part_name

    def resume(self) -> DownloadedBytes:
        """Bytes that an earlier attempt has left; parts of other checkpoints are removed."""
        self._disk.make_directory(self._directory)
        names = self._disk.names(self._directory)
        for name in names:
            if name.endswith(PART) and name != self._path.name:
                self._disk.unlink(self._directory / name)
        if self._path.name not in names:
            return DownloadedBytes(0, 0)
        try:
            data = self._content()
        except CorruptData:
            return DownloadedBytes(0, 0)
        return DownloadedBytes(len(data), intact_bytes(data, self._id.epoch))

    def write(self, data: Buffer, position: int, size: int) -> None:
        """Add what has arrived; at position 0 the file is begun anew.

        Args:
            size: bytes of the whole checkpoint.

        Raises:
            CorruptData: the file is gone, or another one.
            OSError: the file is removed, to return its space to a full disk.
        """
        try:
            file = self._disk.open(self._path, create=not position)
        except FileNotFoundError:
            raise CorruptData(f"{self._path} is gone") from None
        try:
            if not position:
                file.truncate(0)
                file.allocate(size)
            elif file.size() != size:
                raise CorruptData(f"{self._path} has {file.size()} bytes, expected {size}")
            file.write_at([data], position)
        except OSError:
            with suppress(OSError):
                self._disk.unlink(self._path)
            raise
        finally:
            file.close()

    def read(self) -> Checkpoint:
        """The complete checkpoint, verified.

        Raises:
            CorruptData: it is damaged, or gone.
            DataDirectoryError: a newer release wrote it.
        """
        records = decode_checkpoint(self._content(), self._id, self._path)
        if len({key for key, _ in records}) < len(records):
            raise CorruptData(f"{self._path} has two records with one key")
        return Checkpoint(self._id, records)

    def _content(self) -> bytes:
        try:
            return read_whole(self._disk, self._path, CHECKPOINT_BYTES_MAX)
        except OSError as error:
            # It can be fetched again, so this is no fault of the node.
            raise CorruptData(f"{self._path} cannot be read: {error.strerror}") from error

    def remove(self) -> None:
        """Remove the file."""
        with suppress(FileNotFoundError):
            self._disk.unlink(self._path)
