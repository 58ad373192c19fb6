"""The manifest of a backup: written last, it makes a backup of objects. Pure.

JSON, `{"checksum": ..., "backup": {...}}`. The checksum is the CRC-32C of the rest, without spaces
and with sorted keys. What cannot be decoded is no backup: one that was broken off, or not by pixy.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pixy.backup.object_names import RangeName, partition_folder, range_name, size_and_crc
from pixy.errors import CorruptData
from pixy.records import crc32c

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class BackedUpPartition:
    """Records of a partition.

    Attributes:
        begin: its first offset.
        end: the offset behind its last record.
        objects: which have them; they may have further ones, and overlap.
    """

    partition: int
    begin: int
    end: int
    objects: tuple[RangeName, ...]


@dataclass(frozen=True, slots=True)
class BackedUpTopic:
    """A topic; `config` are its own options, `partitions` ascend from 0 on."""

    topic: str
    topic_id: bytes
    config: Mapping[str, str]
    partitions: tuple[BackedUpPartition, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """A backup.

    Attributes:
        id: its id.
        cluster_id: the cluster that it is of.
        version, feature_level: of the cluster, see `ExportStateResponse`.
        time_ms: everything that was acknowledged before is in it; milliseconds since the Unix
            epoch.
        state: path of the object with the state beside the records, offsets of groups included.
        topics: sorted by name.
    """

    id: str
    cluster_id: bytes
    version: str
    feature_level: int
    time_ms: int
    state: str
    topics: tuple[BackedUpTopic, ...]

    def paths(self) -> Iterator[str]:
        """Paths of all objects."""
        yield self.state
        for topic in self.topics:
            for each in topic.partitions:
                folder = partition_folder(self.cluster_id, topic.topic_id, each.partition)
                for name in each.objects:
                    yield f"{folder}/{name}"

    @property
    def records(self) -> int:
        """Number of records."""
        return sum(each.end - each.begin for topic in self.topics for each in topic.partitions)

    @property
    def size(self) -> int:
        """Bytes of all objects; other backups may have them, too."""
        return sum(size_and_crc(path)[0] for path in self.paths())


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of a manifest."""
    body = {
        "format": _FORMAT,
        "id": manifest.id,
        "cluster_id": manifest.cluster_id.hex(),
        "version": manifest.version,
        "feature_level": manifest.feature_level,
        "time_ms": manifest.time_ms,
        "state": manifest.state,
        "topics": [
            {
                "topic": topic.topic,
                "topic_id": topic.topic_id.hex(),
                "config": dict(topic.config),
                "partitions": [
                    {
                        "partition": each.partition,
                        "begin": each.begin,
                        "end": each.end,
                        "objects": list(map(str, each.objects)),
                    }
                    for each in topic.partitions
                ],
            }
            for topic in manifest.topics
        ],
    }
    return json.dumps({"checksum": f"{_checksum(body):08x}", "backup": body}).encode()


def decode_manifest(data: bytes) -> Manifest:
    """The manifest in some bytes.

    Raises:
        CorruptData: there is none, or a newer release wrote it.
    """
    try:
        whole = json.loads(data)
        body, checksum = whole["backup"], int(whole["checksum"], 16)
        if _checksum(body) != checksum:
            raise ValueError(f"its checksum is {_checksum(body):08x}, expected {checksum:08x}")
        if body["format"] > _FORMAT:
            raise ValueError(f"it has format {body['format']}, this release reads up to {_FORMAT}")
        topics = tuple(map(_topic, body["topics"]))
        size_and_crc(body["state"])
        return Manifest(
            body["id"],
            bytes.fromhex(body["cluster_id"]),
            body["version"],
            body["feature_level"],
            body["time_ms"],
            body["state"],
            topics,
        )
    except (ValueError, LookupError, TypeError) as error:
        raise CorruptData(f"no manifest of a backup: {error}") from error


def _topic(body: Mapping[str, Any]) -> BackedUpTopic:
    partitions = tuple(
        BackedUpPartition(each["partition"], each["begin"], each["end"], tuple(map(_range, each["objects"])))
        for each in body["partitions"]
    )
    if [each.partition for each in partitions] != list(range(len(partitions))):
        raise ValueError(f"topic {body['topic']} has not each of its partitions")
    return BackedUpTopic(body["topic"], bytes.fromhex(body["topic_id"]), body["config"], partitions)


def _range(text: str) -> RangeName:
    name = range_name(text)
    if name is None:
        raise ValueError(f"{text!r} is no name of an object")
    return name


def _checksum(body: Any) -> int:
    checksum: int = crc32c(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())
    return checksum
