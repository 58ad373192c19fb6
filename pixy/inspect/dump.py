"""Contents of the files of a data directory, one line per item: the output of `pixy storage dump`.

Files are read one after the other, without a lock, and are not compared with each other, which is
the task of `check_node`. A file that a daemon is writing may appear cut off.

A damaged file ends the output, with a line that gives the reason.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from pixy.cluster import FIRST_GROUPS_GROUP, METADATA_GROUP, SINKS_GROUP
from pixy.errors import CorruptData, DataDirectoryError
from pixy.multiraft import FIRST_PARTITION_GROUP, split_checkpoint
from pixy.plain_messages import plain
from pixy.proto.raft_pb2 import ConfChange, ConfChangeV2
from pixy.proto.state_pb2 import (
    AppliedPositions,
    ClusterRecord,
    GroupRecord,
    GroupsCommand,
    HardState,
    MetadataCommand,
    NodeRecord,
    NodeStarts,
    OffsetRecord,
    PartitionCommand,
    PublicationRecord,
    SinkRecord,
    SinksCommand,
    SinksRecord,
    StagedPiece,
    TopicRecord,
)
from pixy.records import COMPRESSION, BatchHeader, batch_bytes, check_batch, read_header, read_records
from pixy.staging import STAGE_FILE, FoundUnit, find_units, is_piece_file, read_piece_header, unit_damage
from pixy.storage import (
    VERSION_WITH_OFFSETS,
    Disk,
    EntryType,
    File,
    JournalRecord,
    RecordKind,
    batches_of,
    find_later_flush,
    first_flush_number,
    journal_record,
    read_checkpoint,
    read_file_header,
    read_flush,
    read_identity,
    read_partition_identity,
    read_stage_record,
    read_whole,
    scan_batches,
    why_undecodable,
)

_SUFFIXES = (".journal", ".checkpoint", ".log", ".batches", ".pieces")
_IDENTITIES = ("identity", STAGE_FILE)
_HEADER_BYTES = 64
_GROUP_KEY = b"group\0"
_NODE_KEY = b"node/"
_CODECS = {number: name for name, number in COMPRESSION.items()}
_MESSAGES: Mapping[EntryType, type[ConfChange | ConfChangeV2 | StagedPiece]] = {
    EntryType.CONF_CHANGE: ConfChange,
    EntryType.CONF_CHANGE_V2: ConfChangeV2,
    EntryType.STAGED_PIECE: StagedPiece,
}


class DumpLine(NamedTuple):
    """One item of a file.

    Attributes:
        what: its kind; `damage` is the last of all.
        fields: numbers, texts, bytes, lists and mappings.
    """

    what: str
    fields: Mapping[str, Any]


def dump(disk: Disk, path: Path, *, records: bool = False) -> Iterator[DumpLine]:
    """Lines for a file, or for all files below a directory, in order. Blocks.

    Args:
        records: True to follow each record batch by its records.

    Raises:
        DataDirectoryError: the path does not exist, cannot be read, or has no known file.
    """
    files = _files(path)
    if not files:
        raise DataDirectoryError(
            f"{path} is nothing that can be shown: a journal, a segment, a checkpoint, an identity, or a directory of them"
        )
    for file in files:
        yield DumpLine("file", {"path": str(file)})
        try:
            yield from _dump_file(disk, file, records)
        except (CorruptData, DataDirectoryError, DecodeError, UnicodeDecodeError) as error:
            yield DumpLine("damage", {"path": str(file), "reason": str(error).removeprefix(f"{file} ")})
            return
        except OSError as error:
            raise DataDirectoryError(f"{file} cannot be read: {error.strerror}") from error


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise DataDirectoryError(f"{path} does not exist")
    if not path.is_dir():
        return [path] if _is_known(path) else []
    return sorted(file for file in path.rglob("*") if _is_known(file) and not file.is_dir())


def _is_known(path: Path) -> bool:
    return path.name in _IDENTITIES or path.suffix in _SUFFIXES


def _dump_file(disk: Disk, path: Path, records: bool) -> Iterator[DumpLine]:
    if path.suffix == ".journal":
        yield from _dump_journal(disk, path, records)
    elif path.suffix == ".checkpoint":
        yield from _dump_checkpoint(disk, path)
    elif path.suffix == ".log":
        yield from _dump_segment(disk, path, records)
    elif path.suffix == ".batches":
        yield from _dump_batches(disk, path, records)
    elif path.suffix == ".pieces":
        yield from _dump_pieces(disk, path, records)
    elif path.name == STAGE_FILE:
        yield DumpLine("stage", plain(read_stage_record(disk, path)))
    else:
        yield from _dump_identity(disk, path)


def _dump_identity(disk: Disk, path: Path) -> Iterator[DumpLine]:
    try:
        yield DumpLine("identity", plain(read_identity(disk, path)))
    except CorruptData:
        yield DumpLine("partition_identity", plain(read_partition_identity(disk, path)))


# --- journal --------------------------------------------------------------------------------------


def _dump_journal(disk: Disk, path: Path, records: bool) -> Iterator[DumpLine]:
    view = memoryview(read_whole(disk, path))
    header = read_file_header(view)
    if isinstance(header, str):
        raise CorruptData(header)
    yield DumpLine(
        "journal",
        {
            "number": header.file_number,
            "version": header.version,
            "cluster": header.cluster_id.hex(),
            "node": header.node_id,
            "bytes": len(view),
        },
    )
    at, number = _HEADER_BYTES, first_flush_number(view)
    number = 1 if number is None else number
    while not isinstance(flush := read_flush(view, at, header, number), str):
        fields = {"number": number, "byte": at, "bytes": flush.end - at, "records": len(flush.records)}
        yield DumpLine("flush", fields)
        for place in flush.records:
            yield from _dump_record(journal_record(view, place, header.version), records)
        at, number = flush.end, number + 1
    if flush:
        later = find_later_flush(view, at, header, number)
        follows = "no later flush follows" if later is None else f"a later flush follows at byte {later}"
        raise CorruptData(f"corrupt at byte {at}: {flush}; {follows}")


def _dump_record(record: JournalRecord, records: bool) -> Iterator[DumpLine]:
    place: dict[str, Any] = {
        "raft_group": record.raft_group,
        "index": record.index,
        "term": record.term,
        "bytes": len(record.payload),
    }
    match record.kind:
        case RecordKind.APPLIED_POSITIONS:
            for position in AppliedPositions.FromString(bytes(record.payload)).positions:
                yield DumpLine("applied_position", plain(position))
        case RecordKind.HARD_STATE | RecordKind.REPLICA_GONE:
            yield DumpLine(record.kind.name.lower(), place | _plain_state(record))
        case RecordKind.LOG_RESET | RecordKind.RELOCATED_LOG_RESET:
            # The state has a term of its own.
            state = {"configuration": _plain_state(record)}
            yield DumpLine(record.kind.name.lower(), place | state)
        case RecordKind.INCARNATION:
            yield DumpLine("incarnation", {"number": record.index})
        case RecordKind.PEER_STARTS:
            yield DumpLine("peer_starts", plain(NodeStarts.FromString(bytes(record.payload))))
        case _:
            fields = _entry(record)
            yield DumpLine(record.kind.name.lower(), place | fields)
            if "undecodable" not in fields:
                yield from _dump_entry_batches(record, records)


def _dump_entry_batches(record: JournalRecord, records: bool) -> Iterator[DumpLine]:
    """Each batch of an entry that has several, by its place in the payload; the records of any."""
    position = 0
    for batch in batches_of(record):
        if record.entry_type is EntryType.RECORD_BATCHES:
            yield from _dump_batch(position, batch, records)
            position += len(batch)
        elif records:
            yield from _dump_records(batch)


def _plain_state(record: JournalRecord) -> dict[str, Any]:
    return plain(HardState.FromString(bytes(record.payload)))


def _entry(record: JournalRecord) -> dict[str, Any]:
    """Fields that only entries have, original or relocated."""
    fields: dict[str, Any] = {}
    if record.version > 1:
        fields["commit"] = record.commit
    if record.proposal is not None:
        fields["proposal"] = record.proposal._asdict()
    fields["type"] = record.entry_type.name.lower()
    payload = memoryview(record.payload)
    undecodable = why_undecodable(record.entry_type, payload)
    if undecodable:
        return fields | {"undecodable": undecodable}
    match record.entry_type:
        case EntryType.COMMAND:
            try:
                fields |= _command(record)
            except DecodeError as error:
                fields["undecodable"] = str(error) or "no message"
        case EntryType.RECORD_BATCH | EntryType.RECORD_BATCHES:
            fields |= _batches(record)
        case EntryType.CONF_CHANGE | EntryType.CONF_CHANGE_V2 | EntryType.STAGED_PIECE:
            fields[fields["type"]] = plain(_MESSAGES[record.entry_type].FromString(bytes(payload)))
    return fields


def _batches(record: JournalRecord) -> Mapping[str, Any]:
    """Fields of an entry with record batches. Offset and epoch are those of the first one."""
    batches = batches_of(record)
    for batch in batches:
        check_batch(batch)
    headers = [read_header(batch) for batch in batches]
    fields: dict[str, Any] = {"records": sum(header.records for header in headers)}
    if record.version >= VERSION_WITH_OFFSETS:
        fields |= {"base_offset": headers[0].base_offset, "epoch": headers[0].leader_epoch}
    if record.entry_type is EntryType.RECORD_BATCHES:
        fields["batches"] = len(batches)
    return fields


def _command(record: JournalRecord) -> Mapping[str, Any]:
    payload = bytes(record.payload)
    if record.raft_group == METADATA_GROUP:
        return plain(MetadataCommand.FromString(payload))
    if record.raft_group == SINKS_GROUP:
        return plain(SinksCommand.FromString(payload))
    if FIRST_GROUPS_GROUP <= record.raft_group < FIRST_PARTITION_GROUP:
        return plain(GroupsCommand.FromString(payload))
    return plain(PartitionCommand.FromString(payload))


# --- record batches -------------------------------------------------------------------------------


def _dump_segment(disk: Disk, path: Path, records: bool) -> Iterator[DumpLine]:
    expected: int | None = int(path.stem) if path.stem.isdecimal() else None
    for position, header, batch in _scan(disk, path):
        if expected is not None and header.base_offset != expected:
            raise CorruptData(
                f"corrupt at byte {position}: a batch with base offset {header.base_offset}, expected {expected}"
            )
        expected = header.next_offset
        yield from _dump_batch(position, batch, records)


def _dump_batches(disk: Disk, path: Path, records: bool) -> Iterator[DumpLine]:
    """A file of a stage: until its batches are published, they have any offsets."""
    for position, _, batch in _scan(disk, path):
        yield from _dump_batch(position, batch, records)


def _scan(disk: Disk, path: Path) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """The record batches of a file, with their places.

    Raises:
        CorruptData: one is damaged.
    """
    for position, header, batch, damage in scan_batches(disk, path):
        if damage:
            raise CorruptData(f"corrupt at byte {position}: {damage}")
        yield position, header, batch


def _dump_pieces(disk: Disk, path: Path, records: bool) -> Iterator[DumpLine]:
    """A file with the pieces of a replicated stage."""
    if not is_piece_file(path.name):
        raise CorruptData("not the name of a file of pieces")
    file = disk.open(path)
    try:
        cluster_id = read_piece_header(file, path)
        if cluster_id is None:
            raise CorruptData("no valid header")
        yield DumpLine("pieces", {"stage": int(path.stem), "cluster": cluster_id.hex(), "bytes": file.size()})
        end = None
        for unit in find_units(file, path):
            damage = unit_damage(file, unit)
            if damage:
                raise CorruptData(damage)
            yield from _dump_unit(file, unit, records)
            end = unit.end
        if end is not None and file.size() > end:
            raise CorruptData(f"no pieces from byte {end} on")
    finally:
        file.close()


def _dump_unit(file: File, unit: FoundUnit, records: bool) -> Iterator[DumpLine]:
    for key, place in unit.pieces.items():
        fields = {
            "number": key.number,
            "raft_group": key.raft_group,
            "byte": place.begin,
            "bytes": place.size,
            "records": place.records,
            "crc": key.crc,
        }
        yield DumpLine("piece", fields)
        batches, at = file.read_at(place.size, place.begin), 0
        while at < len(batches):
            size = batch_bytes(batches, at)
            batch = batches[at : at + size]
            yield from _dump_batch(place.begin + at, batch, records)
            at += size


def _dump_batch(position: int, batch: bytes | memoryview, records: bool) -> Iterator[DumpLine]:
    header = read_header(batch)
    fields = {
        "byte": position,
        "base_offset": header.base_offset,
        "last_offset": header.next_offset - 1,
        "records": header.records,
        "bytes": header.length + 12,
        "codec": _CODECS.get(header.codec, header.codec),
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "epoch": header.leader_epoch,
    }
    yield DumpLine("batch", fields | ({"control": True} if header.is_control else {}))
    if records:
        yield from _dump_records(batch)


def _dump_records(batch: bytes | memoryview) -> Iterator[DumpLine]:
    """The records of an undamaged batch.

    A client may have built a batch that cannot be decoded, which ends only its own records.
    """
    try:
        for record in read_records(batch):
            headers = [{"key": name, "value": value} for name, value in record.headers]
            yield DumpLine(
                "record",
                {
                    "offset": record.offset,
                    "timestamp": record.timestamp,
                    "key": record.key,
                    "value": record.value,
                    "headers": headers,
                },
            )
    except CorruptData as error:
        yield DumpLine("undecodable", {"reason": str(error)})


def _dump_checkpoint(disk: Disk, path: Path) -> Iterator[DumpLine]:
    for position, _, batch in _scan(disk, path):
        yield from _dump_batch(position, batch, records=False)
    group_state, records = split_checkpoint(read_checkpoint(disk, path))
    if group_state.HasField("configuration"):
        yield DumpLine("group_state", plain(group_state))
    for key, value in records:
        if path.parent.name == "sinks":
            yield _dump_sink(key, value)
        elif path.parent.name != "metadata" and key.startswith(_GROUP_KEY):
            yield DumpLine("group", plain(GroupRecord.FromString(value)))
        elif path.parent.name != "metadata":
            yield DumpLine("offset", plain(OffsetRecord.FromString(value)))
        elif key == b"cluster":
            yield DumpLine("cluster", plain(ClusterRecord.FromString(value)))
        elif key.startswith(_NODE_KEY):
            yield DumpLine("node", plain(NodeRecord.FromString(value)))
        else:
            yield DumpLine("topic", plain(TopicRecord.FromString(value)))


def _dump_sink(key: bytes, value: bytes) -> DumpLine:
    if key.startswith(b"sink\0"):
        return DumpLine("sink", plain(SinkRecord.FromString(value)))
    if key.startswith(b"publication\0"):
        return DumpLine("publication", plain(PublicationRecord.FromString(value)))
    return DumpLine("sinks", plain(SinksRecord.FromString(value)))
