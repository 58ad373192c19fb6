import time
from itertools import pairwise

import pytest

from pixy.config.tree import Branch, Node, Place, Scalar, from_yaml, lay_over, plain_scalar


def entry(node: Node | None, *names: str) -> Node:
    for name in names:
        assert isinstance(node, Branch)
        node = node.entries[name].node
    assert node is not None
    return node


def test_every_value_knows_its_line() -> None:
    node, problems = from_yaml("a: 1\nb:\n  c: text\n", "f.yaml")
    assert problems == []
    assert entry(node, "a") == Scalar("1", "number", Place("f.yaml", 1))
    assert entry(node, "b", "c") == Scalar("text", "text", Place("f.yaml", 3))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3: a is given twice, first in line 1"),
        ("a: [1\n", "f.yaml:2: not valid YAML: expected ',' or ']', but got '<stream end>'"),
        ("a: &x\n  b: *x\n", "f.yaml:1: an alias that contains itself"),
        ("? [a]\n: 1\n", "f.yaml:1: a key must be a text"),
        ("a: 1\n<<: 3\n", "f.yaml:2: << needs a mapping"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2: not valid YAML: but found another document"),
    ],
)
def test_a_syntax_error_is_reported_with_its_line(text: str, complaint: str) -> None:
    assert [str(problem) for problem in from_yaml(text, "f.yaml")[1]] == [complaint]


def test_bytes_that_are_not_text_are_reported() -> None:
    node, problems = from_yaml(b"a: \xff\xff", "f.yaml")
    assert node is None
    assert str(problems[0]).startswith("f.yaml: not valid YAML")


def test_merged_keys_yield_to_those_of_the_mapping_itself() -> None:
    node, problems = from_yaml("a: &base {x: 1, y: 2}\nb:\n  x: 3\n  <<: *base\n", "f.yaml")
    assert problems == []
    assert entry(node, "b", "x") == Scalar("3", "number", Place("f.yaml", 3))
    assert entry(node, "b", "y") == Scalar("2", "number", Place("f.yaml", 1))


def test_an_overlay_replaces_values_and_creates_branches() -> None:
    root, _ = from_yaml("a:\nb: 1\n", "f.yaml")
    assert isinstance(root, Branch)
    value = plain_scalar("2", Place("VARIABLE"))
    lay_over(root, ("a", "x"), value)
    lay_over(root, ("b",), value)
    lay_over(root, ("c", "d", "e"), value)
    assert entry(root, "a", "x") == entry(root, "b") == entry(root, "c", "d", "e") == value


def test_a_node_on_the_path_that_is_not_a_branch_stays() -> None:
    root, _ = from_yaml("a: 1\n", "f.yaml")
    assert isinstance(root, Branch)
    lay_over(root, ("a", "x"), plain_scalar("2", Place("VARIABLE")))
    assert entry(root, "a") == Scalar("1", "number", Place("f.yaml", 1))


@pytest.mark.parametrize(
    ("text", "kind"), [("true", "boolean"), ("12", "number"), ("", "text"), ("~", "text"), ("x", "text")]
)
def test_text_from_outside_is_typed_as_yaml_does_but_never_null(text: str, kind: str) -> None:
    assert plain_scalar(text, Place("V")).type == kind


def bomb(pattern: str) -> str:
    """Aliases of aliases: ten values become 10 to the power of 13."""
    steps = "".join(
        f"{name}: &{name} {pattern.format(*[before] * 10)}\n" for before, name in pairwise("abcdefghijklm")
    )
    return "a: &a [1]\n" + steps


HOSTILE = {
    "aliases in lists": bomb("[*{}, *{}, *{}, *{}, *{}, *{}, *{}, *{}, *{}, *{}]"),
    "aliases in mappings": bomb(
        "{{a: *{}, b: *{}, c: *{}, d: *{}, e: *{}, f: *{}, g: *{}, h: *{}, i: *{}, j: *{}}}"
    ),
    "merged aliases": "a: &a {" + ", ".join(f"k{n}: 1" for n in range(500)) + "}\nb:\n" + "  <<: *a\n" * 500,
    "deep lists": "[" * 20_000,
    "deep mappings": "{a: " * 20_000,
    "deep blocks": "".join(f"{' ' * depth}a:\n" for depth in range(1000)),
    "deep sequences": "- " * 20_000,
    "deep keys": "? " * 20_000,
    "many values": "[" + "1, " * 100_000,
    "many keys": "".join(f"k{number}: 1\n" for number in range(60_000)),
}


@pytest.mark.slow
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_document_is_refused_with_a_sentence_and_little_work(text: str) -> None:
    began = time.process_time()
    node, problems = from_yaml(text, "f.yaml")
    assert node is None
    (problem,) = problems
    assert "more than" in problem.message
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    "text", ["a: *hunter2", "a: !hunter2!x y", 'a: "hunter2', "a: [hunter2", "a: hunter2: x"]
)
def test_a_syntax_error_shows_no_value(text: str) -> None:
    ((_, message),) = from_yaml(text, "f.yaml")[1]
    assert message.startswith("not valid YAML: ")
    assert "hunter2" not in message


def test_a_problem_is_one_line_of_bounded_length() -> None:
    name = f"a\\n\\x1b{'x' * 5000}"
    _, problems = from_yaml(f'? "{name}"\n: 1\n' * 3, "f.yaml")
    assert len(problems) == 2
    assert all(str(each).isprintable() and len(str(each)) < 1100 for each in problems)
