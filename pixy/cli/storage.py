"""`pixy storage`: checks and shows the files of an embedded cluster, without a daemon."""

import gc
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pixy.cli.output import json_bytes, print_json, print_line, print_table, readable_bytes, report_error
from pixy.errors import DataDirectoryError

if TYPE_CHECKING:
    from pixy.inspect import DumpLine, Report

_DAMAGED = 1
_WRONG_USAGE = 2


@click.group()
def storage() -> None:
    """Check or show the files of an embedded cluster."""


@storage.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--mark",
    is_flag=True,
    help="Have the next start fetch damaged partitions from other nodes.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def check(ctx: click.Context, directory: Path, mark: bool, as_json: bool) -> None:
    """Check DIR: the directory of a stopped node, the stages of a Kafka cluster, or a data_dir with
    several of them.

    Read-only but for --mark, which leaves a mark in the directory of each damaged partition that
    has replicas on other nodes, and removes the marks of undamaged ones. Prints the findings with a
    verdict: ok, warning (the next start repairs it) or damaged (durable data is missing or wrong,
    or the next start is refused). With --json one object.

    Exits with 0 if nothing is damaged, 1 if something is, and 2 if DIR cannot be checked, for
    instance because a daemon uses it.
    """
    from pixy.inspect import ReadOnlyDisk, Verdict, check_directory, mark_damaged, node_directories
    from pixy.storage import RealDisk

    disk = ReadOnlyDisk()
    started = time.monotonic()
    gc.disable()  # the check makes no garbage in cycles; collection would take a third of the time
    try:
        reports = [check_directory(disk, each) for each in node_directories(disk, directory)]
        for report in reports if mark else ():
            mark_damaged(RealDisk(), report)
    except DataDirectoryError as error:
        report_error(str(error))
        ctx.exit(_WRONG_USAGE)
    finally:
        gc.enable()
    seconds = time.monotonic() - started
    if as_json:
        print_json(_json_of(reports, seconds))
    else:
        _print_reports(reports, seconds)
    if max(report.verdict for report in reports) is Verdict.DAMAGED:
        ctx.exit(_DAMAGED)


def _json_of(reports: "list[Report]", seconds: float) -> dict[str, Any]:
    return {
        "verdict": str(max(report.verdict for report in reports)),
        "bytes": sum(report.bytes for report in reports),
        "records": sum(report.records for report in reports),
        "seconds": round(seconds, 3),
        "directories": [
            {
                "directory": str(report.directory),
                "verdict": str(report.verdict),
                "findings": [
                    finding._asdict() | {"verdict": str(finding.verdict)} for finding in report.findings
                ],
            }
            for report in reports
        ],
    }


def _print_reports(reports: "list[Report]", seconds: float) -> None:
    for report in reports:
        if len(reports) > 1:
            print_line(f"{report.directory}:")
        print_table(["KIND", "WHERE", "FOUND", "VERDICT"], [finding[:4] for finding in report.findings])
        for finding in report.findings:
            if finding.advice:
                print_line("")
                print_line(f"{finding.where}: {finding.advice}")
        print_line("")
    verdict = max(report.verdict for report in reports)
    size = sum(report.bytes for report in reports)
    records = sum(report.records for report in reports)
    print_line(f"{verdict}: checked {size} bytes and {records} records in {seconds:.2f} s")


@storage.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def recover(directory: Path, as_json: bool) -> None:
    """Mend impossible terms and voters in DIR, the directory of a stopped node that is the only one
    of its cluster.

    `pixy storage check` names them: a node with a bug has written them, and nobody can be elected
    any more. Nothing is lost. A node of several cannot do that alone: the command says what to do
    instead. Without them nothing is changed, except for what every start repairs.

    Exits with 0 if the directory can be used, and 1 if it cannot be mended.
    """
    import asyncio

    from pixy.cli.logs import setup_logging
    from pixy.cluster import MendedGroups
    from pixy.cluster.unsafe_recovery import stopped_node
    from pixy.config import LoggingConfig
    from pixy.storage import RealDisk, ThreadWorker

    setup_logging([LoggingConfig()])
    with stopped_node(RealDisk(), directory) as node:
        mended = MendedGroups(node)
        asyncio.run(mended.write(ThreadWorker))
    if as_json:
        print_json({"mended": [group._asdict() for group in mended.groups]})
        return
    for group in mended.groups:
        print_line(
            f"{group.name}: {group.reason}; from here on it has term {group.term} and this node as its only voter, "
            f"and {group.entries} entries were written again"
        )
    if not mended.groups:
        print_line("no raft group has an impossible term or voter: nothing to mend")


@storage.command()
@click.argument("path", metavar="FILE|DIR", type=click.Path(path_type=Path))
@click.option("--records", is_flag=True, help="Show the records of batches, too.")
@click.option("--limit", "-n", type=click.IntRange(min=1), help="Maximum number of lines.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")
@click.pass_context
def dump(ctx: click.Context, path: Path, records: bool, limit: int | None, as_json: bool) -> None:
    """Show the content of a journal, segment, checkpoint or identity file, or of all of them below
    a directory.

    One line per item. Damage is shown at its position and ends the output, with exit code 1. Files
    of a running daemon can be shown, too; those being written may appear truncated.
    """
    from pixy.inspect import ReadOnlyDisk
    from pixy.inspect import dump as lines_of

    try:
        for count, line in enumerate(lines_of(ReadOnlyDisk(), path, records=records)):
            if count == limit:
                return
            _print_dumped(line, as_json)
            if line.what == "damage":
                ctx.exit(_DAMAGED)
    except DataDirectoryError as error:
        report_error(str(error))
        ctx.exit(_WRONG_USAGE)


def _print_dumped(line: "DumpLine", as_json: bool) -> None:
    if as_json:
        print_json({"what": line.what} | _for_json(line.fields))
        return
    texts = [f"{name}={_for_people(value)}" for name, value in line.fields.items()]
    print_line(" ".join([line.what, *texts]))


def _for_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return json_bytes(value)
    if isinstance(value, Mapping):
        return {name: _for_json(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_for_json(each) for each in value]
    return value


def _for_people(value: Any) -> str:
    """A value in a line `name=value`; nested values are shown as JSON."""
    if isinstance(value, bytes):
        return readable_bytes(value)
    if isinstance(value, (Mapping, list)):
        return json.dumps(_for_json(value), ensure_ascii=False)
    return "-" if value is None else str(value)
