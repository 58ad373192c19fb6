"""A node with etcd's interface, which does everything by that of pixy's driver.

etcd                                          here
--------------------------------------------  --------------------------------------------------
`Ready`                                       `RaftNode.work`
`advance`                                     `stored` and `applied`
STORAGE_APPEND_RESP                           `stored`
STORAGE_APPLY_RESP                            `applied`
a vote for itself, as a message               `stored`
an acknowledgement of its own entries, as a   nothing: it follows from the end of the write
message
a commit index alone is stored                `work` has none; what is stored with it is empty
vote requests do not wait for the own vote    they are promises of a write
committed entries are applied in the `Ready`  `work` has them once they are stored (synchronous)
that stores them
hand-outs are limited in size                 `work` has no limit: the rest is for later ones
"""

from collections import deque
from dataclasses import dataclass, replace

from pixy.entry_ids import ProposalId
from pixy.raft import (
    NO_LIMIT,
    NONE,
    Entry,
    HardState,
    LogPosition,
    Message,
    MessageType,
    NotAppended,
    RaftConfig,
    RaftNode,
    RandomSource,
    StateType,
    Storage,
    StorageAppend,
    Trace,
    Work,
)
from pixy.raft.progress import ProgressState
from pixy.raft.sizes import limit_entries
from tests.raft.etcd.ready import APPEND_THREAD, APPLY_THREAD, Ready, StorageMessage


@dataclass(frozen=True, slots=True)
class EtcdOptions:
    """Options that etcd's nodes have and pixy's have not.

    Args:
        raft: options of the node.
        async_storage_writes: work is handed out as messages to threads, and acknowledged by
            messages.
        max_committed_size_per_ready: encoded size of the entries that a `Ready` has to apply.
        short_way: proposals take `RaftNode.append_payload` wherever a driver may.
    """

    raft: RaftConfig
    async_storage_writes: bool = False
    max_committed_size_per_ready: int = NO_LIMIT
    short_way: bool = False


class EtcdNode(RaftNode):
    """One node, with the interface of etcd's."""

    def __init__(
        self,
        node_id: int,
        storage: Storage,
        options: EtcdOptions,
        random: RandomSource,
        applied: int,
        trace: Trace,
    ) -> None:
        super().__init__(node_id, storage, options.raft, random, applied=applied, trace=trace)
        self.options = options
        self._hard_state = self.raft.hard_state()
        # Entries of the short way that no `Ready` has named yet.
        self._own: list[Entry] = []
        # Handed out by the core to be applied, and by no `Ready` yet.
        self._committed: list[Entry] = []
        # Writes that are not acknowledged, each with the entries of the short way in it.
        self._writes: deque[tuple[list[Entry], StorageAppend]] = deque()
        self._applying: list[Entry] = []

    def propose(
        self, *payloads: bytes | bytearray, kind: int = 0, proposal: ProposalId | None = None
    ) -> LogPosition | NotAppended:
        """As of the core, by the short way if that is chosen and open."""
        raft = self.raft
        if not (
            self.options.short_way
            and len(payloads) == 1
            and raft.state is StateType.LEADER
            and raft.lead_transferee == NONE
            and raft.id in raft.tracker.progress
            and raft.log.unstable.offset_in_progress == raft.log.last_index() + 1
        ):
            return super().propose(*payloads, kind=kind, proposal=proposal)
        entry = self.append_payload(payloads[0], kind, proposal)
        self._own.append(entry)
        return LogPosition(entry.term, entry.index)

    def step(self, message: Message) -> None:
        """Process a message of a peer, of a storage thread, or of this node to itself."""
        if message.type is MessageType.STORAGE_APPEND_RESP:
            self._end_write()
        elif message.type is MessageType.STORAGE_APPLY_RESP:
            self.applied(message.entries)
        elif message.sender != self.raft.id:
            super().step(message)
        elif message.type is not MessageType.APP_RESP:
            self.stored(StorageAppend(message.term, [], None, None, None, [message]))

    def report_unreachable(self, node_id: int) -> None:
        """Have the leader probe a node to which messages were lost, until it answers.

        pixy's driver does without: see docs/raft.md.
        """
        raft = self.raft
        progress = raft.tracker.progress.get(node_id)
        if raft.state is not StateType.LEADER or progress is None:
            return
        if progress.state is ProgressState.REPLICATE:
            progress.become_probe()
        raft.trace.debug(
            "%x failed to send message to %x because it is unreachable [%s]", raft.id, node_id, progress
        )

    # --- work ------------------------------------------------------------------------------------

    def ready(self) -> Ready | None:
        """Take the pending work, None if there is none."""
        raft, log = self.raft, self.raft.log
        work = self.work() or Work(None, [], (), None, (), None)
        append = work.append or StorageAppend(raft.term, [], None, None, None, ())
        requests = [message for message in append.responses if message.type is MessageType.VOTE]
        append.responses = [message for message in append.responses if message.type is not MessageType.VOTE]
        state, before = raft.hard_state(), self._hard_state
        self._committed += work.committed_entries
        if not self.options.async_storage_writes and log.unstable.snapshot is None:
            both = [entry for entry in log.unstable.entries if log.applying < entry.index <= log.committed]
            self._committed += both
            log.applying = both[-1].index if both else log.applying
        own, self._own = self._own, []
        if not (
            work.append
            or work.messages
            or work.soft_state
            or work.read_states
            or own
            or self._committed
            or state != before
        ):
            return None
        self._hard_state = state
        first = append.entries[0].index if append.entries else NO_LIMIT
        committed = limit_entries(self._committed, self.options.max_committed_size_per_ready)
        self._committed = self._committed[len(committed) :]
        ready = Ready(
            work.soft_state,
            state if state != before else None,
            work.read_states,
            [entry for entry in own if entry.index < first] + append.entries,
            append.snapshot,
            committed,
            [*work.messages, *requests],
            bool(own or append.entries) or state[:2] != before[:2],
        )
        if self.options.async_storage_writes:
            self._ask_threads(ready, own, append)
        else:
            ready.messages += [message for message in append.responses if message.to != raft.id]
            self._writes.append((own, append))
            self._applying = committed
        return ready

    def advance(self) -> None:
        """Acknowledge that the work of the last `ready` is done, in the synchronous form."""
        self._end_write()
        if self._applying:
            self.applied(self._applying)

    def _end_write(self) -> None:
        own, append = self._writes.popleft()
        for entry in own:
            self._committed += self.own_stored(entry)
        if not (own and append.is_empty and append.term == self.raft.term):
            self.stored(append)

    # --- the asynchronous form --------------------------------------------------------------------

    def _ask_threads(self, ready: Ready, own: list[Entry], append: StorageAppend) -> None:
        """Add the messages to the threads."""
        node_id = self.raft.id
        if ready.entries or ready.snapshot or ready.hard_state or append.responses:
            ready.messages.append(self._append_message(ready, own, append))
        if ready.committed_entries:
            kind, entries = MessageType.STORAGE_APPLY, ready.committed_entries
            done = StorageMessage(MessageType.STORAGE_APPLY_RESP, node_id, APPLY_THREAD, entries=entries)
            ready.messages.append(
                StorageMessage(kind, APPLY_THREAD, node_id, entries=entries, responses=[done])
            )

    def _append_message(self, ready: Ready, own: list[Entry], append: StorageAppend) -> StorageMessage:
        raft, node_id = self.raft, self.raft.id
        responses = list(append.responses)
        if raft.state is StateType.LEADER:
            # Every proposal of a transcript is one entry.
            responses += [
                Message(MessageType.APP_RESP, node_id, node_id, raft.term, index=entry.index)
                for entry in ready.entries
            ]
        unstable = raft.log.unstable.entries
        last = LogPosition(unstable[-1].term, unstable[-1].index) if unstable else None
        if last is not None or append.snapshot is not None:
            done = StorageMessage(MessageType.STORAGE_APPEND_RESP, node_id, APPEND_THREAD, append.term)
            done.snapshot = append.snapshot
            if last is not None:
                done.log_term, done.index = last
            responses.append(done)
            # The promises are messages of their own.
            self._writes.append((own, replace(append, last=last, responses=())))
        state = ready.hard_state or HardState()
        message = StorageMessage(MessageType.STORAGE_APPEND, APPEND_THREAD, node_id, state.term)
        message.vote, message.commit = state.vote, state.commit
        message.entries, message.snapshot, message.responses = ready.entries, append.snapshot, responses
        return message
