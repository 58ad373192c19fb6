"""Judges of all calls: histories of topics and committed offsets, audits of partitions."""

from collections.abc import Collection, Sequence
from typing import Any

from pixy.records import TopicPartition
from tests.sim.kit.failure import require
from tests.sim.kit.scene import Scene
from tests.sim.whole.calls import Call, Outcome
from tests.sim.whole.linearizability import UNKNOWN, Operation, Step, Undecided, explain
from tests.sim.whole.log_audit import LogAudit, Record, Send, SentValues
from tests.sim.whole.objects import DELETED_MEANWHILE, Read, TopicState, Use, step_offsets, step_topic


class Audits:
    """Histories of what calls have changed and seen.

    A topic that is never deleted is known by its name. Of others a name says little: what was sent
    under it must be in no other log, and at most once.

    Args:
        scene: see `Scene`.
        passing: names of topics that may be deleted.

    Attributes:
        topics_seen: number of partitions of the topics that some call has shown, by name.
        logs: audits of partitions, by topic id, empty for topics that are never deleted.
    """

    def __init__(self, scene: Scene, passing: Collection[str]) -> None:
        self._scene = scene
        self._passing = passing
        self._topics: dict[str, list[Operation]] = {}
        self._offsets: dict[tuple[str, str], list[Operation]] = {}
        self.topics_seen: dict[str, int] = {}
        self.logs: dict[tuple[bytes, TopicPartition], LogAudit] = {}
        self._sent: dict[TopicPartition, SentValues] = {}
        self._searches: list[tuple[LogAudit, int, int | None, int]] = []

    # --- topics and offsets -----------------------------------------------------------------------

    def topic(self, name: str, call: Call, input: Any, answer: Any, *, stale: bool = False) -> None:
        """A call on a topic has ended.

        Args:
            stale: the answer may be that of an earlier time.
        """
        reads = isinstance(input, Read | Use)
        if reads and call.outcome is Outcome.UNKNOWN:
            return
        if isinstance(answer, TopicState):
            self.topics_seen[name] = max(self.topics_seen.get(name, 0), answer.partitions)
        operation = _operation(call, input, answer)
        self._topics.setdefault(name, []).append(operation._replace(begin=0) if stale else operation)

    def offsets(self, group: str, topic: str, call: Call, input: Any, answer: Any) -> None:
        """A call on the offsets of a group in a topic has ended."""
        if isinstance(input, Read) and call.outcome is not Outcome.OK:
            return
        if call.outcome is not Outcome.FAILED:
            self._offsets.setdefault((group, topic), []).append(_operation(call, input, answer))

    def check_objects(self) -> None:
        """Check that the histories of topics and offsets are linearizable."""
        for name, operations in self._topics.items():
            self._explain(f"topic {name}", operations, None, step_topic)
        for (group, topic), operations in self._offsets.items():
            self._explain(f"offsets of {group} in {topic}", _without_unseen(operations), (), step_offsets)

    def _explain(self, what: str, operations: Sequence[Operation], state: Any, step: Step[Any]) -> None:
        try:
            why = explain(operations, state, step)
        except Undecided:
            self._scene.counts["histories undecided"] += 1
            require(False, f"{what}: {len(operations)} calls, and no result")
            return
        self._scene.counts["histories checked"] += 1
        self._scene.counts["calls in histories"] += len(operations)
        require(not why, f"{what} is not linearizable:\n{why}")

    # --- records ----------------------------------------------------------------------------------

    def log(self, partition: TopicPartition, topic_id: bytes = b"") -> LogAudit | None:
        """The audit of a partition; None if its name does not say enough.

        Args:
            topic_id: of its topic, as far as it is known.
        """
        if partition.topic not in self._passing:
            topic_id = b""
        elif not topic_id:
            return None
        audit = self.logs.get((topic_id, partition))
        if audit is None:
            audit = LogAudit(f"{partition.topic}-{partition.partition}", self.sent_to(partition))
            self.logs[topic_id, partition] = audit
        return audit

    def sent_to(self, partition: TopicPartition) -> SentValues:
        """Everything that was sent to a partition of this name."""
        return self._sent.setdefault(partition, SentValues())

    def appended(self, partition: TopicPartition, send: Send, call: Call) -> None:
        """A call that sent a batch has ended."""
        sent, audit = self.sent_to(partition), self.log(partition)
        if call.outcome is Outcome.FAILED:
            sent.failed.update(send.values)
            if audit is not None:
                audit.failed(send)
        elif call.outcome is Outcome.OK:
            self._scene.counts["records appended"] += len(send.values)
            if audit is not None:
                audit.answered(send, call.answer, call.end)

    def searched(self, audit: LogAudit, timestamp_ms: int, found: int | None, begin: int) -> None:
        """A search for a timestamp was answered: it is judged once the log is known."""
        self._searches.append((audit, timestamp_ms, found, begin))

    def check_searches(self, logs: dict[int, Sequence[Record]]) -> None:
        """Judge the searches.

        Args:
            logs: whole logs, by id of their audit.
        """
        for audit, timestamp_ms, found, begin in self._searches:
            records = logs.get(id(audit))
            if records is not None:
                audit.searched(timestamp_ms, found, begin, records)


def _operation(call: Call, input: Any, answer: Any) -> Operation:
    output = UNKNOWN if call.outcome is Outcome.UNKNOWN else answer
    refused = call.outcome is Outcome.FAILED and answer != DELETED_MEANWHILE
    reads = isinstance(input, Read | Use) or refused
    return Operation(call.begin, call.end, input, output, f"{call.client}@{call.machine.number}", reads)


def _without_unseen(operations: Sequence[Operation]) -> list[Operation]:
    """A history of offsets without the commits that were not answered, and of which nothing was
    ever read: whether they took effect, another commit hides.
    """
    seen = {commit for each in operations if isinstance(each.input, Read) for commit in each.output}
    return [
        each for each in operations if each.output is not UNKNOWN or not seen.isdisjoint(each.input.offsets)
    ]
