"""tests/audit.py: reports of pip-audit."""

import json
from typing import Any

import pytest

from tests.audit import judge, main

WELL = {"name": "click", "version": "8.5.1", "vulns": []}
FAULTY = {
    "name": "idna",
    "version": "3.6",
    "vulns": [{"id": "PYSEC-2024-60", "fix_versions": ["3.7"], "aliases": [], "description": "slow"}],
}
UNKNOWN = {"name": "yarl", "skip_reason": "Dependency not found on PyPI"}


@pytest.mark.parametrize(
    ("dependencies", "status", "says"),
    [
        ([WELL], 0, "no known vulnerabilities of 1 dependencies"),
        ([WELL, FAULTY], 1, "idna 3.6: PYSEC-2024-60, fixed in 3.7"),
        ([UNKNOWN, FAULTY], 1, "idna 3.6: PYSEC-2024-60, fixed in 3.7"),
        ([UNKNOWN, WELL], 2, "does not know 1 of 2 dependencies: Dependency not found on PyPI"),
    ],
)
def test_a_report_is_judged(dependencies: list[Any], status: int, says: str) -> None:
    verdict = judge(json.dumps({"dependencies": dependencies, "fixes": []}), "")
    assert verdict.status == status
    assert says in verdict.text


def test_no_report_is_no_answer() -> None:
    assert judge("", "no route to host").status == 2


@pytest.mark.parametrize(
    ("report", "status"), [([FAULTY], (1, 1)), ([UNKNOWN], (2, 0)), ([WELL], (0, 0)), (None, (2, 0))]
)
def test_only_an_unreachable_service_may_be_passed_over(
    report: list[Any] | None, status: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "" if report is None else json.dumps({"dependencies": report})
    monkeypatch.setattr("tests.audit.audit", lambda _: judge(text, "no route to host"))
    assert (main([]), main(["--if-reachable"])) == status
