"""`pixy cluster recover`: one node goes on alone after the majority is lost for good. Offline."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pixy.cli.confirmation import confirm, confirm_by_name
from pixy.cli.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from pixy.cluster import LossReport, SurvivingGroup


@click.command()
@click.option(
    "--data-dir",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="data_dir of the stopped daemon.",
)
@click.option(
    "--entry",
    default="default",
    show_default=True,
    metavar="NAME",
    help="Entry under proxies: the name of the cluster.",
)
@click.option("--other-nodes-are-gone", "gone", is_flag=True, help="Answers the first question with yes.")
@click.option("--messages-may-be-lost", "lossy", is_flag=True, help="Answers the second question.")
@click.option("--json", "as_json", is_flag=True, help="Print what is there, and may be lost, as JSON.")
def recover(data_dir: Path, entry: str, gone: bool, lossy: bool, as_json: bool) -> None:
    """Go on with this node alone, after a majority of the cluster is lost for good.

    For a stopped node. MESSAGES THAT WERE ANSWERED MAY BE LOST, and with them commits of consumer
    groups and changes of topics: the command says for each raft group what is there, and whether
    others may have confirmed more. Then it asks twice; without a terminal both flags are required.
    Before the answers nothing is changed, except for what every start repairs.

    Afterwards this node is the only one of its cluster, under a new cluster id, and new nodes join
    it. It refuses the other nodes if they come back with their data, and they refuse it; but
    several of them may be a majority, and serve the old cluster beside this one. So empty their
    data directories before they start. Never do this on two nodes of one cluster.
    """
    import asyncio

    from pixy.cli.logs import setup_logging
    from pixy.cluster import LostMajority
    from pixy.cluster.unsafe_recovery import stopped_node
    from pixy.config import LoggingConfig
    from pixy.storage import RealDisk, ThreadWorker

    setup_logging([LoggingConfig()])
    with stopped_node(RealDisk(), data_dir / entry) as node:
        lost = LostMajority(node)
        report = lost.report
        if as_json:
            print_json(_json_of(report))
        else:
            _print_report(report, entry)
        others = _nodes(report)
        if not gone:
            question = f"Are {others} stopped, and will their data directories never be used again?"
            confirm(question, "nothing was changed", "--other-nodes-are-gone")
        if not lossy:
            question = f"Go on with node {report.node_id} alone, and lose what is said above?"
            confirm_by_name(question, entry, "nothing was changed", "--messages-may-be-lost")
        asyncio.run(lost.go_on_alone(ThreadWorker, os.urandom(16)))
    if not as_json:
        print_line(
            f"node {report.node_id} is the only one of cluster {entry}, which has a new cluster id: start it. It refuses "
            f"{others}, and they refuse it. Do not start them with their data: several of them may be a majority, and "
            "serve the old cluster beside this one. Empty their data directories first; then they join as new nodes"
        )


def _print_report(report: "LossReport", entry: str) -> None:
    print_line(f"Node {report.node_id} of cluster {entry} would go on without {_nodes(report)}.")
    print_line("")
    print_table(
        ["RAFT GROUP", "VOTERS", "LAST ENTRY", "TERM", "COMMITTED", "MAY LACK"],
        [_row(group) for group in report.groups],
    )
    lacking = [group for group in report.groups if group.may_lack]
    print_line("")
    if lacking:
        print_line(
            f"{len(lacking)} of {len(report.groups)} raft groups may lack entries that the other nodes have confirmed: "
            "answered messages, commits or changes of topics behind the last entry are lost, unless this node had "
            "them all."
        )
    else:
        print_line("Nothing that was answered is missing here: no write was possible without this node.")
    if any(group.uncommitted for group in report.groups):
        print_line(
            "Entries behind COMMITTED may be unanswered, or were replaced by others at the other nodes: they are kept."
        )
    for name, partitions in sorted(report.cut_offsets.items()):
        print_line(
            f"Consumer group {name} had gone further than the records that are here: it goes on at the end of "
            f"{', '.join(partitions)}."
        )
    if report.lost_partitions:
        print_line(f"ALL MESSAGES ARE LOST of: {', '.join(report.lost_partitions)}. Delete these topics.")
    print_line("")


def _row(group: "SurvivingGroup") -> list[object]:
    return [
        group.name,
        ",".join(map(str, group.voters)) or "-",
        group.last.index,
        group.last.term,
        group.commit,
        "yes" if group.may_lack else "no",
    ]


def _nodes(report: "LossReport") -> str:
    ids = [str(node.node_id) for node in report.lost_nodes]
    named = " and ".join(filter(None, (", ".join(ids[:-1]), ids[-1])))
    return f"node{'' if len(ids) == 1 else 's'} {named}"


def _json_of(report: "LossReport") -> dict[str, Any]:
    return {
        "node_id": report.node_id,
        "lost_nodes": [{"node_id": node.node_id, "address": node.address} for node in report.lost_nodes],
        "groups": [
            {
                "raft_group": group.raft_group,
                "name": group.name,
                "voters": list(group.voters),
                "last_index": group.last.index,
                "last_term": group.last.term,
                "commit": group.commit,
                "may_lack": group.may_lack,
            }
            for group in report.groups
        ],
        "lost_partitions": list(report.lost_partitions),
        "cut_offsets": {name: list(partitions) for name, partitions in report.cut_offsets.items()},
    }
