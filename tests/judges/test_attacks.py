"""Attacks on a real daemon, each from its own process.

Iterations of the daemon's event loop stay short, every call of another client is answered, memory
is bounded, and the attacker is told the reason.

Durations are processor time of the daemon, so other work on the machine does not matter; see
`watched`.

One daemon endures most of the attacks in sequence. So whatever all of them leave behind, mostly
memory kept by the allocator, is bounded as well.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pixy.http2 import ErrorCode
from pixy.proto import kafkapixy_pb2 as pb
from tests.integration.daemon import Daemon
from tests.judges import watched
from tests.judges.attacks import ATTACKS, BIG_TOPIC, Attack
from tests.judges.daemons import check_log, judged_daemon
from tests.judges.http_attacks import HTTP_ATTACKS
from tests.judges.witness import Observation, Witness

pytestmark = pytest.mark.process

REPOSITORY = Path(__file__).parents[2]
SECONDS, PATIENT_SECONDS = 1.5, 4.0
LAST_ANSWERS_S = 0.2
LONG_SHARE = 0.3
"""Allowed share of event loop time in iterations longer than `watched.LONG_S`; without limits per
iteration it would be nearly all of it.
"""
RSS_BYTES_MAX = LEFT_BYTES_MAX = 48 * 1024 * 1024
"""Attacks send gigabytes. One of nine hundred connections a few seconds takes up to 33 MiB."""
LARGE_RSS_BYTES_MAX = 128 * 1024 * 1024
"""With large answers over HTTP. Streams without a bound would hold 190 MB, answers to pipelined
requests gigabytes. A zero byte is six in JSON.
"""
QUICK = {
    *("rapid reset (CVE-2023-44487)", "HPACK bomb", "streams beyond the limit", "gzip bombs"),
    *("pipelined pings", "requests of other servers", "dear requests of the management listener"),
}
"""Attacks on different parts of the core, for every run of the tests."""
BIG_MESSAGES, BIG_MESSAGE_BYTES = 30, 900_000


class Target(NamedTuple):
    """A daemon, the file it writes its measurements to, and its resident memory before the first
    attack.
    """

    daemon: Daemon
    turns: Path
    fresh_rss_bytes: int


@pytest.fixture(scope="module")
def target_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Target]]:
    """The target of an attack. One that may take much memory has a daemon of its own."""
    targets: dict[str, Target] = {}
    with ExitStack() as daemons:

        def target_of(name: str) -> Target:
            planned = ATTACKS.get(name) or HTTP_ATTACKS[name]
            key = str(planned.config) if isinstance(planned, Attack) else "HTTP"
            if planned.alone:
                key = name
            if key not in targets:
                # A stopping daemon waits for acks of messages that attackers received.
                grpc = {"grpc": dict(planned.config)} if isinstance(planned, Attack) else {}
                listeners = dict.fromkeys(("tcp_addr", "management_addr"), "127.0.0.1:0")
                config = {**grpc, **listeners, "shutdown_timeout": "1s"}
                folder = tmp_path_factory.mktemp("daemon")
                turns = folder / "turns"
                watched_daemon = judged_daemon(folder, config, program=("-P", watched.__file__, str(turns)))
                daemon = daemons.enter_context(watched_daemon)
                if not isinstance(planned, Attack) or planned.big_answers:
                    fill(daemon)
                targets[key] = Target(daemon, turns, daemon.rss_bytes())
            return targets[key]

        yield target_of


def attack(name: str, daemon: Daemon, witness: Witness) -> tuple[Observation, dict[str, Any]]:
    """Attack while a witness observes; returns the observation and the attacker's report."""
    is_http = name in HTTP_ATTACKS
    listener = HTTP_ATTACKS[name].listener if is_http else "grpc"
    host, port = daemon.addresses[listener].rsplit(":", 1)
    seconds = PATIENT_SECONDS if not is_http and ATTACKS[name].config else SECONDS
    module = "tests.judges.http_attacker" if is_http else "tests.judges.attacker"
    # It may do harm through the network only, not by taking the cores from the others.
    command = ["nice", "-n", "10", sys.executable, "-m", module]
    command += [name, host, port, str(seconds + LAST_ANSWERS_S)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "attacking\n"
        seen = witness.watch(seconds)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()
    return seen, json.loads(output)


def fill(daemon: Daemon) -> None:
    """Produce messages that make large responses."""
    stub = daemon.stub()
    for _ in range(BIG_MESSAGES):
        stub.Produce(pb.ProdRq(topic=BIG_TOPIC, key_undefined=True, message=bytes(BIG_MESSAGE_BYTES)))
    daemon.close_channels()


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.long)
        for name in [*ATTACKS, *HTTP_ATTACKS]
    ],
)
def test_an_attack_does_not_affect_other_clients(name: str, target_of: Callable[[str], Target]) -> None:
    daemon, turns, fresh_rss_bytes = target_of(name)
    before = daemon.rss_bytes()
    left = before - fresh_rss_bytes
    assert left <= LEFT_BYTES_MAX, f"{left >> 20} MiB more resident than before all attacks"
    with Witness(daemon, turns) as witness:
        seen, report = attack(name, daemon, witness)
    grown = seen.rss_bytes_max - before
    is_large = name in HTTP_ATTACKS and HTTP_ATTACKS[name].alone
    assert grown <= (LARGE_RSS_BYTES_MAX if is_large else RSS_BYTES_MAX), (
        f"{grown >> 20} MiB more resident: {report}"
    )
    check(report, name)
    check_log(daemon)
    assert sum(seen.long_s) <= LONG_SHARE * seen.worked_s, (
        f"long iterations of the loop in ms, of {seen.worked_s:.2f} s: {[round(s * 1000, 1) for s in seen.long_s]}; {report}"
    )


def check(report: dict[str, Any], name: str) -> None:
    """Assert that the attack took place and met the required response."""
    if name in HTTP_ATTACKS:
        check_http(report, name)
        return
    planned = ATTACKS[name]
    assert report["opened"] >= planned.connections, report
    # Too many stream resets end the connection. A busy machine may keep the attacker from
    # completing its handshakes in time.
    allowed = (
        planned.ended_by
        | ({planned.refused_by} if planned.refused_by else set())
        | {ErrorCode.SETTINGS_TIMEOUT}
    )
    assert report["goaways"].keys() <= {code.name for code in allowed}, report
    if planned.ended_by:
        assert report["ended"], report
        assert sum(report["goaways"].values()) >= report["ended"], report
    if planned.refused_by is not None:
        assert report["resets"].get(planned.refused_by.name), report


def check_http(report: dict[str, Any], name: str) -> None:
    """The same for an attack over HTTP."""
    planned = HTTP_ATTACKS[name]
    assert report["opened"] >= planned.connections, report
    if planned.statuses:
        assert report["statuses"], report
        # A busy machine may keep the attacker from completing a request in time.
        assert report["statuses"].keys() <= planned.statuses | {"408"}, report
    assert report["ended"] or not planned.ends, report
