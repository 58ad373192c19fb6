"""The alert rules and the dashboard in `deploy`: each alert fires and clears, as promtool evaluates
it, and both name metrics that there are.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from pixy.metrics.families import FAMILIES, Kind
from tests.conftest import require

DEPLOY = Path(__file__).parents[1] / "deploy"
ALERTS: dict[str, Any] = {
    rule["alert"]: rule
    for group in yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
}
DASHBOARD: Any = json.loads((DEPLOY / "grafana.json").read_text())

NODE = 'cluster="c",node="2",instance="a:1",job="pixy"'
HERE = 'cluster="c",instance="a:1",job="pixy"'
PROCESS = 'instance="a:1",job="pixy"'
GROUP = 'cluster="c",group="g",topic="t",instance="a:1",job="pixy"'

# Values a minute: bad for an hour, then good for two.
GAUGES: dict[str, dict[str, str]] = {
    "PixyDown": {f"up{{{PROCESS}}}": "0x60 1x120"},
    "PixyNotReady": {f"pixy_ready{{{HERE}}}": "0x60 1x120"},
    "PixyNodeUnreachable": {f"pixy_node_up{{{NODE}}}": "0x60 1x120"},
    "PixyNoLeader": {f"pixy_raft_groups_without_leader{{{HERE}}}": "3x60 0x120"},
    "PixyReplicasBehind": {f"pixy_replicas_behind{{{NODE}}}": "3x60 0x120"},
    "PixyReplicasDamaged": {f"pixy_replicas_damaged{{{NODE}}}": "1x60 0x120"},
    "PixyUnderReplicated": {f"pixy_under_replicated_topics{{{HERE}}}": "1x60 0x120"},
    "PixyMovesWait": {f"pixy_waiting_moves{{{HERE}}}": "2x60 0x120"},
    "PixyNodeTroubled": {f"pixy_node_troubles{{{NODE}}}": "1x60 0x120"},
    "PixyDiskFillsUp": {
        f"pixy_disk_free_bytes{{{NODE}}}": "5x60 50x120",
        f"pixy_disk_bytes{{{NODE}}}": "100x180",
    },
    "PixyWrongClock": {f"pixy_node_clock_offset_seconds{{{NODE}}}": "-60x60 0x120"},
    "PixyGroupLags": {f"pixy_group_lag_records{{{GROUP}}}": "20000+100x60 0x120"},
    "PixyOutOfDescriptors": {
        f"process_open_fds{{{PROCESS}}}": "95x60 5x120",
        f"process_max_fds{{{PROCESS}}}": "100x180",
    },
}
COUNTERS: dict[str, dict[str, str]] = {
    "PixyMessagesDie": {f'pixy_acks_total{{{GROUP},outcome="dead"}}': "0+5x60 300x120"},
    "PixyMessagesLost": {f"pixy_lost_records_total{{{HERE}}}": "0+1x60 60x120"},
    "PixySlowDisk": {
        f'pixy_journal_sync_seconds_bucket{{{HERE},le="0.25"}}': "0x60 0+100x120",
        f'pixy_journal_sync_seconds_bucket{{{HERE},le="1.0"}}': "0+100x60 6000+100x120",
        f'pixy_journal_sync_seconds_bucket{{{HERE},le="+Inf"}}': "0+100x60 6000+100x120",
    },
    "PixyLoopLags": {
        f'pixy_loop_lag_seconds_bucket{{{PROCESS},le="0.1"}}': "0x60 0+120x120",
        f'pixy_loop_lag_seconds_bucket{{{PROCESS},le="0.5"}}': "0+120x60 7200+120x120",
        f'pixy_loop_lag_seconds_bucket{{{PROCESS},le="+Inf"}}': "0+120x60 7200+120x120",
    },
    "PixyErrors": {
        f'pixy_rpc_requests_total{{{PROCESS},method="m",code="OK"}}': "0+90x180",
        f'pixy_rpc_requests_total{{{PROCESS},method="m",code="INTERNAL"}}': "0+10x60 600x120",
    },
    "PixyBugs": {f"pixy_bugs_total{{{PROCESS}}}": "0+1x60 60x120"},
    "PixyLeadersMove": {
        f"pixy_raft_leader_changes_total{{{HERE}}}": "0+10x60 600x120",
        f"pixy_raft_groups{{{HERE}}}": "12x180",
    },
    "PixyPeersReconnect": {f"pixy_peer_reconnects_total{{{NODE}}}": "0+2x60 120x120"},
    "PixyOutOfConnections": {f"pixy_connections_refused_total{{{PROCESS}}}": "0+10x60 600x120"},
    "PixyScrapesFail": {f"pixy_scrape_failures_total{{{HERE}}}": "0+1x60 60x120"},
}
SERIES = GAUGES | COUNTERS


def test_each_alert_has_a_test() -> None:
    assert SERIES.keys() == ALERTS.keys()


@pytest.mark.slow
def test_each_alert_fires_and_clears(tmp_path: Path) -> None:
    promtool = require("promtool", "apt-get install prometheus")
    queries = []
    for name, series in SERIES.items():
        firing = f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)'
        queries.append(
            {
                "interval": "1m",
                "input_series": [{"series": each, "values": values} for each, values in series.items()],
                "promql_expr_test": [
                    {"expr": firing, "eval_time": at, "exp_samples": [{"value": value, "labels": "{}"}]}
                    for at, value in (("59m", 1), ("170m", 0))
                ],
            }
        )
    tests = tmp_path / "tests.yaml"
    tests.write_text(
        yaml.safe_dump(
            {"rule_files": [str(DEPLOY / "alerts.yaml")], "evaluation_interval": "1m", "tests": queries}
        )
    )
    done = subprocess.run(
        [promtool, "test", "rules", str(tests)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_are_valid() -> None:
    promtool = require("promtool", "apt-get install prometheus")
    path = str(DEPLOY / "alerts.yaml")
    done = subprocess.run([promtool, "check", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def expressions() -> list[str]:
    """All queries of the rules and of the dashboard."""
    panels = [panel for panel in DASHBOARD["panels"] if "targets" in panel]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    return queries + [rule["expr"] for rule in ALERTS.values()]


def test_every_metric_of_the_rules_and_the_dashboard_exists_with_its_labels() -> None:
    ends = {Kind.HISTOGRAM: ("_bucket", "_sum", "_count")}
    names = {name + end for name, each in FAMILIES.items() for end in ends.get(each.kind, ("",))}
    used = {name for each in expressions() for name in re.findall(r"\b(?:pixy|kafka|process)_[a-z_]+", each)}
    assert used - names == set()
    assert used


def test_each_panel_has_a_title_a_unit_and_a_place_of_its_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert panel["title"]
        assert at["x"] + at["w"] <= 24
        assert not cells & taken
        taken |= cells
        if panel["type"] != "row":
            assert panel["fieldConfig"]["defaults"]["unit"]


def test_every_alert_is_explained_on_the_page_for_operators() -> None:
    page = (DEPLOY.parent / "docs" / "operations.md").read_text()
    assert [name for name in ALERTS if f"`{name}`" not in page] == []
