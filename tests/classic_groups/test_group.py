"""Each row of the tables of Kafka's classic group coordinator: states, checks in their order,
timers, static members, and what a new coordinator does.
"""

from dataclasses import replace
from typing import Any

import pytest

from pixy.classic_groups import (
    ClassicGroup,
    ClassicOptions,
    GroupCode,
    GroupPhase,
    LeavingMember,
    MemberProtocol,
    StoredClassicGroup,
)
from tests.classic_groups.scenario import DELAY_MS, REBALANCE_MS, SESSION_MS, GroupScenario

OPTIONS = ClassicOptions(initial_delay_ms=DELAY_MS)
OTHER = [MemberProtocol("range", b"other topics")]


def phase(scenario: GroupScenario) -> GroupPhase:
    return scenario.group.phase


def code(scenario: GroupScenario, ticket: int) -> GroupCode | None:
    """The code of an answer, None while there is none."""
    answer = scenario.answers.get(ticket)
    return None if answer is None else answer.code


def idle(scenario: GroupScenario) -> bool:
    return scenario.group.is_idle


def dead() -> GroupScenario:
    scenario = GroupScenario()
    scenario.stable("a")
    scenario.group.close(GroupCode.NOT_COORDINATOR)
    return scenario


# --- phases ---------------------------------------------------------------------------------------


def test_from_the_first_join_to_an_assignment() -> None:
    scenario = GroupScenario()
    assert phase(scenario) is GroupPhase.EMPTY
    tickets = [scenario.join(client_id=each, takes_member_id=False) for each in "ab"]
    assert phase(scenario) is GroupPhase.PREPARING
    assert not scenario.answers

    scenario.wait(2 * DELAY_MS)
    assert phase(scenario) is GroupPhase.COMPLETING
    first, second = map(scenario.joined, tickets)
    assert first.generation == second.generation == 1
    assert first.leader == second.leader == first.member_id
    assert [each.member_id for each in first.members] == [first.member_id, second.member_id]
    assert [each.metadata for each in first.members] == [b"topics", b"topics"]
    assert second.members == ()

    early = scenario.sync(second.member_id, 1)
    assert code(scenario, early) is None
    leading = scenario.sync(first.member_id, 1, {first.member_id: b"A", second.member_id: b"B"})
    assert phase(scenario) is GroupPhase.STABLE
    assert (scenario.synced(leading).assignment, scenario.synced(early).assignment) == (b"A", b"B")


def test_a_group_whose_members_have_all_left_is_empty_in_the_next_generation() -> None:
    scenario = GroupScenario()
    members = scenario.stable("a", "b")
    assert scenario.leave(*members) == [GroupCode.NONE] * 2
    assert (phase(scenario), scenario.group.generation) == (GroupPhase.EMPTY, 2)
    assert scenario.stored[-1] == StoredClassicGroup(2, "consumer", "", "", False, [])


def test_an_empty_group_counts_on_and_takes_members_of_another_type() -> None:
    scenario = GroupScenario()
    scenario.leave(*scenario.stable("a"))
    scenario.preparing("b")
    ticket = scenario.join(protocol_type="connect", takes_member_id=False)
    assert code(scenario, ticket) is GroupCode.INCONSISTENT_GROUP_PROTOCOL
    scenario.wait(DELAY_MS)
    assert scenario.group.generation == 3


@pytest.mark.parametrize("change", ["newcomer", "metadata", "leave", "expiry"])
def test_a_change_while_syncs_are_awaited_begins_anew(change: str) -> None:
    scenario = GroupScenario()
    leader, other = scenario.completing("a", "b")
    waiting = scenario.sync(other, 1)
    match change:
        case "newcomer":
            scenario.join(takes_member_id=False)
        case "metadata":
            scenario.join(leader, protocols=OTHER)
        case "leave":
            scenario.leave(leader)
        case "expiry":
            scenario.wait(SESSION_MS)
    assert phase(scenario) is GroupPhase.PREPARING
    assert code(scenario, waiting) is GroupCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("change", ["leader", "metadata", "newcomer", "leave", "expiry"])
def test_a_change_of_a_stable_group_begins_anew(change: str) -> None:
    scenario = GroupScenario()
    leader, other = scenario.stable("a", "b")
    match change:
        case "leader":
            scenario.join(leader)
        case "metadata":
            scenario.join(other, protocols=OTHER)
        case "newcomer":
            scenario.join(takes_member_id=False)
        case "leave":
            scenario.leave(other)
        case "expiry":
            scenario.wait(SESSION_MS / 2)
            scenario.heartbeat(leader, 1)
            scenario.wait(SESSION_MS / 2)
    assert phase(scenario) is GroupPhase.PREPARING


def test_what_waits_in_a_dead_group_is_told_to_look_elsewhere() -> None:
    preparing = GroupScenario()
    join = preparing.join(takes_member_id=False)
    preparing.group.close(GroupCode.NOT_COORDINATOR)
    preparing.settle()
    completing = GroupScenario()
    _, other = completing.completing("a", "b")
    sync = completing.sync(other, 1)
    completing.group.close(GroupCode.NOT_COORDINATOR)
    completing.settle()
    assert code(preparing, join) is code(completing, sync) is GroupCode.NOT_COORDINATOR
    assert preparing.group.deadline_ms == completing.group.deadline_ms == float("inf")


# --- checks of a join -----------------------------------------------------------------------------


@pytest.mark.parametrize("timeout_ms", [5999, 1_800_001])
def test_a_session_timeout_out_of_range(timeout_ms: int) -> None:
    scenario = GroupScenario()
    ticket = scenario.join("unknown", session_timeout_ms=timeout_ms)
    assert code(scenario, ticket) is GroupCode.INVALID_SESSION_TIMEOUT
    assert scenario.group.is_idle


def test_a_member_id_in_an_unknown_group() -> None:
    scenario = GroupScenario()
    ticket = scenario.join("a-1", protocols=[])
    assert code(scenario, ticket) is GroupCode.UNKNOWN_MEMBER_ID


def test_a_full_group() -> None:
    scenario = GroupScenario(replace(OPTIONS, members_max=2))
    members = scenario.preparing("a", "b")
    assert code(scenario, scenario.join(takes_member_id=False)) is GroupCode.GROUP_MAX_SIZE_REACHED
    again = scenario.join(members[0])
    assert code(scenario, again) is None
    scenario.wait(2 * DELAY_MS)
    for _ in range(2):
        assert code(scenario, scenario.join()) is GroupCode.GROUP_MAX_SIZE_REACHED
        assert code(scenario, scenario.join(members[1])) is GroupCode.NONE
        scenario.sync_all()
    assert phase(scenario) is GroupPhase.STABLE


def test_ids_that_are_given_out_are_limited_too() -> None:
    scenario = GroupScenario(replace(OPTIONS, members_max=2))
    codes = [code(scenario, scenario.join()) for _ in range(3)]
    assert codes == [GroupCode.MEMBER_ID_REQUIRED] * 2 + [GroupCode.GROUP_MAX_SIZE_REACHED]
    scenario.wait(SESSION_MS)
    assert scenario.group.is_idle


def test_a_member_that_joins_a_full_group_too_late_is_none_any_more() -> None:
    scenario = GroupScenario(replace(OPTIONS, members_max=2))
    _, slow = scenario.stable("a", "b")
    scenario.options = OPTIONS
    scenario.move()
    newcomer = scenario.join(takes_member_id=False)
    scenario.group._options = replace(OPTIONS, members_max=1)
    assert code(scenario, scenario.join(slow)) is GroupCode.GROUP_MAX_SIZE_REACHED
    assert slow not in scenario.group.members.by_id
    assert code(scenario, newcomer) is None


def test_a_dead_group_takes_no_requests() -> None:
    scenario = dead()
    assert code(scenario, scenario.join()) is GroupCode.COORDINATOR_NOT_AVAILABLE
    assert code(scenario, scenario.sync("a-1", 9)) is GroupCode.COORDINATOR_NOT_AVAILABLE
    assert scenario.heartbeat("a-1", 9) is GroupCode.COORDINATOR_NOT_AVAILABLE
    assert scenario.leave("a-1") == [GroupCode.COORDINATOR_NOT_AVAILABLE]
    assert scenario.commit("a-1", 9) is GroupCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize(
    "changes",
    [
        {"protocol_type": "connect"},
        {"protocol_type": ""},
        {"protocols": []},
        {"protocols": [MemberProtocol("sticky", b"topics")]},
    ],
)
def test_a_member_that_does_not_fit_the_others(changes: dict[str, Any]) -> None:
    scenario = GroupScenario()
    scenario.stable("a")
    ticket = scenario.join(**changes)
    assert code(scenario, ticket) is GroupCode.INCONSISTENT_GROUP_PROTOCOL
    assert phase(scenario) is GroupPhase.STABLE


@pytest.mark.parametrize("changes", [{"protocol_type": ""}, {"protocols": []}])
def test_the_first_member_needs_a_type_and_a_protocol(changes: dict[str, Any]) -> None:
    scenario = GroupScenario()
    assert code(scenario, scenario.join(**changes)) is GroupCode.INCONSISTENT_GROUP_PROTOCOL


def test_too_much_metadata() -> None:
    scenario = GroupScenario(replace(OPTIONS, member_bytes_max=1200, group_bytes_max=2000))
    large = [MemberProtocol("range", bytes(1000))]
    assert code(scenario, scenario.join(protocols=large)) is GroupCode.INVALID_REQUEST
    fitting = [MemberProtocol("range", bytes(900))]
    scenario.join(protocols=fitting, takes_member_id=False)
    ticket = scenario.join(protocols=fitting, takes_member_id=False)
    assert code(scenario, ticket) is GroupCode.GROUP_MAX_SIZE_REACHED


def test_many_protocols_without_a_name_are_too_much_metadata() -> None:
    scenario = GroupScenario()
    nameless = [MemberProtocol("", b"")] * 2000
    assert code(scenario, scenario.join(protocols=nameless)) is GroupCode.INVALID_REQUEST
    assert code(scenario, scenario.join(protocol_type="x" * 300_000)) is GroupCode.INVALID_REQUEST


def test_an_assignment_too_large_to_store() -> None:
    scenario = GroupScenario(replace(OPTIONS, group_bytes_max=1500))
    leader, other = scenario.completing("a", "b")
    waiting = scenario.sync(other, 1)
    leading = scenario.sync(leader, 1, {leader: bytes(1500)})
    assert code(scenario, leading) is code(scenario, waiting) is GroupCode.UNKNOWN_SERVER_ERROR
    assert phase(scenario) is GroupPhase.PREPARING


def test_a_dynamic_member_is_given_an_id_first() -> None:
    scenario = GroupScenario()
    answer = scenario.joined(scenario.join(client_id="me"))
    assert answer.code is GroupCode.MEMBER_ID_REQUIRED
    assert answer.member_id.startswith("me-")
    assert phase(scenario) is GroupPhase.EMPTY
    again = scenario.join(answer.member_id)
    scenario.wait(DELAY_MS)
    assert scenario.joined(again).member_id == answer.member_id


def test_an_id_that_was_given_out_ends_with_a_session_timeout() -> None:
    scenario = GroupScenario()
    answer = scenario.joined(scenario.join())
    scenario.wait(SESSION_MS)
    assert code(scenario, scenario.join(answer.member_id)) is GroupCode.UNKNOWN_MEMBER_ID


def test_an_id_that_was_given_out_is_of_no_instance() -> None:
    scenario = GroupScenario()
    answer = scenario.joined(scenario.join())
    ticket = scenario.join(answer.member_id, instance_id="one")
    assert code(scenario, ticket) is GroupCode.UNKNOWN_MEMBER_ID


def test_a_member_of_an_old_version_or_an_unknown_instance_is_taken_at_once() -> None:
    scenario = GroupScenario()
    old = scenario.join(takes_member_id=False)
    static = scenario.join(instance_id="one")
    scenario.wait(2 * DELAY_MS)
    assert code(scenario, old) is code(scenario, static) is GroupCode.NONE
    assert scenario.joined(static).member_id.startswith("one-")


def test_the_check_of_a_member_that_joins_again() -> None:
    scenario = GroupScenario()
    scenario.join(instance_id="one")
    scenario.preparing("a")
    assert code(scenario, scenario.join("who")) is GroupCode.UNKNOWN_MEMBER_ID
    assert code(scenario, scenario.join("who", instance_id="two")) is GroupCode.UNKNOWN_MEMBER_ID
    assert code(scenario, scenario.join("who", instance_id="one")) is GroupCode.FENCED_INSTANCE_ID


def test_nobody_joins_an_empty_group_again() -> None:
    scenario = GroupScenario()
    (member,) = scenario.stable("a")
    scenario.leave(member)
    assert code(scenario, scenario.join(member)) is GroupCode.UNKNOWN_MEMBER_ID


def test_a_join_whose_answer_was_lost_is_answered_again() -> None:
    scenario = GroupScenario()
    leader, other = scenario.completing("a", "b")
    again = scenario.joined(scenario.join(leader))
    assert (again.generation, len(again.members)) == (1, 2)
    assert scenario.joined(scenario.join(other)).members == ()
    scenario.sync_all()
    assert scenario.joined(scenario.join(other)).generation == 1
    assert phase(scenario) is GroupPhase.STABLE


def test_both_of_two_parked_joins_are_answered_and_the_oldest_of_three_at_once() -> None:
    scenario = GroupScenario()
    leader, other = scenario.stable("a", "b")
    tickets = [scenario.join(leader) for _ in range(3)]
    assert [code(scenario, each) for each in tickets] == [GroupCode.REBALANCE_IN_PROGRESS, None, None]
    scenario.join(other)
    assert [code(scenario, each) for each in tickets[1:]] == [GroupCode.NONE] * 2


# --- checks of the other requests -----------------------------------------------------------------


def test_checks_of_a_sync() -> None:
    scenario = GroupScenario()
    assert code(scenario, scenario.sync("a-1", 1)) is GroupCode.UNKNOWN_MEMBER_ID
    (member,) = scenario.preparing("a")
    scenario.wait(DELAY_MS)
    assert code(scenario, scenario.sync("who", 7)) is GroupCode.UNKNOWN_MEMBER_ID
    assert code(scenario, scenario.sync(member, 7, protocol="no")) is GroupCode.ILLEGAL_GENERATION
    for ticket in (
        scenario.sync(member, 1, protocol="sticky"),
        scenario.sync(member, 1, protocol_type="connect"),
    ):
        assert code(scenario, ticket) is GroupCode.INCONSISTENT_GROUP_PROTOCOL
    scenario.sync(member, 1, {member: b"all"}, protocol="range", protocol_type="consumer")
    assert scenario.synced(scenario.sync(member, 1)).assignment == b"all"
    scenario.join(takes_member_id=False)
    assert code(scenario, scenario.sync(member, 1)) is GroupCode.REBALANCE_IN_PROGRESS


def test_checks_of_a_sync_of_a_static_member() -> None:
    scenario = GroupScenario()
    scenario.join(instance_id="one")
    scenario.wait(DELAY_MS)
    for instance_id, wanted in (("one", GroupCode.FENCED_INSTANCE_ID), ("two", GroupCode.UNKNOWN_MEMBER_ID)):
        assert code(scenario, scenario.sync("who", 1, instance_id=instance_id)) is wanted
        assert scenario.heartbeat("who", 1, instance_id) is wanted
        assert scenario.commit("who", 1, instance_id) is wanted


def test_checks_of_a_heartbeat() -> None:
    scenario = GroupScenario()
    assert scenario.heartbeat("a-1", 1) is GroupCode.UNKNOWN_MEMBER_ID
    (member,) = scenario.completing("a")
    assert scenario.heartbeat("who", 7) is GroupCode.UNKNOWN_MEMBER_ID
    assert scenario.heartbeat(member, 7) is GroupCode.ILLEGAL_GENERATION
    assert scenario.heartbeat(member, 1) is GroupCode.NONE
    scenario.sync_all()
    assert scenario.heartbeat(member, 1) is GroupCode.NONE
    scenario.join(takes_member_id=False)
    assert scenario.heartbeat(member, 1) is GroupCode.REBALANCE_IN_PROGRESS
    scenario.leave(*scenario.group.members.by_id)
    assert scenario.heartbeat(member, scenario.group.generation) is GroupCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("rebalances", [False, True])
def test_heartbeats_keep_a_member(rebalances: bool) -> None:
    scenario = GroupScenario()
    (member,) = scenario.stable("a")
    if rebalances:
        scenario.join(takes_member_id=False)
    for _ in range(5):
        scenario.wait(SESSION_MS - 1)
        assert scenario.heartbeat(member, 1) in (GroupCode.NONE, GroupCode.REBALANCE_IN_PROGRESS)


def test_checks_of_members_that_leave() -> None:
    scenario = GroupScenario()
    scenario.join(instance_id="one")
    pending = scenario.joined(scenario.join()).member_id
    (member,) = scenario.preparing("a")
    assert scenario.leave("who", "") == [GroupCode.UNKNOWN_MEMBER_ID] * 2
    assert scenario.leave("", instance_id="two") == [GroupCode.UNKNOWN_MEMBER_ID]
    assert scenario.leave(member, instance_id="one") == [GroupCode.FENCED_INSTANCE_ID]
    assert scenario.leave(pending, member) == [GroupCode.NONE] * 2
    assert scenario.leave("", instance_id="one") == [GroupCode.NONE]
    assert not scenario.group.is_held


def test_a_member_that_leaves_has_its_parked_requests_answered() -> None:
    scenario = GroupScenario()
    join = scenario.join(takes_member_id=False)
    scenario.leave(*scenario.group.members.by_id)
    _, other = scenario.completing("a", "b")
    sync = scenario.sync(other, scenario.group.generation)
    scenario.leave(other)
    assert code(scenario, join) is code(scenario, sync) is GroupCode.UNKNOWN_MEMBER_ID


def test_checks_of_a_commit() -> None:
    scenario = GroupScenario()
    assert scenario.commit("", -1) is GroupCode.NONE
    assert scenario.commit("a-1", 3) is GroupCode.GROUP_ID_NOT_FOUND
    assert scenario.commit("a-1", 3, named=False) is GroupCode.ILLEGAL_GENERATION
    leader, other = scenario.completing("a", "b")
    assert scenario.commit("who", 1) is GroupCode.UNKNOWN_MEMBER_ID
    assert scenario.commit(other, 7) is scenario.commit(other, -1) is GroupCode.ILLEGAL_GENERATION
    assert scenario.commit("", -1) is GroupCode.UNKNOWN_MEMBER_ID
    assert scenario.commit(other, 1) is GroupCode.REBALANCE_IN_PROGRESS
    scenario.sync_all()
    assert scenario.commit(other, 1) is GroupCode.NONE
    scenario.join(takes_member_id=False)
    assert scenario.commit(other, 1) is GroupCode.NONE
    scenario.leave(*scenario.group.members.by_id)
    assert scenario.commit(leader, 2) is GroupCode.UNKNOWN_MEMBER_ID


def test_a_lone_consumer_with_an_instance_commits_to_an_empty_group() -> None:
    """KAFKA-14201."""
    scenario = GroupScenario()
    scenario.leave(*scenario.stable("a"))
    assert scenario.commit("who", -1, "one") is GroupCode.NONE


@pytest.mark.parametrize("rebalances", [False, True])
def test_commits_keep_a_member(rebalances: bool) -> None:
    scenario = GroupScenario()
    (member,) = scenario.stable("a")
    if rebalances:
        scenario.join(takes_member_id=False)
    for _ in range(5):
        scenario.wait(SESSION_MS - 1)
        assert scenario.commit(member, 1) is GroupCode.NONE


# --- timers ---------------------------------------------------------------------------------------


def test_a_silent_member_is_put_out() -> None:
    scenario = GroupScenario()
    (member,) = scenario.stable("a")
    scenario.wait(SESSION_MS - 1)
    assert member in scenario.group.members.by_id
    scenario.wait(1)
    assert phase(scenario) is GroupPhase.EMPTY


def test_a_member_whose_request_is_parked_is_not_silent() -> None:
    scenario = GroupScenario()
    leader, other = scenario.stable("a", "b")
    scenario.join(leader)
    for _ in range(5):
        scenario.wait(SESSION_MS - 1)
        scenario.heartbeat(other, 1)
    assert leader in scenario.group.members.by_id
    scenario.join(other)
    scenario.sync(other, 2)
    for _ in range(5):
        scenario.wait(SESSION_MS - 1)
        scenario.heartbeat(leader, 2)
    assert other in scenario.group.members.by_id


def test_the_answer_to_a_parked_request_begins_a_session() -> None:
    scenario = GroupScenario()
    (member,) = scenario.preparing("a")
    scenario.wait(DELAY_MS)
    scenario.wait(SESSION_MS - 1)
    assert scenario.heartbeat(member, 1) is GroupCode.NONE


def test_first_joins_repeated_by_clients_that_gave_up_do_not_pile_up() -> None:
    """KAFKA-7610."""
    scenario = GroupScenario(replace(OPTIONS, session_max_ms=3_600_000))
    (member,) = scenario.stable("a")
    tickets = []
    for _ in range(100):
        tickets.append(scenario.join(takes_member_id=False, rebalance_timeout_ms=3_600_000))
        scenario.wait(SESSION_MS - 1)
        scenario.heartbeat(member, 1)
    assert len(scenario.group.members) <= 1 + 300_000 / (SESSION_MS - 1) + 1
    assert code(scenario, tickets[0]) is GroupCode.UNKNOWN_MEMBER_ID
    pending = [scenario.joined(scenario.join()).code for _ in range(100)]
    assert {*pending} == {GroupCode.MEMBER_ID_REQUIRED}
    assert len(scenario.group.members) <= 32


def test_a_member_that_dies_after_its_first_answer_still_expires() -> None:
    """KAFKA-9752."""
    scenario = GroupScenario()
    (member,) = scenario.preparing("a")
    scenario.wait(DELAY_MS)
    assert phase(scenario) is GroupPhase.COMPLETING
    scenario.wait(SESSION_MS)
    assert member not in scenario.group.members.by_id


@pytest.mark.parametrize("how", ["leaves", "times out", "joins"])
def test_the_joins_complete_without_an_id_that_was_given_out(how: str) -> None:
    """KAFKA-7909."""
    scenario = GroupScenario()
    (member,) = scenario.stable("a")
    pending = scenario.joined(scenario.join()).member_id
    waiting = scenario.join(member)
    assert code(scenario, waiting) is None
    match how:
        case "leaves":
            scenario.leave(pending)
        case "times out":
            scenario.wait(SESSION_MS)
        case "joins":
            scenario.join(pending)
    assert code(scenario, waiting) is GroupCode.NONE


def test_version_0_has_the_session_timeout_for_its_rebalances() -> None:
    """KAFKA-8653."""
    scenario = GroupScenario()
    ticket = scenario.join(takes_member_id=False, rebalance_timeout_ms=None)
    scenario.wait(DELAY_MS)
    member = scenario.joined(ticket).member_id
    scenario.sync_all()
    newcomer = scenario.join(takes_member_id=False, rebalance_timeout_ms=None)
    scenario.wait(SESSION_MS - 1)
    scenario.heartbeat(member, 1)
    assert code(scenario, newcomer) is None
    scenario.wait(1)
    assert code(scenario, newcomer) is GroupCode.NONE
    assert scenario.group.generation == 2


def test_who_sends_heartbeats_and_never_syncs_is_put_out() -> None:
    """KAFKA-12890."""
    scenario = GroupScenario()
    leader, other = scenario.preparing("a", "b")
    scenario.wait(2 * DELAY_MS)
    scenario.sync(leader, 1, {})
    assert phase(scenario) is GroupPhase.STABLE
    for _ in range(20):
        scenario.wait(REBALANCE_MS / 20)
        scenario.heartbeat(leader, scenario.group.generation)
        scenario.heartbeat(other, 1)
    assert other not in scenario.group.members.by_id
    assert phase(scenario) is GroupPhase.PREPARING


def test_the_longest_rebalance_timeout_counts() -> None:
    scenario = GroupScenario()
    slow = scenario.joined(_taken(scenario, rebalance_timeout_ms=30_000)).member_id
    newcomer = scenario.join(takes_member_id=False, rebalance_timeout_ms=40_000)
    for _ in range(8):
        assert code(scenario, newcomer) is None
        scenario.wait(5000)
        scenario.heartbeat(slow, 1)
    assert code(scenario, newcomer) is GroupCode.NONE
    assert [each.member_id for each in scenario.group.members] == [scenario.joined(newcomer).leader]


def _taken(scenario: GroupScenario, **changes: Any) -> int:
    ticket = scenario.join(takes_member_id=False, **changes)
    scenario.wait(DELAY_MS)
    scenario.sync_all()
    return ticket


def test_static_members_stay_and_a_leader_that_does_not_join_is_replaced() -> None:
    scenario = GroupScenario()
    static = scenario.joined(_taken(scenario, instance_id="one", session_timeout_ms=600_000)).member_id
    newcomer = scenario.join(takes_member_id=False)
    scenario.wait(REBALANCE_MS)
    answer = scenario.joined(newcomer)
    assert answer.leader == answer.member_id
    assert {each.member_id for each in answer.members} == {static, answer.member_id}


def test_nobody_joins_and_all_stay() -> None:
    scenario = GroupScenario()
    for instance_id in ("one", "two"):
        scenario.join(instance_id=instance_id, session_timeout_ms=600_000)
    (dynamic,) = scenario.preparing("a")
    scenario.wait(3 * DELAY_MS)
    scenario.sync_all()
    scenario.leave(dynamic)
    scenario.wait(3 * REBALANCE_MS)
    assert (phase(scenario), scenario.group.generation) == (GroupPhase.PREPARING, 1)
    for member in list(scenario.group.members):
        scenario.join(member.member_id, instance_id=member.instance_id, session_timeout_ms=600_000)
    assert scenario.group.generation == 2


def test_newcomers_of_an_empty_group_put_the_end_off() -> None:
    scenario = GroupScenario()
    first = scenario.join(takes_member_id=False)
    scenario.wait(DELAY_MS - 1)
    scenario.join(takes_member_id=False)
    scenario.wait(DELAY_MS)
    assert code(scenario, first) is None
    scenario.wait(1)
    assert code(scenario, first) is GroupCode.NONE


def test_newcomers_put_the_end_off_for_a_rebalance_timeout_in_all() -> None:
    scenario = GroupScenario()
    first = scenario.join(takes_member_id=False, rebalance_timeout_ms=10_000)
    for _ in range(9):
        scenario.wait(1000)
        scenario.join(takes_member_id=False, rebalance_timeout_ms=10_000)
    assert code(scenario, first) is None
    scenario.wait(1000)
    assert code(scenario, first) is GroupCode.NONE


def test_without_a_delay_the_first_member_has_a_group_at_once() -> None:
    scenario = GroupScenario(replace(OPTIONS, initial_delay_ms=0))
    assert code(scenario, scenario.join(takes_member_id=False)) is GroupCode.NONE


def test_the_protocol_that_most_members_prefer_of_those_that_all_know() -> None:
    scenario = GroupScenario()
    for names in ("abc", "cba", "bca", "cb"):
        protocols = [MemberProtocol(each, each.encode()) for each in names]
        scenario.join(takes_member_id=False, protocols=protocols)
    scenario.wait(4 * DELAY_MS)
    assert scenario.group.protocol == "b"
    lone = scenario.joined(1)
    assert {each.metadata for each in lone.members} == {b"b"}


# --- static members -------------------------------------------------------------------------------


def static_pair() -> tuple[GroupScenario, str, str]:
    """A stable group whose leader is static, as the other one is."""
    scenario = GroupScenario()
    tickets = [scenario.join(instance_id=each, client_id=each) for each in ("one", "two")]
    scenario.wait(2 * DELAY_MS)
    scenario.sync_all()
    leader, other = (scenario.joined(each).member_id for each in tickets)
    return scenario, leader, other


@pytest.mark.parametrize("skips", [False, True])
def test_a_static_member_that_starts_again_has_its_assignment_without_a_rebalance(skips: bool) -> None:
    scenario, leader, _ = static_pair()
    for instance_id, leads in (("two", False), ("one", True)):
        answer = scenario.joined(
            scenario.join(instance_id=instance_id, client_id=instance_id, skips_assignment=skips)
        )
        assert (answer.code, answer.generation, phase(scenario)) == (GroupCode.NONE, 1, GroupPhase.STABLE)
        assert answer.skip_assignment == (skips and leads)
        assert len(answer.members) == (2 if skips and leads else 0)
        if not skips:
            assert answer.leader == leader, "it would assign"
        sync = scenario.sync(answer.member_id, 1, instance_id=instance_id)
        assert scenario.synced(sync).assignment == instance_id.encode()


def test_the_new_id_of_a_static_member_is_stored_before_it_is_told() -> None:
    scenario, _, old = static_pair()
    scenario.holds_writes = True
    ticket = scenario.join(instance_id="two")
    assert code(scenario, ticket) is None
    scenario.store()
    new = scenario.joined(ticket).member_id
    assert new in {each.member_id for each in scenario.stored[-1].members}
    assert scenario.heartbeat(old, 1, "two") is GroupCode.FENCED_INSTANCE_ID


def test_a_new_id_that_cannot_be_stored_leaves_the_old_one() -> None:
    """KAFKA-18263."""
    scenario, _, old = static_pair()
    scenario.holds_writes = True
    ticket = scenario.join(instance_id="two", session_timeout_ms=60_000)
    scenario.move()
    assert code(scenario, ticket) is GroupCode.NOT_COORDINATOR
    assert scenario.heartbeat(old, 1, "two") is GroupCode.NONE
    assert scenario.group.members.by_id[old].session_timeout_ms == SESSION_MS
    scenario.wait(SESSION_MS)
    assert old not in scenario.group.members.by_id


def test_a_static_member_that_starts_again_has_its_new_timeouts() -> None:
    """KAFKA-14009."""
    scenario, leader, _ = static_pair()
    new = scenario.joined(scenario.join(instance_id="two", session_timeout_ms=60_000)).member_id
    for _ in range(5):
        scenario.wait(SESSION_MS - 1)
        scenario.heartbeat(leader, 1, "one")
    assert scenario.heartbeat(new, 1, "two") is GroupCode.NONE


def test_a_coordinator_that_comes_after_a_restart_of_a_static_member() -> None:
    """KAFKA-10284."""
    scenario, _, old = static_pair()
    new = scenario.joined(scenario.join(instance_id="two")).member_id
    scenario.move()
    assert scenario.heartbeat(new, 1, "two") is GroupCode.NONE
    assert scenario.heartbeat(old, 1, "two") is GroupCode.FENCED_INSTANCE_ID


def test_the_first_of_two_clients_with_one_instance_is_fenced_at_once() -> None:
    """KAFKA-8500."""
    scenario = GroupScenario()
    first = scenario.join(instance_id="one")
    second = scenario.join(instance_id="one")
    assert code(scenario, first) is GroupCode.FENCED_INSTANCE_ID
    scenario.wait(2 * DELAY_MS)
    assert code(scenario, second) is GroupCode.NONE
    assert len(scenario.group.members) == 1

    completing, _, _ = static_pair()
    leader = completing.group.members.by_id[completing.group.leader]
    completing.join(leader.member_id, instance_id="one")
    completing.join(instance_id="two")
    assert phase(completing) is GroupPhase.COMPLETING
    two = completing.group.members.of_instance("two")
    waiting = completing.sync(two or "", 2, instance_id="two")
    completing.join(instance_id="two")
    assert code(completing, waiting) is GroupCode.FENCED_INSTANCE_ID
    assert phase(completing) is GroupPhase.PREPARING


def test_a_static_member_that_starts_again_during_a_rebalance_is_not_silent() -> None:
    scenario, leader, _ = static_pair()
    scenario.join(takes_member_id=False)
    waiting = scenario.join(instance_id="two")
    for _ in range(5):
        scenario.wait(SESSION_MS - 1)
        scenario.heartbeat(leader, 1, "one")
    assert code(scenario, waiting) is None


def test_a_static_member_that_starts_again_with_another_protocol_begins_a_rebalance() -> None:
    scenario = GroupScenario()
    both = [MemberProtocol("range", b"r"), MemberProtocol("sticky", b"s")]
    scenario.join(instance_id="one", protocols=both)
    scenario.wait(DELAY_MS)
    scenario.sync_all()
    scenario.join(instance_id="one", protocols=[both[1]])
    assert (scenario.group.protocol, scenario.group.generation) == ("sticky", 2)


def test_a_static_member_goes_with_its_session_or_an_operator() -> None:
    scenario, _, _ = static_pair()
    assert scenario.leave("", instance_id="two") == [GroupCode.NONE]
    scenario.wait(REBALANCE_MS)
    assert phase(scenario) is GroupPhase.EMPTY


# --- storing --------------------------------------------------------------------------------------


def test_a_generation_is_stored_before_anybody_knows_it() -> None:
    scenario = GroupScenario()
    scenario.holds_writes = True
    ticket = scenario.join(takes_member_id=False)
    scenario.wait(DELAY_MS)
    assert code(scenario, ticket) is None
    scenario.store()
    assert code(scenario, ticket) is GroupCode.NONE
    record = scenario.stored[-1]
    assert (record.generation, record.is_assigned, len(record.members)) == (1, False, 1)


def test_an_assignment_is_stored_before_anybody_knows_it() -> None:
    scenario = GroupScenario()
    (member,) = scenario.preparing("a")
    scenario.wait(DELAY_MS)
    scenario.holds_writes = True
    ticket = scenario.sync(member, 1, {member: b"all"})
    again = scenario.sync(member, 1, {member: b"nothing"})
    assert code(scenario, ticket) is code(scenario, again) is None
    assert phase(scenario) is GroupPhase.COMPLETING
    scenario.store()
    assert scenario.synced(ticket).assignment == scenario.synced(again).assignment == b"all"
    assert [each.assignment for each in scenario.stored[-1].members] == [b"all"]


def test_an_assignment_of_a_rebalance_that_was_overtaken_is_told_to_nobody() -> None:
    scenario = GroupScenario()
    (member,) = scenario.preparing("a")
    scenario.wait(DELAY_MS)
    scenario.holds_writes = True
    ticket = scenario.sync(member, 1, {member: b"all"})
    scenario.join(takes_member_id=False)
    scenario.store()
    assert code(scenario, ticket) is GroupCode.REBALANCE_IN_PROGRESS
    assert phase(scenario) is GroupPhase.PREPARING


def test_nobody_expires_while_something_is_being_stored() -> None:
    scenario = GroupScenario()
    (member,) = scenario.preparing("a")
    scenario.holds_writes = True
    scenario.wait(DELAY_MS)
    scenario.wait(SESSION_MS + 1)
    scenario.store()
    scenario.wait(SESSION_MS - 1)
    assert scenario.heartbeat(member, 1) is GroupCode.NONE


# --- new coordinators -----------------------------------------------------------------------------


def test_a_new_coordinator_gives_each_member_a_full_session() -> None:
    scenario = GroupScenario()
    (member,) = scenario.stable("a")
    scenario.wait(SESSION_MS - 1)
    scenario.move()
    assert phase(scenario) is GroupPhase.STABLE
    assert scenario.synced(scenario.sync(member, 1)).assignment == b"a"
    scenario.move()
    scenario.wait(SESSION_MS - 1)
    assert scenario.heartbeat(member, 1) is GroupCode.NONE


def test_a_new_coordinator_goes_on_in_a_generation_without_an_assignment() -> None:
    scenario = GroupScenario()
    leader, other = scenario.preparing("a", "b")
    scenario.wait(2 * DELAY_MS)
    lost = scenario.sync(other, 1)
    scenario.move()
    assert code(scenario, lost) is GroupCode.NOT_COORDINATOR
    assert phase(scenario) is GroupPhase.COMPLETING
    sync = scenario.sync(other, 1)
    scenario.sync(leader, 1, {leader: b"A", other: b"B"})
    assert scenario.synced(sync).assignment == b"B"


def test_a_generation_whose_members_never_come_back_ends() -> None:
    scenario = GroupScenario()
    scenario.preparing("a", "b")
    scenario.wait(2 * DELAY_MS)
    scenario.move()
    scenario.wait(SESSION_MS)
    assert phase(scenario) is GroupPhase.EMPTY


def test_a_new_coordinator_waits_for_syncs_no_longer_than_the_last_one() -> None:
    scenario = GroupScenario()
    _, other = scenario.completing("a", "b")
    scenario.sync(other, 1)
    scenario.move()
    for _ in range(10):
        scenario.wait(REBALANCE_MS / 10)
        for member in list(scenario.group.members.by_id):
            scenario.heartbeat(member, 1)
    assert phase(scenario) is GroupPhase.EMPTY


def test_no_generation_is_given_out_twice() -> None:
    scenario = GroupScenario()
    scenario.stable("a", "b")
    scenario.holds_writes = True
    for member in list(scenario.group.members.by_id):
        scenario.join(member)
    scenario.move()
    scenario.holds_writes = False
    assert scenario.group.generation == 1, "nobody was told of another one"
    for member in list(scenario.group.members.by_id):
        scenario.join(member)
    assert scenario.group.generation == 2


def test_a_new_coordinator_with_a_lower_limit_rebalances() -> None:
    scenario = GroupScenario()
    members = scenario.stable("a", "b", "c")
    scenario.options = replace(OPTIONS, members_max=2)
    scenario.move()
    assert phase(scenario) is GroupPhase.PREPARING
    codes = [code(scenario, scenario.join(each)) for each in members]
    assert codes == [None, None, GroupCode.GROUP_MAX_SIZE_REACHED]
    assert len(scenario.group.members) == 2


def test_a_new_coordinator_knows_an_empty_group() -> None:
    scenario = GroupScenario()
    scenario.leave(*scenario.stable("a"))
    scenario.move()
    assert (phase(scenario), scenario.group.generation) == (GroupPhase.EMPTY, 2)
    assert scenario.commit("a-1", 1) is GroupCode.UNKNOWN_MEMBER_ID


def test_timers_of_members_that_are_gone_do_nothing() -> None:
    """KAFKA-8896."""
    scenario = GroupScenario()
    (member,) = scenario.stable("a")
    before = scenario.group
    scenario.move()
    before.advance(10 * SESSION_MS)
    assert not before.take().answers
    scenario.leave(member)
    scenario.group.advance(10 * SESSION_MS)
    assert phase(scenario) is GroupPhase.EMPTY


def test_nothing_is_lost_with_an_idle_group() -> None:
    scenario = GroupScenario()
    assert idle(scenario)
    (member,) = scenario.preparing("a")
    assert not idle(scenario)
    scenario.wait(DELAY_MS)
    scenario.holds_writes = True
    scenario.leave(member)
    assert not idle(scenario)
    scenario.store()
    assert idle(scenario)
    assert scenario.group.deadline_ms == float("inf")


def test_generations_begin_anew_behind_the_largest() -> None:
    stored = StoredClassicGroup((1 << 31) - 1, "consumer", "", "", False, [])
    scenario = GroupScenario(stored=stored)
    scenario.stable("a")
    assert scenario.group.generation == 1


def test_a_group_is_left_by_several_members_in_one_rebalance() -> None:
    scenario = GroupScenario()
    members = scenario.stable("a", "b", "c", "d")
    group: ClassicGroup = scenario.group
    codes = group.leave([LeavingMember(each, None) for each in members[:3]], scenario.now_ms)
    assert codes == [GroupCode.NONE] * 3
    scenario.join(members[3])
    assert (group.generation, len(group.members)) == (2, 1)
