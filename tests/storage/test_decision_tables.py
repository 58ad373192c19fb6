"""Correspondence of the decision tables in `docs` to the tests of their rows.

A decision table follows a comment `<!-- decisions: NAME -->`. The first column names its rows; row
`torn tail` has the test `test_torn_tail` in `test_NAME_decisions.py`, which has no other tests.
"""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"
MARK = re.compile(r"<!-- decisions: (\w+) -->\n+((?:\|.*\n?)+)")


def rows_of(table: str) -> list[str]:
    """The expected test of each row of a table, in order."""
    _, _, *rows = table.strip().splitlines()
    names = [row.split("|")[1].strip().strip("`") for row in rows]
    return ["test_" + re.sub(r"\W+", "_", name.lower()).strip("_") for name in names]


def tables() -> list[tuple[str, list[str]]]:
    return [
        (name, rows_of(table))
        for path in sorted(DOCS.rglob("*.md"))
        for name, table in MARK.findall(path.read_text())
    ]


def modules() -> dict[str, Path]:
    return {
        path.stem.removeprefix("test_").removesuffix("_decisions"): path
        for path in TESTS.rglob("test_*_decisions.py")
    }


def proofs_in(path: Path) -> list[str]:
    defined = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, defined)]
    return [name for name in names if name.startswith("test_")]


def test_every_table_has_a_module_of_tests_and_every_such_module_a_table() -> None:
    names = [name for name, _ in tables()]
    assert sorted(names) == sorted(modules())
    assert {"journal", "journal_entries", "checkpoint"} <= set(names)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rows"), tables(), ids=[name for name, _ in tables()])
def test_every_row_has_its_test_and_every_test_its_row(name: str, rows: list[str]) -> None:
    assert sorted(rows) == sorted(proofs_in(modules()[name]))


def test_a_marked_table_is_found_and_its_rows_become_names() -> None:
    text = "words\n\n<!-- decisions: thing -->\n\n| row | done |\n|---|---|\n| torn tail | cut |\n| `Half a-name` | |\n\n| other | |\n"
    [(name, table)] = MARK.findall(text)
    assert (name, rows_of(table)) == ("thing", ["test_torn_tail", "test_half_a_name"])
    assert MARK.findall("| row | done |\n|---|---|\n| a | b |\n") == []
