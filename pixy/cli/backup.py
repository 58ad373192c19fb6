"""`pixy backup` and `pixy restore`: backups of running clusters, and data directories from them."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pixy.cli.connection import CallFailed, DaemonConnection, client_command
from pixy.cli.output import counted, print_json, print_line, print_table, report_error
from pixy.cli.times import parse_time_ms

if TYPE_CHECKING:
    import grpc

    from pixy.backup import Manifest

_DAMAGED = 1
_PROGRESS_S = 0.5
_TOPICS = click.option(
    "--topics", default="", metavar="NAME,...", help="Only these topics, separated by commas. Default: all."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_TARGET = click.argument("target", metavar="TARGET")


@click.group()
def backup() -> None:
    """Back up a running cluster into TARGET: a directory, or a URL such as s3://bucket/folder.

    URLs need the extra `backup` (fsspec) and the driver of the store: s3fs, gcsfs or adlfs.
    """


@backup.command()
@_TARGET
@_TOPICS
@click.option(
    "--rate",
    default="64MiB",
    show_default=True,
    metavar="SIZE",
    help="Bytes to fetch in a second at most; 0 for no limit.",
)
@client_command
def create(target: str, topics: str, rate: str, connection: DaemonConnection) -> None:
    """Back up topics, their messages, offsets of consumer groups, and sinks of staged writes.

    Everything that was answered before the command begins is in the backup. Messages that TARGET
    has of earlier backups of this cluster, or of one that was broken off, are not fetched again: so
    after an error, run it again. Messages come from nodes with replicas that do not lead, as far as
    they are reached at the addresses that they have for clients.

    What is staged and not published is not backed up, nor is the configuration of the daemon.
    """
    from pixy.backup import Backup, BackupOptions, BackupProgress, ClusterSource, open_target

    def open_channel(address: str) -> "grpc.Channel":
        if not address:
            return connection.channel()
        try:
            return replace(connection, address=address).channel()
        except click.UsageError as error:  # a node says that it is reached where nobody can
            raise CallFailed(error.message) from error

    options = BackupOptions(topics=_names(topics), bytes_per_second=_size(rate))
    source = ClusterSource(open_channel, connection.cluster, give_up_s=connection.timeout)
    progress = BackupProgress()

    def shown() -> str:
        return f"{progress.fetched} of {counted(progress.total, 'message')}, {_mb(progress.fetched_bytes)}"

    opened = open_target(target)
    work = Backup(source, opened, options, lambda: round(time.time() * 1000), progress)
    try:
        with _progress(shown, hidden=connection.as_json):
            manifest = work.run()
    finally:
        source.close()
    result = _json_of(manifest) | {
        "fetched_bytes": progress.fetched_bytes,
        "reused_bytes": progress.reused_bytes,
        "deleted_topics": work.left_out,
    }
    connection.tell(
        result,
        f"backup {manifest.id} has {_counts(manifest)}; {_mb(progress.fetched_bytes)} were fetched, "
        f"{_mb(progress.reused_bytes)} were there",
    )


@backup.command("list")
@_TARGET
@_JSON
def list_backups(target: str, as_json: bool) -> None:
    """List the backups in TARGET, the oldest first. One that was broken off is none."""
    from pixy.backup import find_backups, open_target

    found = find_backups(open_target(target))
    for id, reason in found.damaged.items():
        report_error(f"backup {id} is damaged: {reason}")
    if as_json:
        print_json([_json_of(each) for each in found.backups])
        return
    print_table(
        ["BACKUP", "CLUSTER", "VERSION", "TOPICS", "MESSAGES", "BYTES"],
        [
            [
                each.id,
                each.cluster_id.hex(),
                each.version,
                len(each.topics),
                each.records,
                each.size,
            ]
            for each in found.backups
        ],
    )


@backup.command()
@_TARGET
@click.argument("backup_id", metavar="[BACKUP]", default="")
@_JSON
@click.pass_context
def verify(ctx: click.Context, target: str, backup_id: str, as_json: bool) -> None:
    """Read every byte of a backup in TARGET, the newest by default, and compare checksums.

    Exits with 1 if anything is damaged or missing.
    """
    from pixy.backup import find_backup, open_target, verify_backup

    opened = open_target(target)
    manifest = find_backup(opened, backup_id)
    damaged = list(verify_backup(opened, manifest))
    if as_json:
        print_json(_json_of(manifest) | {"damaged": damaged})
    else:
        for each in damaged:
            print_line(f"damaged: {each}")
        verdict = f"{counted(len(damaged), 'damaged object')}" if damaged else "ok"
        print_line(f"backup {manifest.id}: {verdict}, {_counts(manifest)}, {_mb(manifest.size)}")
    if damaged:
        ctx.exit(_DAMAGED)


@backup.command("prune")
@_TARGET
@click.argument("backup_ids", metavar="[BACKUP]...", nargs=-1)
@click.option(
    "--keep", type=click.IntRange(min=1), help="Remove all but so many, the newest of each cluster."
)
@click.option(
    "--unfinished",
    is_flag=True,
    help="Remove what no backup has: never while one is being created in TARGET.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be removed.")
@_JSON
def prune_backups(
    target: str,
    backup_ids: tuple[str, ...],
    keep: int | None,
    unfinished: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove backups from TARGET, and what no other backup there has."""
    from pixy.backup import find_backups, open_target, plan_pruning, prune

    if not backup_ids and keep is None and not unfinished:
        raise click.UsageError("name backups, or give --keep or --unfinished")
    opened = open_target(target)
    gone = {*backup_ids}
    if keep is not None:
        by_cluster: dict[bytes, list[str]] = {}
        for each in find_backups(opened).backups:
            by_cluster.setdefault(each.cluster_id, []).append(each.id)
        for ids in by_cluster.values():
            gone.update(ids[:-keep])
    pruning = plan_pruning(opened, gone, unfinished=unfinished)
    if not dry_run:
        prune(opened, pruning, unfinished=unfinished)
    if as_json:
        print_json(
            {"backups": pruning.backups, "objects": len(pruning.objects), "bytes": pruning.size}
            | {"removed": not dry_run}
        )
    else:
        print_line(
            f"{'would remove' if dry_run else 'removed'} {counted(len(pruning.backups), 'backup')} and "
            f"{counted(len(pruning.objects), 'object')} of {_mb(pruning.size)}"
        )


@click.command()
@_TARGET
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--backup", "backup_id", default="", metavar="BACKUP", help="Its id. Default: the newest.")
@click.option(
    "--entry",
    default="default",
    show_default=True,
    metavar="NAME",
    help="Entry under proxies: the name of the cluster.",
)
@_TOPICS
@click.option(
    "--before",
    metavar="TIME",
    help="Leave out messages from this time on: 2026-01-31T12:00:00Z, or a duration ago like 1h30m.",
)
@_JSON
def restore(
    target: str,
    directory: Path,
    backup_id: str,
    entry: str,
    topics: str,
    before: str | None,
    as_json: bool,
) -> None:
    """Make DIR, the data_dir of a daemon that never ran, from a backup in TARGET.

    The node is the only one of a new cluster, with an id of its own: the former cluster may go on.
    Further nodes join it, and get replicas as the topics want them. DIR/NAME has to be empty or
    absent. If the restore is broken off, no daemon starts there; run it again.

    --before ends each partition in front of its first message with that time or a later one, so
    later messages with earlier times go, too. Consumer groups that were further go on at that end.
    Sinks of staged writes are forgotten: their next epoch is published, whatever its number.
    """
    import pixy
    from pixy.backup import Restore, RestoreOptions, find_backup, open_target
    from pixy.cli.logs import setup_logging
    from pixy.config import LoggingConfig
    from pixy.storage import RealDisk, ThreadWorker

    setup_logging([LoggingConfig()])
    now_ms = round(time.time() * 1000)
    before_ms = None
    if before is not None:
        try:
            before_ms = parse_time_ms(before, now_ms)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--before") from error
    opened = open_target(target)
    manifest = find_backup(opened, backup_id)
    options = RestoreOptions(pixy.__version__, now_ms, _names(topics), before_ms)
    done = 0

    def progressed(size: int) -> None:
        nonlocal done
        done += size

    work = Restore(opened, manifest, RealDisk(), directory / entry, options, os.urandom, progressed)
    with _progress(lambda: _mb(done), hidden=as_json):
        restored = work.run(ThreadWorker)
    if as_json:
        print_json(
            {
                "backup": manifest.id,
                "cluster_id": restored.cluster_id.hex(),
                "topics": restored.topics,
                "partitions": restored.partitions,
                "messages": restored.records,
                "groups": restored.groups,
            }
        )
    else:
        print_line(
            f"{directory / entry} is node 1 of cluster {restored.cluster_id.hex()}, with backup {manifest.id}: "
            f"{counted(restored.topics, 'topic')}, {counted(restored.records, 'message')}, "
            f"{counted(restored.groups, 'consumer group')}. Start it with data_dir: {directory}"
        )


def _names(topics: str) -> Sequence[str]:
    return [name.strip() for name in topics.split(",") if name.strip()]


def _size(text: str) -> int:
    from pixy.config import parse_bytes

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--rate") from error


def _json_of(manifest: "Manifest") -> dict[str, Any]:
    return {
        "backup": manifest.id,
        "cluster_id": manifest.cluster_id.hex(),
        "version": manifest.version,
        "time": datetime.fromtimestamp(manifest.time_ms / 1000, UTC).isoformat(),
        "topics": [topic.topic for topic in manifest.topics],
        "messages": manifest.records,
        "bytes": manifest.size,
    }


def _counts(manifest: "Manifest") -> str:
    return f"{counted(len(manifest.topics), 'topic')} with {counted(manifest.records, 'message')}"


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


@contextmanager
def _progress(text: Callable[[], str], *, hidden: bool) -> Iterator[None]:
    """Show a text on the terminal's last line, twice a second."""
    if hidden or not sys.stderr.isatty():
        yield
        return
    ended = threading.Event()

    def show() -> None:
        while not ended.wait(_PROGRESS_S):
            click.echo(f"\r{text()} ", nl=False, err=True)

    shower = threading.Thread(target=show, daemon=True)
    shower.start()
    try:
        yield
    finally:
        ended.set()
        shower.join()
        click.echo("\r", nl=False, err=True)
