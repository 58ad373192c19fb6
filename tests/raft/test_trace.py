"""No text is made for a trace that nobody reads."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pixy.raft
from pixy.raft import ConfState
from pixy.raft.text import describe_config
from pixy.raft.trace import NULL_TRACE, Described, NullTrace

FILES = sorted(Path(pixy.raft.__file__).parent.glob("*.py"))
LEVELS = {name for name in vars(NullTrace) if not name.startswith("_")}


def traced_arguments(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in LEVELS
            and ast.unparse(node.func.value).endswith("trace")
        ):
            yield from node.args


def makes_text(argument: ast.expr) -> bool:
    if isinstance(argument, ast.Call):
        called = ast.unparse(argument.func).rpartition(".")[2]
        return called.startswith("describe_") or called in ("format", "join", "repr", "str")
    if isinstance(argument, ast.BinOp):
        return any(
            isinstance(part, ast.Constant) and isinstance(part.value, str) for part in ast.walk(argument)
        )
    return isinstance(argument, ast.JoinedStr)


@pytest.mark.slow
def test_the_texts_of_all_files_are_found() -> None:
    assert {"debug", "info", "warning", "error", "critical"} == LEVELS
    found = [path.name for path in FILES if list(traced_arguments(ast.parse(path.read_text())))]
    assert {"election.py", "follower.py", "leader.py", "log.py", "state.py", "terms.py"} <= set(found)


@pytest.mark.parametrize("text", ["f'{node}'", "'a' + b", "'%d' % a", "describe_config(c)", "','.join(a)"])
def test_a_text_that_is_made_by_the_caller_is_recognised(text: str) -> None:
    (argument,) = traced_arguments(ast.parse(f"raft.trace.info({text})"))
    assert makes_text(argument)


@pytest.mark.parametrize("path", FILES, ids=[path.name for path in FILES])
def test_the_caller_makes_no_text(path: Path) -> None:
    made = [argument for argument in traced_arguments(ast.parse(path.read_text())) if makes_text(argument)]
    assert [f"{path.name}:{argument.lineno} {ast.unparse(argument)}" for argument in made] == []


def test_an_argument_is_described_when_the_text_is_formatted() -> None:
    described: list[ConfState] = []

    def describe(config: ConfState) -> str:
        described.append(config)
        return describe_config(config)

    argument = Described(describe, ConfState((1, 2)))
    NULL_TRACE.info("%s", argument)
    assert described == []
    assert f"{argument}" == "voters=(1 2)"
    assert described == [ConfState((1, 2))]
