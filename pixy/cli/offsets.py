"""`pixy offsets`: shows, sets and deletes the offsets of a consumer group."""

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import click

from pixy.cli.connection import CallFailed, DaemonConnection, client_command, no_partition
from pixy.cli.groups import delete_offsets
from pixy.cli.offset_changes import (
    EARLIEST,
    LATEST,
    NOTHING_COMMITTED,
    OffsetChange,
    PlannedOffset,
    Rule,
    from_group,
    offsets_of,
    plan,
    set_offsets,
    shift_by,
    to_offset,
    to_time,
    topics_of,
)
from pixy.cli.output import counted, print_json, print_line, print_table, report_error
from pixy.cli.times import parse_time_ms

if TYPE_CHECKING:
    from pixy.proto.kafkapixy_pb2 import PartitionOffset
    from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub

_WORDS = {"oldest": EARLIEST, "earliest": EARLIEST, "newest": LATEST, "latest": LATEST}
_FIELDS = ("partition", "begin", "end", "count", "offset", "lag", "metadata", "sparse_acks")
_COLUMNS = ("partition", "begin", "end", "count", "offset", "lag", "sparse_acks")
_CHANGE = ("partition", "before", "after", "again", "skipped")


class NewPosition(NamedTuple):
    """A new position in a partition, or in all (None): an offset, so many messages further, or the
    first message at or after a time.
    """

    partition: int | None
    offset: int | None = None
    shift: int | None = None
    timestamp_ms: int | None = None

    @property
    def one_offset(self) -> tuple[int, int] | None:
        """Partition and offset, which the daemon checks; None for anything else."""
        return None if self.partition is None or self.offset is None else (self.partition, self.offset)


class PartitionPosition(click.ParamType[NewPosition]):
    """`PARTITION=OFFSET`, with a number, a word, a shift or a time as the offset; `*` or nothing
    for all partitions.
    """

    name = "PARTITION=OFFSET"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> NewPosition:
        match = re.fullmatch(r"(?:([0-9]+|\*)=)?(.+)", str(value))
        number, target = (match[1], match[2]) if match is not None else (None, "")
        partition = int(number) if number not in (None, "*") else None
        if (partition or 0) >= 1 << 31 or (number is None and re.fullmatch(r"[0-9]+", target)):
            self._refuse(value, param, ctx)
        if target in _WORDS:
            return NewPosition(partition, offset=_WORDS[target])
        if re.fullmatch(r"[+-]?[0-9]+", target):
            if abs(int(target)) >= 1 << 63:
                self.fail(f"{value!r}: no offset is that large", param, ctx)
            is_shift = not target[0].isdigit()
            return NewPosition(partition, **{"shift" if is_shift else "offset": int(target)})
        try:
            return NewPosition(partition, timestamp_ms=parse_time_ms(target, time.time_ns() // 1_000_000))
        except (ValueError, OverflowError):
            self._refuse(value, param, ctx)

    def _refuse(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> NoReturn:
        examples = "0=42, 0=oldest, *=newest, 0=-5 or 0=2026-01-31T12:00:00Z"
        self.fail(f"{value!r} is not PARTITION=OFFSET, such as {examples}", param, ctx)


@click.group()
def offsets() -> None:
    """Show, set or delete the offsets of a consumer group."""


@offsets.command()
@click.argument("topic", required=False)
@click.option("--group", "-g", required=True, help="Consumer group.")
@client_command
def get(connection: DaemonConnection, topic: str | None, group: str) -> None:
    """Show the offsets of each partition of TOPIC, and the position of a consumer group in it.

    Without TOPIC: of all topics in which the group has offsets; standard error says if there are
    none. Offset -1: the group has no
    committed offset, and its lag is shown as -. With --json a list of objects with partition,
    begin, end, count, offset, lag (null: none), metadata and sparse_acks; without TOPIC an object
    of such lists by topic.
    """
    with connection.open() as stub:
        if topic is not None:
            _print_offsets(connection, offsets_of(connection, stub, group, topic))
            return
        found = dict(topics_of(connection, stub, group))
    if not found:
        report_error(f"consumer group {group} has no offsets in any topic")
    if connection.as_json:
        print_json({name: _json_offsets(entries) for name, entries in found.items()})
    else:
        rows = [
            [name, *_values(entry, _COLUMNS, "-").values()]
            for name, entries in found.items()
            for entry in entries
        ]
        print_table(["TOPIC", *(name.upper() for name in _COLUMNS)], rows)


def _print_offsets(connection: DaemonConnection, found: "Sequence[PartitionOffset]") -> None:
    if connection.as_json:
        print_json(_json_offsets(found))
    else:
        rows = [list(_values(entry, _COLUMNS, "-").values()) for entry in found]
        print_table([name.upper() for name in _COLUMNS], rows)


def _json_offsets(found: "Sequence[PartitionOffset]") -> list[dict[str, object]]:
    return [_values(entry, _FIELDS, None) for entry in found]


def _values(entry: "PartitionOffset", names: tuple[str, ...], no_lag: object) -> dict[str, object]:
    values = {name: getattr(entry, name) for name in names}
    if entry.offset == NOTHING_COMMITTED:
        values["lag"] = no_lag
    return values


@offsets.command()
@click.argument("topic")
@click.option("--group", "-g", required=True, help="Consumer group.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@client_command
def delete(connection: DaemonConnection, topic: str, group: str, yes: bool) -> None:
    """Delete the offsets of a consumer group in TOPIC, as `pixy groups delete --topic`."""
    delete_offsets(connection, group, topic, yes=yes)


@offsets.command("set")
@click.argument("topic", required=False)
@click.argument("positions", nargs=-1, type=PartitionPosition(), metavar="[PARTITION=OFFSET]...")
@click.option("--group", "-g", required=True, help="Consumer group.")
@click.option(
    "--partition",
    "-p",
    "partitions",
    multiple=True,
    type=click.IntRange(0, (1 << 31) - 1),
    help="Only this partition, of an option --to-... and the like; repeatable. Default: all.",
)
@click.option("--all-topics", is_flag=True, help="In all topics in which the group has offsets.")
@click.option("--to-earliest", is_flag=True, help="To the oldest message.")
@click.option("--to-latest", is_flag=True, help="To the end.")
@click.option("--to-datetime", metavar="TIME", help="To the first message at or after TIME.")
@click.option(
    "--by-duration", metavar="DURATION", help="To the first message of the last DURATION: 1h30m, PT1H30M."
)
@click.option("--shift-by", type=int, metavar="N", help="N messages further; back if negative.")
@click.option("--from-group", metavar="GROUP", help="To the offsets of GROUP, with what it has acknowledged.")
@click.option(
    "--dry-run", is_flag=True, help="Show what would be set and what would come again; set nothing."
)
@client_command
def set_(
    *,
    connection: DaemonConnection,
    topic: str | None,
    positions: tuple[NewPosition, ...],
    group: str,
    partitions: tuple[int, ...],
    all_topics: bool,
    to_earliest: bool,
    to_latest: bool,
    to_datetime: str | None,
    by_duration: str | None,
    shift_by: int | None,
    from_group: str | None,
    dry_run: bool,
) -> None:
    """Set the offsets of a consumer group in TOPIC: all of them or none.

    Either PARTITION=OFFSET, where OFFSET is a number, `oldest` or `newest`, +N or -N messages from
    the present one, or a TIME, and other partitions are unchanged; `*=OFFSET`, or `oldest` and the
    like alone, are for all that are not named. Or one of the options --to-..., --by-duration,
    --shift-by and --from-group, for all partitions of TOPIC or those of --partition. TIME is like
    2026-01-31T12:00:00Z, or so long ago: 1h30m.

    --dry-run shows for each partition the offset before and after, how many messages come again,
    and how many are skipped. Several topics are set one after the other.
    """
    rules = {
        "--to-earliest": to_earliest or None,
        "--to-latest": to_latest or None,
        "--to-datetime": to_datetime,
        "--by-duration": by_duration,
        "--shift-by": shift_by,
        "--from-group": from_group,
    }
    given = [name for name, value in rules.items() if value is not None]
    if (topic is None) == (not all_topics):
        raise click.UsageError("name either TOPIC or --all-topics")
    if len(given) + bool(positions) != 1:
        raise click.UsageError(
            f"one of these is needed, and not several: PARTITION=OFFSET..., {', '.join(rules)}"
        )
    if positions and (all_topics or partitions):
        raise click.UsageError(
            "PARTITION=OFFSET names the partitions: --partition and --all-topics contradict it"
        )
    with connection.open() as stub:
        if positions and topic is not None:
            offsets = [each.one_offset for each in positions if each.one_offset is not None]
            if len(offsets) == len(positions):
                _set_positions(connection, stub, group, topic, dict(offsets), dry_run)
                return
            rule = _rule_of(connection, positions)
        else:
            rule = _rule(connection, stub, given[0], rules[given[0]])
        by_topic = _planned(connection, stub, group, topic, partitions, rule, from_group)
        changes = [change for _, some in by_topic.values() for change in some]
        for name, (planned, _) in by_topic.items():
            if not dry_run:
                set_offsets(connection, stub, group, name, planned)
    _print_changes(connection, group, changes, dry_run, topic)


def _set_positions(
    connection: DaemonConnection,
    stub: "KafkaPixyStub",
    group: str,
    topic: str,
    positions: Mapping[int, int],
    dry_run: bool,
) -> None:
    """Set offsets that are given; the daemon checks them."""
    import grpc

    planned = {number: PlannedOffset(offset) for number, offset in positions.items()}
    if dry_run:
        changes = plan(topic, offsets_of(connection, stub, group, topic), planned)
        _print_changes(connection, group, changes, dry_run, topic)
        return
    set_offsets(connection, stub, group, topic, planned)
    if any(each.offset > 0 for each in planned.values()):
        with suppress(grpc.RpcError):  # the offsets are set, and only a warning depends on it
            _warn(plan(topic, offsets_of(connection, stub, group, topic), planned))
    connection.tell(
        [{"partition": number, "offset": offset} for number, offset in positions.items()],
        f"set {counted(len(planned), 'partition')} of {topic} for {group}",
    )


def _rule_of(connection: DaemonConnection, positions: Sequence[NewPosition]) -> Rule:
    """The new offsets by positions; those of single partitions take precedence."""

    def planned(topic: str, found: "Sequence[PartitionOffset]") -> Mapping[int, PlannedOffset]:
        named = {each.partition for each in positions if each.partition is not None}
        missing = sorted(named - {each.partition for each in found})
        if missing:
            raise no_partition(topic, missing[0], len(found))
        offsets: dict[int, PlannedOffset] = {}
        for position in positions:
            mine = [
                each
                for each in found
                if each.partition == position.partition
                or (position.partition is None and each.partition not in named)
            ]
            offsets.update(_rule_of_one(connection, position)(topic, mine))
        return offsets

    return planned


def _rule_of_one(connection: DaemonConnection, position: NewPosition) -> Rule:
    if position.timestamp_ms is not None:
        return to_time(connection, position.timestamp_ms)
    if position.shift is not None:
        return shift_by(position.shift)
    assert position.offset is not None
    return to_offset(position.offset)


def _rule(connection: DaemonConnection, stub: "KafkaPixyStub", name: str, value: object) -> Rule:
    if name == "--to-earliest":
        return to_offset(EARLIEST)
    if name == "--to-latest":
        return to_offset(LATEST)
    if name == "--shift-by":
        assert isinstance(value, int)
        return shift_by(value)
    if name == "--from-group":
        return from_group(connection, stub, str(value))
    now_ms = time.time_ns() // 1_000_000
    try:
        return to_time(connection, parse_time_ms(str(value), now_ms))
    except ValueError as error:
        raise click.UsageError(f"{name}: {error}") from None


def _planned(
    connection: DaemonConnection,
    stub: "KafkaPixyStub",
    group: str,
    topic: str | None,
    partitions: Sequence[int],
    rule: Rule,
    other: str | None,
) -> dict[str, tuple[Mapping[int, PlannedOffset], list[OffsetChange]]]:
    """New offsets, and what they change, by topic."""
    if topic is not None:
        found = {topic: offsets_of(connection, stub, group, topic)}
    elif other is not None:
        found = {
            name: offsets_of(connection, stub, group, name) for name, _ in topics_of(connection, stub, other)
        }
    else:
        found = dict(topics_of(connection, stub, group))
    if not found:
        raise CallFailed(f"consumer group {other or group} has no offsets in any topic")
    by_topic = {}
    for name, entries in found.items():
        known = {entry.partition for entry in entries}
        missing = sorted(set(partitions) - known)
        if missing:
            raise no_partition(name, missing[0], len(known))
        planned = rule(name, [entry for entry in entries if not partitions or entry.partition in partitions])
        by_topic[name] = planned, plan(name, entries, planned)
    if not any(planned for planned, _ in by_topic.values()):
        raise CallFailed(f"consumer group {other or group} has no offsets there: nothing was set")
    return by_topic


def _print_changes(
    connection: DaemonConnection,
    group: str,
    changes: Sequence[OffsetChange],
    dry_run: bool,
    topic: str | None,
) -> None:
    _warn(changes)
    again, skipped = (sum(getattr(change, name) for change in changes) for name in ("again", "skipped"))
    if connection.as_json:
        print_json(
            [
                {"topic": change.topic, **{name: getattr(change, name) for name in _CHANGE}}
                for change in changes
            ]
        )
        return
    rows = [[change.topic, *(getattr(change, name) for name in _CHANGE)] for change in changes]
    if dry_run:
        print_table(["TOPIC", *(name.upper() for name in _CHANGE)], rows)
    where = topic or counted(len({change.topic for change in changes}), "topic")
    done = "would set" if dry_run else "set"
    print_line(
        f"{done} {counted(len(changes), 'partition')} of {where} for {group}: {again} messages come again, {skipped} are skipped"
    )


def _warn(changes: Sequence[OffsetChange]) -> None:
    """Name the partitions whose new offsets skip messages that are not written yet."""
    for change in changes:
        if change.after > change.end:
            report_error(
                f"warning: partition {change.partition} of {change.topic} ends at {change.end}: messages that are "
                f"written there below offset {change.after} may be skipped"
            )
