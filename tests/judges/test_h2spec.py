"""h2spec, the HTTP/2 conformance suite: every case passes, strict ones included, in plaintext and
with TLS.

The four runs are concurrent, each against its own daemon: the suite mostly waits.
"""

import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from tests.integration.daemon import Daemon
from tests.judges.daemons import Certificate, judged_daemon
from tests.judges.toolbox import go_judge

pytestmark = pytest.mark.process

SECONDS_MAX = 150
CASES = {"default": 145, "strict": 146}


class Run(NamedTuple):
    """Result of a run: the number of cases, and those that failed."""

    cases: int
    failures: list[str]


def judge(h2spec: str, daemon: Daemon, report: Path, *, strict: bool, tls: bool) -> Run:
    host, port = daemon.address.rsplit(":", 1)
    flags = [*(["--strict"] if strict else []), *(["--tls", "--insecure"] if tls else [])]
    done = subprocess.run(
        [h2spec, "--host", host, "--port", port, "--junit-report", str(report), "--timeout", "2", *flags],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert report.exists(), f"h2spec ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    cases = list(ElementTree.parse(report).iter("testcase"))
    failures = [
        f"{case.get('package')} {case.get('classname')}: {child.tag} {(child.text or '').strip()}"
        for case in cases
        for child in case
    ]
    return Run(len(cases), failures)


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory, certificate: Certificate
) -> Iterator[dict[str, "Future[Run]"]]:
    """All runs, by test name. At their end, no daemon may have logged a fault."""
    h2spec = go_judge("h2spec")
    folder = tmp_path_factory.mktemp("h2spec")
    with ExitStack() as daemons, ThreadPoolExecutor() as pool:
        begun = {}
        for level in CASES:
            for tls in (False, True):
                name = f"{level}-{'tls' if tls else 'h2c'}"
                certificate_of = certificate if tls else None
                daemon = daemons.enter_context(judged_daemon(folder / name, certificate=certificate_of))
                report = folder / f"{name}.xml"
                strict = level == "strict"
                begun[name] = pool.submit(judge, h2spec, daemon, report, strict=strict, tls=tls)
        yield begun


@pytest.mark.parametrize("transport", ["h2c", "tls"])
@pytest.mark.parametrize("level", CASES)
def test_every_case_passes(runs: dict[str, "Future[Run]"], level: str, transport: str) -> None:
    run = runs[f"{level}-{transport}"].result()
    assert not run.failures, "\n".join(run.failures)
    assert run.cases == CASES[level]
