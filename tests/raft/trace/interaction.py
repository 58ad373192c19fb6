"""Traces of whole clusters: nodes with in-memory storage, a network that delivers on command,
storage threads that work on command.

The state machine of each node appends the data of every applied entry to one string. Each apply
creates a snapshot; a node sends its latest one.
"""

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from functools import partial
from random import Random
from typing import Any

from pixy.raft import (
    NO_LIMIT,
    ConfChange,
    ConfChangeTransition,
    ConfChangeV2,
    Entry,
    HardState,
    LogPosition,
    Message,
    MessageType,
    NotAppended,
    ProposalDropped,
    RaftBug,
    RaftConfig,
    RaftEntryType,
    RaftError,
    ReadOnlyOption,
    Snapshot,
    StateType,
    decode_conf_change,
)
from pixy.raft.text import message_type_name, state_name
from tests.raft.etcd import EtcdNode, EtcdOptions, Ready, StorageMessage
from tests.raft.etcd.text import (
    describe_entries,
    describe_message,
    describe_progress_map,
    describe_ready,
    parse_conf_changes,
)
from tests.raft.memory_storage import MemoryStorage
from tests.raft.trace.output import Output
from tests.raft.trace.script import BadScript, Case

_MESSAGE_TYPES = {message_type_name(kind): kind for kind in MessageType}
_TRANSITIONS = {
    "auto": ConfChangeTransition.AUTO,
    "implicit": ConfChangeTransition.JOINT_IMPLICIT,
    "explicit": ConfChangeTransition.JOINT_EXPLICIT,
}
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False, "t": True, "f": False}
_ROUNDS_MAX = 1000
"""Rounds of `stabilize`: those of a trace need twenty or so."""
_DEFAULTS = RaftConfig(election_tick=3, heartbeat_tick=1, max_inflight_messages=2**31 - 1)


class CommandError(Exception):
    """The harness rejects a command; the text is part of the output."""


class _Storage(MemoryStorage):
    """Returns the latest snapshot of the history, not the one that the log begins with."""

    def __init__(self, history: list[Snapshot]) -> None:
        super().__init__()
        self._history = history

    def snapshot(self) -> Snapshot:
        return self._history[-1]


class _Node:
    """A node, its storage, its state machine's history and the work of its threads."""

    def __init__(
        self, node_id: int, options: EtcdOptions, first: Snapshot, applied: int, output: Output
    ) -> None:
        self.id = node_id
        self.history = [first]
        self.storage = _Storage(self.history)
        if first != Snapshot():
            self.storage.apply_snapshot(first)
        self.append_work: list[StorageMessage] = []
        self.apply_work: list[StorageMessage] = []
        self.raft_node = EtcdNode(node_id, self.storage, options, Random(node_id), applied, output)

    def persist(self, state: HardState | None, snapshot: Snapshot | None, entries: list[Entry]) -> None:
        """Hard state first, then a snapshot or entries."""
        if state is not None:
            self.storage.set_hard_state(state)
        if snapshot is None:
            self.storage.append(entries)
        elif entries:
            raise CommandError("can't apply snapshot and entries at the same time")
        else:
            self.storage.apply_snapshot(snapshot)

    def apply(self, entries: Iterable[Entry]) -> None:
        """Creates a snapshot for each entry."""
        for entry in entries:
            update, state = entry.data, self.history[-1].conf_state
            if entry.type is not RaftEntryType.NORMAL:
                change = decode_conf_change(entry)
                update = change.context
                state = self.raft_node.apply_conf_change(change, entry.index)
            self.history.append(Snapshot(entry.index, entry.term, state, self.history[-1].data + update))


class InteractionTrace:
    """A cluster that grows by `add-nodes`.

    Args:
        short_way: proposals take `RaftNode.append_payload` wherever a driver may.
    """

    def __init__(self, *, short_way: bool = False) -> None:
        self._options = EtcdOptions(_DEFAULTS, short_way=short_way)
        self._nodes: list[_Node] = []
        self._messages: list[Message] = []
        self._output = Output()
        self._commands: dict[str, Callable[[Case], None]] = {
            "_breakpoint": lambda _: None,
            "add-nodes": self._add_nodes,
            "campaign": lambda case: self._node(case).raft_node.campaign(),
            "compact": self._compact,
            "deliver-msgs": self._deliver_messages,
            "forget-leader": lambda case: self._node(case).raft_node.forget_leader(),
            "log-level": lambda case: self._log_level(_key(case, 0)),
            "process-append-thread": lambda case: self._each(
                case, "processing append thread", self._process_append
            ),
            "process-apply-thread": lambda case: self._each(
                case, "processing apply thread", self._process_apply
            ),
            "process-ready": lambda case: self._each(case, "handling Ready", self._process_ready),
            "propose": lambda case: _check(self._node(case).raft_node.propose(_key(case, 1).encode())),
            "propose-conf-change": self._propose_conf_change,
            "raft-log": lambda case: self._print_log(self._node(case)),
            "raft-state": self._raft_state,
            "report-unreachable": self._report_unreachable,
            "send-snapshot": self._send_snapshot,
            "set-randomized-election-timeout": self._set_election_timeout,
            "stabilize": self._stabilize_command,
            "status": self._status,
            "tick-election": lambda case: self._tick(case, _DEFAULTS.election_tick),
            "tick-heartbeat": lambda case: self._tick(case, _DEFAULTS.heartbeat_tick),
            "transfer-leadership": self._transfer_leadership,
        }

    def __call__(self, case: Case) -> str:
        """Output of a command: handlers' output, nodes' traces, and an error; `ok` if there is
        none.
        """
        self._output.clear()
        error = ""
        try:
            if case.command not in self._commands:
                raise CommandError("unknown command")
            self._commands[case.command](case)
        except RaftBug as bug:
            error = f"panic: {bug}"
        except (RaftError, CommandError) as refused:
            error = str(refused)
        return (self._output.text() + error) or "ok"

    # --- arguments -------------------------------------------------------------------------------

    def _node(self, case: Case) -> _Node:
        return self._by_id(_number(_key(case, 0)))

    def _by_id(self, node_id: int) -> _Node:
        if not 1 <= node_id <= len(self._nodes):
            raise BadScript(f"there is no node {node_id}")
        return self._nodes[node_id - 1]

    def _listed(self, case: Case) -> list[_Node]:
        return [self._by_id(_number(key)) for key, values in case.arguments if not values]

    def _each(self, case: Case, what: str, process: Callable[[_Node], None]) -> None:
        nodes = self._listed(case)
        for node in nodes:
            if len(nodes) == 1:
                process(node)
            else:
                self._under_heading(node, what, process)

    def _under_heading(self, node: _Node, what: str, process: Callable[[_Node], None]) -> None:
        self._output.write(f"> {node.id} {what}\n")
        with self._output.indented():
            process(node)

    # --- commands that create and change nodes ---------------------------------------------------

    def _add_nodes(self, case: Case) -> None:
        first, applied, made = Snapshot(), 0, self._options
        # A read-only option is valid only together with others, which may follow it.
        options = sorted(case.arguments[1:], key=lambda argument: argument.key == "read-only")
        for key, values in options:
            if key in ("voters", "learners"):
                ids = tuple([_number(value) for value in values])
                state = (
                    replace(first.conf_state, voters=ids)
                    if key == "voters"
                    else replace(first.conf_state, learners=ids)
                )
                first = replace(first, conf_state=state)
            elif key == "index":
                applied = _number(values[0])
                first = replace(first, index=applied)
            elif key == "content":
                first = replace(first, data=values[0].encode())
            else:
                made = _with_option(made, key, values[0])
        if first != Snapshot():
            if first.index <= 1:
                raise CommandError("index must be specified as > 1 due to bootstrap")
            first = replace(first, term=1)
        for _ in range(_number(_key(case, 0))):
            self._nodes.append(_Node(len(self._nodes) + 1, made, first, applied, self._output))

    def _compact(self, case: Case) -> None:
        node = self._node(case)
        node.storage.compact(_number(_key(case, 1)))
        self._print_log(node)

    def _set_election_timeout(self, case: Case) -> None:
        for key, values in case.arguments[1:]:
            if key != "timeout":
                raise BadScript(f"unknown argument {key}")
            self._node(case).raft_node.raft.randomized_election_timeout = _number(values[0])

    def _tick(self, case: Case, ticks: int) -> None:
        for _ in range(ticks):
            self._node(case).raft_node.tick()

    def _report_unreachable(self, case: Case) -> None:
        nodes = self._listed(case)
        if len(nodes) != 2:
            raise CommandError(
                "must specify exactly two node indexes: node on which to report, and reported node"
            )
        nodes[0].raft_node.report_unreachable(nodes[1].id)

    def _transfer_leadership(self, case: Case) -> None:
        ends = dict(case.arguments)
        if ends.keys() != {"from", "to"}:
            raise BadScript("transfer-leadership takes from= and to=")
        self._by_id(_number(ends["from"][0])).raft_node.transfer_leader(_number(ends["to"][0]))

    def _propose_conf_change(self, case: Case) -> None:
        v1, transition = False, ConfChangeTransition.AUTO
        for key, values in case.arguments[1:]:
            for value in values:
                if key == "v1":
                    v1 = _boolean(value)
                elif key != "transition":
                    raise CommandError(f"unknown command {key}")
                elif value not in _TRANSITIONS:
                    raise CommandError(f"unknown transition {value}")
                else:
                    transition = _TRANSITIONS[value]
        changes = parse_conf_changes(case.input)
        change: ConfChange | ConfChangeV2 = ConfChangeV2(changes, transition)
        if v1:
            if len(changes) != 1 or transition is not ConfChangeTransition.AUTO:
                raise CommandError("v1 conf change can only have one operation and no transition")
            change = ConfChange(changes[0].type, changes[0].node_id)
        _check(self._node(case).raft_node.propose_conf_change(change))

    # --- commands that only read -----------------------------------------------------------------

    def _log_level(self, level: str) -> None:
        if not self._output.set_level(level):
            raise CommandError(f"log levels must be either of [{' '.join(self._output.LEVELS)}]")

    def _print_log(self, node: _Node) -> None:
        first, last = node.storage.first_index(), node.storage.last_index()
        if last < first:
            self._output.write(f"log is empty: first index={first}, last index={last}")
        else:
            self._output.write(describe_entries(node.storage.entries(first, last + 1, NO_LIMIT)))

    def _raft_state(self, _: Case) -> None:
        for node in self._nodes:
            raft = node.raft_node.raft
            voter = node.id in raft.tracker.voters
            self._output.write(
                f"{node.id}: {state_name(raft.state)} ({'Voter' if voter else 'Non-Voter'}) "
                f"Term:{raft.term} Lead:{raft.lead}\n"
            )

    def _status(self, case: Case) -> None:
        raft = self._node(case).raft_node.raft
        progress = raft.tracker.progress if raft.state is StateType.LEADER else {}
        self._output.write(describe_progress_map(progress))

    # --- commands that advance time --------------------------------------------------------------

    def _send_snapshot(self, case: Case) -> None:
        nodes = self._listed(case)
        if len(nodes) != 2:
            raise BadScript("send-snapshot takes two nodes")
        sender, to = nodes
        term = sender.raft_node.raft.term
        message = Message(MessageType.SNAP, to.id, sender.id, term, snapshot=sender.storage.snapshot())
        self._messages.append(message)
        self._output.write(describe_message(message))

    def _deliver_messages(self, case: Case) -> None:
        kind: MessageType | None = None
        recipients = [(_number(key), False) for key, values in case.arguments if not values]
        for key, values in case.arguments:
            for value in values:
                if key == "type":
                    if value not in _MESSAGE_TYPES:
                        raise BadScript(f"unknown message type {value}")
                    kind = _MESSAGE_TYPES[value]
                elif key == "drop":
                    if (_number(value), False) in recipients:
                        raise BadScript(f"can't both deliver and drop msgs to {value}")
                    recipients.append((_number(value), True))
        if not sum([self._deliver(node_id, kind, drop) for node_id, drop in recipients]):
            self._output.write("no messages\n")

    def _deliver(self, node_id: int, kind: MessageType | None, drop: bool) -> int:
        due = [m for m in self._messages if _is_due(m, node_id, kind, drop)]
        self._messages = [m for m in self._messages if not _is_due(m, node_id, kind, drop)]
        for message in due:
            self._output.write(("dropped: " if drop else "") + describe_message(message) + "\n")
            if not drop:
                try:
                    self._by_id(node_id).raft_node.step(message)
                except RaftError as error:
                    self._output.write(f"{error}\n")
        return len(due)

    def _process_ready(self, node: _Node) -> None:
        ready = node.raft_node.ready()
        if ready is None:
            self._output.write("<empty Ready>")
        else:
            self._handle_ready(node, ready)

    def _handle_ready(self, node: _Node, ready: Ready) -> None:
        self._output.write(describe_ready(ready))
        synchronous = not node.raft_node.options.async_storage_writes
        if synchronous:
            node.persist(ready.hard_state, ready.snapshot, ready.entries)
            node.apply(ready.committed_entries)
        for message in ready.messages:
            if not isinstance(message, StorageMessage):
                self._messages.append(message)
            elif message.type is MessageType.STORAGE_APPEND:
                node.append_work.append(message)
            else:
                node.apply_work.append(message)
        if synchronous:
            node.raft_node.advance()

    def _process_append(self, node: _Node) -> None:
        if not node.append_work:
            self._output.write("no append work to perform")
            return
        message = node.append_work.pop(0)
        self._output.write(f"Processing:\n{describe_message(replace(message, responses=()))}\n")
        state = HardState(message.term, message.vote, message.commit)
        node.persist(state if state != HardState() else None, message.snapshot, list(message.entries))
        self._send_responses(message)

    def _process_apply(self, node: _Node) -> None:
        if not node.apply_work:
            self._output.write("no apply work to perform")
            return
        message = node.apply_work.pop(0)
        self._output.write(f"Processing:\n{describe_message(replace(message, responses=()))}\n")
        node.apply(message.entries)
        self._send_responses(message)

    def _send_responses(self, message: StorageMessage) -> None:
        self._output.write(
            "Responses:\n" + "".join([describe_message(one) + "\n" for one in message.responses])
        )
        self._messages.extend(message.responses)

    def _stabilize_command(self, case: Case) -> None:
        nodes = self._listed(case) or self._nodes
        level = self._output.level
        try:
            for key, values in case.arguments:
                if key == "log-level":
                    self._log_level(values[0])
            for _ in range(_ROUNDS_MAX):
                if not self._stabilize(nodes):
                    return
            raise AssertionError(f"nodes are not at rest after {_ROUNDS_MAX} rounds of stabilize")
        finally:
            self._output.level = level

    def _stabilize(self, nodes: list[_Node]) -> bool:
        """One round; False if there was nothing to do."""
        busy = False
        for node in nodes:
            ready = node.raft_node.ready()
            if ready is not None:
                self._under_heading(node, "handling Ready", partial(self._handle_ready, ready=ready))
                busy = True
        for node in nodes:
            if any(_is_due(m, node.id, None, drop=False) for m in self._messages):
                self._under_heading(node, "receiving messages", self._deliver_all)
                busy = True
        for node in nodes:
            if node.append_work:
                self._under_heading(node, "processing append thread", self._drain_append_work)
                busy = True
        for node in nodes:
            if node.apply_work:
                self._under_heading(node, "processing apply thread", self._drain_apply_work)
                busy = True
        return busy

    def _deliver_all(self, node: _Node) -> None:
        self._deliver(node.id, None, drop=False)

    def _drain_append_work(self, node: _Node) -> None:
        while node.append_work:
            self._process_append(node)

    def _drain_apply_work(self, node: _Node) -> None:
        while node.apply_work:
            self._process_apply(node)


def _check(outcome: LogPosition | NotAppended) -> None:
    """Raises ProposalDropped, as etcd's calls do."""
    if isinstance(outcome, NotAppended) and outcome is not NotAppended.FORWARDED:
        raise ProposalDropped(outcome)


def _is_due(message: Message, node_id: int, kind: MessageType | None, drop: bool) -> bool:
    """True if a message is for this node and may be delivered or dropped.

    Messages of a node to itself never are.
    """
    local = message.sender == message.to or isinstance(message, StorageMessage)
    return message.to == node_id and not (drop and local) and kind in (None, message.type)


def _key(case: Case, at: int) -> str:
    if at >= len(case.arguments):
        raise BadScript(f"{case.command} takes more arguments")
    return case.arguments[at].key


def _number(text: str) -> int:
    if not text.isdecimal():
        raise BadScript(f"{text!r} is not a number")
    return int(text)


def _boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise BadScript(f"{text!r} is neither true nor false")
    return _BOOLEANS[text.lower()]


def _read_only(text: str) -> ReadOnlyOption:
    if text not in ("safe", "lease-based"):
        raise CommandError(f'invalid read-only option "{text}"')
    return ReadOnlyOption(text)


_OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "inflight": ("max_inflight_messages", _number),
    "max-committed-size-per-ready": ("max_committed_size_per_ready", _number),
    "async-storage-writes": ("async_storage_writes", _boolean),
    "prevote": ("pre_vote", _boolean),
    "checkquorum": ("check_quorum", _boolean),
    "disable-conf-change-validation": ("disable_conf_change_validation", _boolean),
    "step-down-on-removal": ("step_down_on_removal", _boolean),
    "read-only": ("read_only", _read_only),
}


def _with_option(options: EtcdOptions, key: str, value: str) -> EtcdOptions:
    if key not in _OPTIONS:
        raise BadScript(f"unknown option {key}")
    name, parse = _OPTIONS[key]
    if name in [field.name for field in fields(options)]:
        return replace(options, **{name: parse(value)})
    return replace(options, raft=replace(options.raft, **{name: parse(value)}))
