"""Text formats that the reference traces do not cover, and round trips of everything that can be
parsed.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.raft import (
    ConfChange,
    ConfChangeError,
    ConfChangeSingle,
    ConfChangeTransition,
    ConfChangeType,
    ConfChangeV2,
    ConfState,
    Entry,
    HardState,
    Message,
    MessageType,
    RaftEntryType,
    ReadState,
    Snapshot,
)
from pixy.raft.text import (
    describe_conf_change,
    describe_conf_state,
    describe_config,
    message_type_name,
    quote,
)
from pixy.raft.wire import encode_conf_change
from tests.raft.etcd import StorageMessage
from tests.raft.etcd.ready import APPEND_THREAD, APPLY_THREAD
from tests.raft.etcd.text import (
    describe_conf_changes,
    describe_entry,
    describe_hard_state,
    describe_majority,
    describe_message,
    describe_read_states,
    parse_conf_changes,
)

SINGLES = st.lists(
    st.builds(ConfChangeSingle, st.sampled_from(ConfChangeType), st.integers(0, 2**64 - 1))
).map(tuple)


@pytest.mark.slow
@given(SINGLES)
def test_formatted_changes_can_be_parsed(changes: tuple[ConfChangeSingle, ...]) -> None:
    assert parse_conf_changes(describe_conf_changes(changes)) == changes


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("v1 x2", "unknown input: x2"),
        ("v", "unknown token v"),
        ("v-1", 'strconv.ParseUint: parsing "-1": invalid syntax'),
        ("v18446744073709551616", 'strconv.ParseUint: parsing "18446744073709551616": value out of range'),
    ],
)
def test_invalid_changes_are_rejected_with_the_reason(text: str, error: str) -> None:
    with pytest.raises(ConfChangeError) as raised:
        parse_conf_changes(text)
    assert str(raised.value) == error


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", '""'),
        (b'a"b\\', r'"a\"b\\"'),
        (b"\a\b\f\n\r\t\v\x00\x1f\x7f", r'"\a\b\f\n\r\t\v\x00\x1f\x7f"'),
        ("é世😀".encode(), '"é世😀"'),
        (b"\xff\xc3", r'"\xff\xc3"'),
        ("\u00a0".encode(), r'"\u00a0"'),
        (b"\xe2\x80\xa8", r'"\u2028"'),
        ("\U000e0001".encode(), r'"\U000e0001"'),
    ],
)
def test_data_is_quoted_like_in_go(data: bytes, text: str) -> None:
    assert quote(data) == text


def test_ids_are_hexadecimal_in_configurations_and_decimal_in_their_stored_form() -> None:
    state = ConfState((10, 11), (12,), (11, 255), (255,), True)
    assert describe_config(state) == "voters=(a b)&&(b ff) learners=(c) learners_next=(ff) autoleave"
    assert describe_conf_state(state) == (
        "Voters:[10 11] VotersOutgoing:[11 255] Learners:[12] LearnersNext:[255] AutoLeave:true"
    )
    assert describe_hard_state(HardState(2, 17, 3)) == "Term:2 Vote:17 Commit:3"


def test_a_message_names_nodes_in_hexadecimal_and_threads_by_name() -> None:
    assert describe_message(Message(MessageType.HUP, 26, 0)) == "None->1a MsgHup Term:0 Log:0/0"
    assert describe_message(Message(MessageType.STORAGE_APPLY, APPLY_THREAD, APPEND_THREAD)).startswith(
        "AppendThread->ApplyThread MsgStorageApply "
    )


def test_a_message_shows_fields_with_other_than_default_values() -> None:
    message = StorageMessage(
        MessageType.APP,
        2,
        1,
        term=3,
        log_term=2,
        index=5,
        commit=4,
        vote=6,
        reject=True,
        reject_hint=7,
        entries=[Entry(3, 6, data=b"a"), Entry(3, 7)],
        snapshot=Snapshot(5, 2, ConfState((1,))),
        responses=[Message(MessageType.APP_RESP, 1, 2, term=3, entries=[Entry(3, 6), Entry(3, 7)])],
    )
    assert describe_message(message).splitlines() == [
        "1->2 MsgApp Term:3 Log:2/5 Rejected (Hint: 7) Commit:4 Vote:6 Entries:[",
        '  3/6 EntryNormal "a"',
        '  3/7 EntryNormal ""',
        "]",
        "  Snapshot: Index:5 Term:2 ConfState:Voters:[1] VotersOutgoing:[] Learners:[] LearnersNext:[] AutoLeave:false "
        "Responses:[",
        "  2->1 MsgAppResp Term:3 Log:0/0 Entries:[",
        '    3/6 EntryNormal ""',
        '    3/7 EntryNormal ""',
        "  ]",
        "]",
    ]


def test_names_of_message_types_are_raftpbs() -> None:
    assert [message_type_name(MessageType(number)) for number in (0, 4, 14, 16, 18, 20, 23)] == [
        "MsgHup",
        "MsgAppResp",
        "MsgTimeoutNow",
        "MsgReadIndexResp",
        "MsgPreVoteResp",
        "MsgStorageAppendResp",
        "MsgForgetLeader",
    ]


def test_configuration_change_entries_show_the_change() -> None:
    leave = Entry(1, 2, RaftEntryType.CONF_CHANGE_V2)
    assert describe_entry(leave) == "1/2 EntryConfChangeV2"
    assert describe_entry(Entry(1, 2, data=b"d", kind=3)) == '1/2 EntryNormal kind:3 "d"'
    assert describe_entry(Entry(1, 2, RaftEntryType.CONF_CHANGE)) == "1/2 EntryConfChange v0"
    data = encode_conf_change(ConfChange(ConfChangeType.UPDATE_NODE, 4))
    assert describe_entry(Entry(1, 2, RaftEntryType.CONF_CHANGE, data)) == "1/2 EntryConfChange u4"


def test_a_change_is_described_with_its_context() -> None:
    change = ConfChangeV2(
        (ConfChangeSingle(ConfChangeType.REMOVE_NODE, 10),), ConfChangeTransition.JOINT_EXPLICIT, b"why"
    )
    assert describe_conf_change(change) == (
        'transition:ConfChangeTransitionJointExplicit changes:{type:ConfChangeRemoveNode node_id:10} context:"why"'
    )


def test_read_states_show_index_and_bytes() -> None:
    assert describe_read_states([ReadState(11, b"ctx"), ReadState(12, b"")]) == "[{11 [99 116 120]} {12 []}]"


def test_a_majority_shows_ranks_and_hexadecimal_ids() -> None:
    assert describe_majority({1, 26}, {26: 7}.get) == "      idx\n?       0    (id=1)\nx>      7    (id=1a)\n"
    assert describe_majority(set(), {1: 1}.get) == "<empty majority quorum>"
