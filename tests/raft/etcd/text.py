"""etcd's text form of entries, messages and the rest of what its transcripts show.

Node ids are hexadecimal in messages, decimal in hard states and soft states. No text ends in a
newline, except multi-line ones: `describe_entries`, `describe_progress_map`, a non-empty
`describe_ready`, a non-empty `describe_majority`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from pixy.raft import (
    NONE,
    ConfChange,
    ConfChangeError,
    ConfChangeSingle,
    ConfChangeType,
    Entry,
    HardState,
    MalformedMessage,
    Message,
    RaftEntryType,
    ReadState,
    Snapshot,
    SoftState,
    decode_conf_change,
)
from pixy.raft.progress import Progress
from pixy.raft.quorum import INFINITY, AckedIndex
from pixy.raft.text import describe_conf_state, message_type_name, quote, state_name
from tests.raft.etcd.ready import APPEND_THREAD, APPLY_THREAD, Ready, StorageMessage

_ENTRY_TYPE_NAMES = {
    RaftEntryType.NORMAL: "EntryNormal",
    RaftEntryType.CONF_CHANGE: "EntryConfChange",
    RaftEntryType.CONF_CHANGE_V2: "EntryConfChangeV2",
}
_CHANGE_LETTERS = {
    "v": ConfChangeType.ADD_NODE,
    "l": ConfChangeType.ADD_LEARNER_NODE,
    "r": ConfChangeType.REMOVE_NODE,
    "u": ConfChangeType.UPDATE_NODE,
}
_LETTERS = {kind: letter for letter, kind in _CHANGE_LETTERS.items()}


def _list(numbers: Iterable[int]) -> str:
    return "[" + " ".join([str(number) for number in numbers]) + "]"


def describe_conf_changes(changes: Iterable[ConfChangeSingle]) -> str:
    """For instance `v1 l2 r3 u4`: voter, learner, removed, updated."""
    return " ".join([f"{_LETTERS[kind]}{node_id}" for kind, node_id in changes])


def parse_conf_changes(text: str) -> tuple[ConfChangeSingle, ...]:
    """The inverse of `describe_conf_changes`.

    Raises:
        ConfChangeError: a part is invalid.
    """
    changes = []
    for token in text.split():
        if len(token) < 2:
            raise ConfChangeError(f"unknown token {token}")
        if token[0] not in _CHANGE_LETTERS:
            raise ConfChangeError(f"unknown input: {token}")
        if not (token[1:].isascii() and token[1:].isdigit()):
            raise ConfChangeError(f'strconv.ParseUint: parsing "{token[1:]}": invalid syntax')
        if int(token[1:]) >= 2**64:
            raise ConfChangeError(f'strconv.ParseUint: parsing "{token[1:]}": value out of range')
        changes.append(ConfChangeSingle(_CHANGE_LETTERS[token[0]], int(token[1:])))
    return tuple(changes)


# --- entries, states, messages --------------------------------------------------------------------


def describe_entry(entry: Entry) -> str:
    """For instance `2/7 EntryNormal "data"`, `2/8 EntryConfChangeV2 v3 l4`, or with a kind `2/9
    EntryNormal kind:3 "data"`.
    """
    text = f"{entry.term}/{entry.index} {_ENTRY_TYPE_NAMES[entry.type]}"
    if entry.kind:
        text += f" kind:{entry.kind}"
    if entry.type is RaftEntryType.NORMAL:
        return f"{text} {quote(bytes(entry.data))}"
    try:
        change = decode_conf_change(entry)
    except MalformedMessage as error:
        return f"{text} {error}"
    v2 = change.as_v2() if isinstance(change, ConfChange) else change
    return f"{text} {describe_conf_changes(v2.changes)}" if v2.changes else text


def describe_entries(entries: Iterable[Entry]) -> str:
    """One line per entry."""
    return "".join([describe_entry(entry) + "\n" for entry in entries])


def describe_hard_state(state: HardState) -> str:
    """For instance `Term:2 Vote:1 Commit:11`."""
    vote = f" Vote:{state.vote}" if state.vote else ""
    return f"Term:{state.term}{vote} Commit:{state.commit}"


def describe_soft_state(state: SoftState) -> str:
    """For instance `Lead:1 State:StateFollower`."""
    return f"Lead:{state.lead} State:{state_name(state.state)}"


def describe_snapshot(snapshot: Snapshot) -> str:
    """Position and configuration, without the data."""
    return f"Index:{snapshot.index} Term:{snapshot.term} ConfState:{describe_conf_state(snapshot.conf_state)}"


def describe_read_states(states: Iterable[ReadState]) -> str:
    """For instance `[{11 [99 116 120]}]`: index and bytes of the request."""
    return "[" + " ".join([f"{{{state.read_index} {_list(state.context)}}}" for state in states]) + "]"


def _target(node_id: int) -> str:
    names = {NONE: "None", APPEND_THREAD: "AppendThread", APPLY_THREAD: "ApplyThread"}
    return names.get(node_id) or f"{node_id:x}"


def describe_message(message: Message, indent: str = "") -> str:
    """One line, unless the message has several entries, a snapshot or responses: those follow on
    lines of their own.

    Args:
        message: the message.
        indent: prefix of each line.
    """
    m = message
    text = f"{indent}{_target(m.sender)}->{_target(m.to)} {message_type_name(m.type)} Term:{m.term} Log:{m.log_term}/{m.index}"
    if m.reject:
        text += f" Rejected (Hint: {m.reject_hint})"
    if m.commit:
        text += f" Commit:{m.commit}"
    vote, responses = (m.vote, m.responses) if isinstance(m, StorageMessage) else (NONE, ())
    if vote:
        text += f" Vote:{vote}"
    if len(m.entries) == 1:
        text += f" Entries:[{describe_entry(m.entries[0])}]"
    elif m.entries:
        text += (
            " Entries:["
            + "".join([f"\n{indent}  {describe_entry(entry)}" for entry in m.entries])
            + f"\n{indent}]"
        )
    if m.snapshot is not None and m.snapshot.index:
        text += f"\n{indent}  Snapshot: {describe_snapshot(m.snapshot)}"
    if responses:
        text += (
            " Responses:["
            + "".join(["\n" + describe_message(one, indent + "  ") for one in responses])
            + f"\n{indent}]"
        )
    return text


def describe_ready(ready: Ready) -> str:
    """One paragraph per non-empty part, `<empty Ready>` if there is none."""
    text = ""
    if ready.soft_state is not None:
        text += describe_soft_state(ready.soft_state) + "\n"
    if ready.hard_state is not None:
        text += f"HardState {describe_hard_state(ready.hard_state)}\n"
    if ready.read_states:
        text += f"ReadStates {describe_read_states(ready.read_states)}\n"
    if ready.entries:
        text += "Entries:\n" + describe_entries(ready.entries)
    if ready.snapshot is not None:
        text += f"Snapshot {describe_snapshot(ready.snapshot)}\n"
    if ready.committed_entries:
        text += "CommittedEntries:\n" + describe_entries(ready.committed_entries)
    if ready.messages:
        text += "Messages:\n" + "".join([describe_message(message) + "\n" for message in ready.messages])
    return f"Ready MustSync={str(ready.must_sync).lower()}:\n{text}" if text else "<empty Ready>"


def describe_progress_map(progress: Mapping[int, Progress]) -> str:
    """One line per node, ascending; empty if there are none."""
    return "".join([f"{node_id}: {progress[node_id]}\n" for node_id in sorted(progress)])


# --- quorums --------------------------------------------------------------------------------------


def describe_index(index: int) -> str:
    """The number, or the sign of infinity."""
    return "∞" if index == INFINITY else str(index)


def describe_majority(voters: Collection[int], acked: AckedIndex) -> str:
    """One bar per voter, as long as the number of voters with a lower index."""
    if not voters:
        return "<empty majority quorum>"
    indexes: Sequence[int] = [acked(voter) or 0 for voter in voters]
    width = len(indexes)
    lines = [" " * width + "    idx\n"]
    for voter in sorted(voters):
        index = acked(voter)
        if index is None:
            bar = "?" + " " * width
        else:
            rank = sum(1 for other in indexes if other < index)
            bar = "x" * rank + ">" + " " * (width - rank)
        lines.append(f"{bar} {index or 0:5d}    (id={voter:x})\n")
    return "".join(lines)
