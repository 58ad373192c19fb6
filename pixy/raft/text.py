"""Text form of what the core's traces name, identical to etcd's.

Node ids are hexadecimal in configurations, decimal in the lists of a `ConfState`. Data is quoted
like Go's %q.
"""

from collections.abc import Iterable

from pixy.raft.messages import (
    ConfChange,
    ConfChangeTransition,
    ConfChangeType,
    ConfChangeV2,
    ConfState,
    MessageType,
    StateType,
)


def _camel(name: str) -> str:
    return "".join([part.capitalize() for part in name.split("_")])


_MESSAGE_TYPE_NAMES = {kind: "Msg" + _camel(kind.name) for kind in MessageType}
_STATE_NAMES = {state: "State" + _camel(state.name) for state in StateType}
_TRANSITION_NAMES = {kind: "ConfChangeTransition" + _camel(kind.name) for kind in ConfChangeTransition}
_CHANGE_NAMES = {kind: "ConfChange" + _camel(kind.name) for kind in ConfChangeType}
_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}


def message_type_name(kind: MessageType) -> str:
    """For instance `MsgAppResp`."""
    return _MESSAGE_TYPE_NAMES[kind]


def state_name(state: StateType) -> str:
    """For instance `StatePreCandidate`."""
    return _STATE_NAMES[state]


def quote(data: bytes) -> str:
    """Bytes quoted like Go's %q: printable UTF-8 as is, everything else escaped."""
    return '"' + "".join([_quote_char(char) for char in data.decode("utf-8", "surrogateescape")]) + '"'


def _quote_char(char: str) -> str:
    code = ord(char)
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


# --- configurations and their changes -------------------------------------------------------------


def describe_conf_state(state: ConfState) -> str:
    """As `Voters:[1 2] VotersOutgoing:[] Learners:[3] LearnersNext:[] AutoLeave:false`."""
    return (
        f"Voters:{_list(state.voters)} VotersOutgoing:{_list(state.voters_outgoing)} Learners:{_list(state.learners)} "
        f"LearnersNext:{_list(state.learners_next)} AutoLeave:{_bool(state.auto_leave)}"
    )


def _list(numbers: Iterable[int]) -> str:
    return "[" + " ".join([str(number) for number in numbers]) + "]"


def _bool(value: bool) -> str:
    return "true" if value else "false"


def describe_config(config: ConfState) -> str:
    """For instance `voters=(1 2)&&(2 3) learners=(4) learners_next=(5) autoleave`."""
    text = "voters=" + _ids(config.voters)
    if config.voters_outgoing:
        text += "&&" + _ids(config.voters_outgoing)
    if config.learners:
        text += " learners=" + _ids(config.learners)
    if config.learners_next:
        text += " learners_next=" + _ids(config.learners_next)
    return text + " autoleave" if config.auto_leave else text


def describe_peers(voters: Iterable[int]) -> str:
    """For instance `1,2,3`."""
    return ",".join([f"{node_id:x}" for node_id in voters])


def _ids(ids: Iterable[int]) -> str:
    return "(" + " ".join([f"{node_id:x}" for node_id in sorted(ids)]) + ")"


def describe_conf_change(change: ConfChange | ConfChangeV2) -> str:
    """For instance `transition:ConfChangeTransitionAuto changes:{type:ConfChangeAddNode
    node_id:3}`.
    """
    v2 = change.as_v2() if isinstance(change, ConfChange) else change
    text = "transition:" + _TRANSITION_NAMES[v2.transition]
    for kind, node_id in v2.changes:
        text += f" changes:{{type:{_CHANGE_NAMES[kind]} node_id:{node_id}}}"
    return text + f" context:{quote(v2.context)}" if v2.context else text
