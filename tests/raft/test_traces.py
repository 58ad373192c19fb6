"""etcd's traces and our own scenarios are reproduced byte for byte, and the runner reports
differences.
"""

from pathlib import Path

import pytest

from tests.raft.trace import main, run_file, trace_files
from tests.raft.trace.interaction import InteractionTrace
from tests.raft.trace.script import BadScript, parse_script

HERE = Path(__file__).parent
FILES = list(trace_files([HERE / "traces", HERE / "scenarios"]))
CLUSTERS = [path for path in FILES if path.parent.name == "interaction"]


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(HERE)) for path in FILES])
def test_a_trace_is_reproduced_byte_for_byte(path: Path) -> None:
    outcome = run_file(path)
    assert outcome.same, outcome.diff()


@pytest.mark.parametrize("path", CLUSTERS, ids=[str(path.relative_to(HERE)) for path in CLUSTERS])
def test_a_trace_is_the_same_if_proposals_take_the_short_way(path: Path) -> None:
    outcome = run_file(path, short_way=True)
    assert outcome.same, outcome.diff()


def test_all_of_etcds_traces_are_there() -> None:
    assert len(list(trace_files([HERE / "traces"]))) == 28


class Restless(InteractionTrace):
    """Nodes that always have something to do."""

    def _stabilize(self, nodes: object) -> bool:
        return True


def test_nodes_that_find_no_rest_fail_their_trace() -> None:
    [case] = parse_script("stabilize\n----\nok\n").cases
    with pytest.raises(AssertionError, match="not at rest after 1000 rounds of stabilize"):
        Restless()(case)


def test_a_different_trace_is_reported_by_a_diff_and_the_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong.txt").write_text("vote cfg=(1) votes=(y)\n----\nVoteLost\n")
    assert main([str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "FAILED" in printed
    assert "-VoteLost\n+VoteWon\n" in printed
    assert "0 of 1 as expected" in printed


def test_rewrite_writes_the_results_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "wrong.txt"
    path.write_text("# Why.\n\nvote cfg=(1) votes=(y)\n----\nVoteLost\n\n\n# End.\n")
    assert main(["--rewrite", str(path)]) == 0
    assert path.read_text() == "# Why.\n\nvote cfg=(1) votes=(y)\n----\nVoteWon\n\n\n# End.\n"
    assert main([str(path)]) == 0


def test_a_file_that_is_no_trace_fails(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("# Nothing here.\n")
    assert main([str(tmp_path)]) == 1
    assert main([str(tmp_path / "absent.txt")]) == 1


def test_output_with_blank_lines_is_enclosed_in_doubled_separators() -> None:
    text = "a b=(1,2) c\nin\n----\n----\none\n\ntwo\n----\n----\n\nnext\n----\nok\n"
    script = parse_script(text)
    first, second = script.cases
    assert (first.command, first.input, first.expected) == ("a", "in", "one\n\ntwo\n")
    assert first.arguments == (("b", ("1", "2")), ("c", ()))
    assert (second.command, second.expected) == ("next", "ok\n")
    assert script.text([first.expected, second.expected]) == text


def test_a_command_may_continue_on_the_next_line() -> None:
    (case,) = parse_script("add-nodes 1 \\\n  index=2\n----\nok\n").cases
    assert case.arguments == (("1", ()), ("index", ("2",)))


def test_a_command_without_a_separator_is_rejected() -> None:
    with pytest.raises(BadScript, match="line 1"):
        parse_script("campaign 1\n")
