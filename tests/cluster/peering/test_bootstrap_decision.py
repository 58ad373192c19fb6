"""The first start of a node with a join list: a test for each row of the table, and the search."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.cluster.peering.bootstrap_decision import Formation, Found, Join, Wait, decide
from pixy.errors import Unavailable
from pixy.peers import Address, Hello
from tests.sim.loop import VirtualLoop

A, B, C = (Address(host, 19094) for host in ("a", "b", "c"))
LIST = (A, B, C)
CLUSTER = b"the cluster's id"

Answers = dict[Address, Hello | str]


def hello(address: Address, cluster_id: bytes = b"", node_id: int = 0) -> Hello:
    """The greeting of a node; the process of each address has an id of its own."""
    return Hello(
        "default",
        cluster_id,
        node_id,
        b"secret",
        0,
        0,
        b"of " + address.host.encode(),
        b"",
        str(address),
        "1",
    )


def nodes_of_none(*addresses: Address) -> Answers:
    return {address: hello(address) for address in addresses}


# --- the table ------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", LIST)
@pytest.mark.parametrize("other", LIST)
def test_a_node_joins_the_cluster_of_any_node_that_belongs_to_one(own: Address, other: Address) -> None:
    answers = nodes_of_none(*LIST) | {other: hello(other, CLUSTER, 1)}
    if other != own:
        assert decide(hello(own), answers) == Join(other)


def test_a_node_joins_whatever_the_rest_of_the_list_is_doing() -> None:
    assert decide(hello(A), {A: hello(A), B: "connection refused", C: hello(C, CLUSTER, 2)}) == Join(C)
    assert decide(hello(A), {B: hello(B, CLUSTER, 1), C: "connection refused"}) == Join(B)


def test_a_node_that_is_told_of_two_clusters_joins_neither() -> None:
    answers = {A: hello(A), B: hello(B, CLUSTER, 2), C: hello(C, b"another cluster.", 3)}
    assert decide(hello(A), answers) == Wait(
        f"nodes of the join list belong to different clusters: b:19094 to {CLUSTER.hex()} and "
        f"c:19094 to {b'another cluster.'.hex()}"
    )


def test_the_first_node_founds_when_all_belong_to_none() -> None:
    assert decide(hello(A), nodes_of_none(*LIST)) == Found()
    assert decide(hello(A), nodes_of_none(A)) == Found()


@pytest.mark.parametrize("own", [B, C])
def test_another_node_waits_for_the_first_one_to_found(own: Address) -> None:
    assert decide(hello(own), nodes_of_none(*LIST)) == Wait("a:19094 has to found the cluster")


@pytest.mark.parametrize("silent", [B, C])
def test_nobody_founds_while_some_do_not_answer(silent: Address) -> None:
    answers: Answers = nodes_of_none(*LIST) | {silent: "connection refused"}
    assert decide(hello(A), answers) == Wait(
        f"1 of the join list do not answer ({silent}: connection refused)"
    )


def test_all_that_do_not_answer_are_named() -> None:
    answers: Answers = {C: "timed out", A: hello(A), B: "the join lists differ"}
    expected = "2 of the join list do not answer (b:19094: the join lists differ; c:19094: timed out)"
    assert decide(hello(A), answers) == Wait(expected)


def test_a_list_without_this_node_founds_nothing() -> None:
    assert decide(hello(A), nodes_of_none(B, C)) == Wait("the join list does not name this node")


def test_a_list_with_two_names_of_this_node_founds_nothing() -> None:
    answers = {A: hello(A), B: hello(A), C: hello(C)}
    assert decide(hello(A), answers) == Wait("the join list names this node twice: a:19094 and b:19094")


@given(st.dictionaries(st.sampled_from(LIST), st.sampled_from(["none", "cluster", "down"]), min_size=3))
def test_at_most_one_node_founds_and_only_when_there_is_no_cluster(states: dict[Address, str]) -> None:
    def answer_of(address: Address) -> Hello | str:
        if states[address] == "down":
            return "down"
        return hello(address, CLUSTER if states[address] == "cluster" else b"")

    answers = {address: answer_of(address) for address in LIST}
    decisions = [decide(hello(address), answers) for address in LIST if states[address] == "none"]
    assert decisions.count(Found()) == (set(states.values()) == {"none"})
    joins = "cluster" in states.values()
    assert all(isinstance(each, Join) is joins for each in decisions)


# --- the search -----------------------------------------------------------------------------------


class Search:
    """The search of node A for its cluster.

    Attributes:
        answers: of the nodes, by address; may change.
        reasons: why it went on.
        asked: number of questions.
    """

    def __init__(self, answers: Mapping[Address, Hello | Exception]) -> None:
        self.answers = dict(answers)
        self.reasons: list[str] = []
        self.asked = 0
        self.formation = Formation(hello(A), LIST, self._ask, self.reasons.append)

    async def _ask(self, address: Address, timeout: float) -> Hello:
        self.asked += 1
        answer = self.answers[address]
        if isinstance(answer, Exception):
            raise answer
        return answer


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario with virtual time."""

    async def main() -> None:
        await scenario()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


ALL = {address: hello(address) for address in LIST}


def test_the_search_ends_with_the_first_decision() -> None:
    async def scenario() -> None:
        search = Search(ALL)
        assert await search.formation.search() == Found()
        assert (search.asked, search.reasons) == (3, [])

    run(scenario)


def test_the_search_goes_on_until_all_answer() -> None:
    async def scenario() -> None:
        search = Search(ALL | {B: OSError(111, "Connection refused"), C: Unavailable("it is starting")})
        searching = asyncio.ensure_future(search.formation.search())
        await asyncio.sleep(1)
        assert set(search.reasons) == {
            "2 of the join list do not answer (b:19094: Connection refused; c:19094: it is starting)"
        }
        search.answers = dict(ALL)
        assert await searching == Found()

    run(scenario)


def test_the_search_ends_when_another_node_has_founded() -> None:
    async def scenario() -> None:
        search = Search(ALL | {B: OSError(111, "Connection refused")})
        searching = asyncio.ensure_future(search.formation.search())
        await asyncio.sleep(1)
        search.answers[C] = hello(C, CLUSTER, 1)
        assert await searching == Join(C)

    run(scenario)


def test_the_log_hears_of_a_long_search_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        search = Search(ALL | {B: OSError(111, "Connection refused")})
        searching = asyncio.ensure_future(search.formation.search())
        await asyncio.sleep(35)
        searching.cancel()
        assert len(search.reasons) > 100

    run(scenario)
    assert capsys.readouterr().out.count("waiting for the nodes of the join list") == 4
