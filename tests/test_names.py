"""One name, one class: a class name occurs once in the whole tree, private names included."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "pixy"
GENERATED = (PACKAGE / "proto", PACKAGE / "kafka_messages" / "generated")


def classes() -> dict[str, list[str]]:
    """The places of each class name, except in generated code, with names of the protos and
    of Kafka."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.parent in GENERATED:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    return places


@pytest.mark.slow
def test_no_two_classes_share_a_name() -> None:
    assert {name: places for name, places in classes().items() if len(places) > 1} == {}
