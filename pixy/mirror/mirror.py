"""The mirror: rounds of copies until somebody ends it.

    1  establish: the target's sink is closed against everything earlier, and positions are read
    2  topics: those that match are made at the target as they are at the source
    3  rounds: what is new is fetched, staged, and published together with its positions
    4  groups: offsets are carried, every few seconds

Whatever fails, it goes on at 1: it keeps nothing that the target does not have.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pixy.copies.pacing import TokenBucket
from pixy.errors import FailedPrecondition, NotFound, Unavailable
from pixy.mirror.carried_offsets import CarriedOffsets
from pixy.mirror.cluster_client import ClusterClient
from pixy.mirror.events import Event, Tell
from pixy.mirror.mirrored_topics import MirrorError, check_copy, check_not_deleted, create_like, grow
from pixy.mirror.positions import Copied
from pixy.mirror.runs import Run, add_run
from pixy.mirror.taken_batches import SourceRun, take_batches
from pixy.mirror.target_sink import STATE_PREFIX, Round, TargetSink, version_of
from pixy.mirror.turned_topics import TurnedTopics, turned_elsewhere
from pixy.proto import pixy_log_pb2 as log_pb
from pixy.records import TopicPartition

_PARTITIONS_PER_ROUND = 500
"""A publication writes to at most 1000."""

_POLL_S = 0.5
_GROUPS_SHARE = 10
"""Groups are carried in at most such a part of the time."""
_PAUSE_S, _PAUSE_MAX_S = 0.2, 5.0
_FAILURES_MAX = 10
"""Refusals without a round between them, after which it is no passing state."""


@dataclass(frozen=True, slots=True)
class MirrorOptions:
    """Options of a mirror.

    Attributes:
        name: of its sink and its state topic.
        patterns: of names of topics, as for files of a shell.
        groups: carry the offsets of consumer groups.
        once: end when everything is copied that was there at the begin.
        back: turn topics that a mirror in the other direction has copied.
        bytes_per_second: to fetch at most; 0 for no limit.
        round_bytes, round_s: a round ends when it has so many bytes or has taken so long.
        topics_s, groups_s, progress_s: seconds between two looks at topics, two carries of groups,
            two lines.
        give_up_s: seconds of failures after which a mirror with `once` ends.
    """

    name: str
    patterns: Sequence[str]
    groups: bool = False
    once: bool = False
    back: bool = False
    bytes_per_second: float = 0
    round_bytes: int = 64 << 20
    round_s: float = 2.0
    topics_s: float = 5.0
    groups_s: float = 5.0
    progress_s: float = 10.0
    give_up_s: float = 120.0


@dataclass(slots=True)
class _Topic:
    """A topic that is mirrored: as it is at both clusters."""

    source: log_pb.Topic
    version: log_pb.TopicVersion


class Mirror:
    """One mirror.

    Args:
        source, target: the clusters.
        options: see there.
        tell: takes what happens.
        clock: seconds, monotonic.
        sleep: pauses.
        now_ms: the time, in milliseconds since the Unix epoch.
    """

    def __init__(
        self,
        source: ClusterClient,
        target: ClusterClient,
        options: MirrorOptions,
        tell: Tell,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        now_ms: Callable[[], int] = lambda: round(time.time() * 1000),
    ) -> None:
        self._source = source
        self._target = target
        self._options = options
        self._tell = tell
        self._clock = clock
        self._sleep = sleep
        self._sink = TargetSink(target, options.name, now_ms)
        self._other = TargetSink(source, options.name, now_ms)
        self._groups = CarriedOffsets(source, target, tell)
        rate = options.bytes_per_second
        self._bucket = TokenBucket(rate, rate / 4) if rate else None
        # Topics that are mirrored, by name, and where their partitions go on. Invariant: the
        # partitions are of these topics.
        self._topics: dict[str, _Topic] = {}
        self._next: dict[TopicPartition, int] = {}
        # Ends to copy up to, of a mirror that ends; None before they are known.
        self._goal: dict[TopicPartition, int] | None = None
        # The partition that the last round ended with.
        self._last = TopicPartition("", -1)
        self._topics_at = self._groups_at = 0.0
        self._progress_at = clock() + options.progress_s
        self._records = self._bytes = self._offsets_set = 0
        self._lag = 0
        self._worked = self._failing = False
        self._failures = 0

    def run(self) -> None:
        """Mirror until it is interrupted, or with `once` until everything is there.

        Raises:
            MirrorError: somebody has to decide something.
            NotFound: no topic matches.
            Unavailable: a cluster cannot be reached at the begin, or with `once` for too long.
            PixyError: a cluster refuses what another attempt would not change.
        """
        pause_s, give_up_at = _PAUSE_S, None
        while True:
            before = self._records
            try:
                self._establish()
                if self._rounds():
                    break
            except (Unavailable, NotFound, FailedPrecondition) as error:
                if isinstance(error, MirrorError) or not self._worked:
                    raise
                if self._records > before:
                    pause_s, give_up_at, self._failures = _PAUSE_S, None, 0
                now = self._clock()
                give_up_at = give_up_at or now + self._options.give_up_s
                self._failures += not isinstance(error, Unavailable)
                if self._failures >= _FAILURES_MAX or (self._options.once and now > give_up_at):
                    raise
                self._fails(str(error))
            self._source.close()
            self._target.close()
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)
        self._say("done")

    def _establish(self) -> None:
        self._sink.establish()
        self._topics.clear()
        self._next.clear()
        self._look_at_other_direction()
        self._look_at_topics()
        if not self._topics and not self._worked:
            raise NotFound(f"no topic of the source matches {', '.join(self._options.patterns)}")
        if self._options.once and self._goal is None:
            self._goal = self._source.ends(sorted(self._next))
        self._worked = True

    def _rounds(self) -> bool:
        """Rounds until one fails; True when everything is copied that is to be."""
        while True:
            now = self._clock()
            if now >= self._topics_at:
                self._look_at_topics()
            is_idle = not self._round()
            if self._failing:
                self._failing = False
                self._tell(Event("resumed", "both clusters answer again"))
            is_done = is_idle and self._goal is not None
            if self._options.groups and (is_done or self._clock() >= self._groups_at):
                self._carry_groups()
            if is_done:
                return True
            if self._clock() >= self._progress_at:
                self._progress_at = self._clock() + self._options.progress_s
                self._say("progress")
            if is_idle:
                self._sleep(_POLL_S)

    # --- topics -----------------------------------------------------------------------------------

    def _wanted(self) -> dict[str, log_pb.Topic]:
        """Topics of the source that are to be copied."""
        wanted = {
            name: topic
            for name, topic in self._source.topics().items()
            if not name.startswith(STATE_PREFIX)
            and any(fnmatchcase(name, pattern) for pattern in self._options.patterns)
        }
        if self._goal is not None:
            known = {topic for topic, _ in self._goal}
            wanted = {name: topic for name, topic in wanted.items() if name in known}
        return wanted

    def _look_at_other_direction(self) -> None:
        """Turn topics that a mirror of this name has copied in the other direction."""
        if not self._other.look():
            return
        wanted = self._wanted()
        copies = self._target.topics(sorted(wanted)) if wanted else {}
        names = turned_elsewhere(self._sink.positions, self._other.positions, wanted, copies)
        if not names:
            return
        if self._worked or not self._options.back:
            raise MirrorError(
                f"the mirror {self._options.name} copies {', '.join(names)} in the other direction: end it, and turn it with "
                "--back"
            )
        TurnedTopics(self._source, self._target, self._other, self._sink).run(
            [wanted[name] for name in names], {name: copies[name] for name in names}
        )
        for name in names:
            text = f"topic {name} is copied in this direction from now on"
            self._tell(Event("turned", text, {"topic": name}))

    def _look_at_topics(self) -> None:
        self._topics_at = self._clock() + self._options.topics_s
        wanted = self._wanted()
        for name in self._topics.keys() - wanted.keys():
            self._forget(name)
            text = f"topic {name} was deleted at the source; its copy stays"
            self._tell(Event("gone", text, {"topic": name}))
        copies = self._target.topics(sorted(wanted)) if wanted else {}
        changed = [name for name, topic in wanted.items() if self._change(topic, copies.get(name))]
        if changed:
            copies = self._target.topics(sorted(changed))
        for name in changed:
            if name not in copies or copies[name].partitions < wanted[name].partitions:
                raise Unavailable(f"target: topic {name} was made, and is not known yet")
        for name, copy in copies.items():
            self._topics[name] = _Topic(wanted[name], version_of(copy))
        self._look_at_positions()

    def _change(self, topic: log_pb.Topic, copy: log_pb.Topic | None) -> bool:
        """Make the copy of a topic what it has to be; returns True if something was changed."""
        name, known = topic.topic, self._sink.positions.topics.get(topic.topic)
        if copy is None:
            check_not_deleted(name, known)
            create_like(self._source, self._target, topic, self._tell)
            return True
        before = self._topics.get(name)
        if before is None or before.version.topic_id != copy.topic_id:
            check_copy(self._target, topic, copy, known)
        is_replaced = known is not None and known.source_id != topic.topic_id
        if before is not None and before.source.topic_id != topic.topic_id:
            self._forget(name)
        if is_replaced and name not in self._topics:
            text = (
                f"topic {name} was replaced at the source: records of the new one follow those of the old one"
            )
            self._tell(Event("replaced", text, {"topic": name}))
        if copy.partitions < topic.partitions:
            grow(self._target, topic, self._tell)
            return True
        return False

    def _forget(self, name: str) -> None:
        self._topics.pop(name, None)
        for partition in [each for each in self._next if each.topic == name]:
            del self._next[partition]

    def _look_at_positions(self) -> None:
        """Find out where partitions go on that are new here."""
        new = []
        for name, topic in self._topics.items():
            for number in range(topic.source.partitions):
                partition = TopicPartition(name, number)
                if partition in self._next:
                    continue
                known = self._sink.positions.next(partition, topic.source.topic_id)
                if known is None:
                    new.append(partition)
                else:
                    self._next[partition] = known
        self._next.update(self._source.ends(new, begins=True))

    # --- rounds -----------------------------------------------------------------------------------

    def _round(self) -> bool:
        """Copy what is new, as much as a round may have; False if there is nothing."""
        ends = self._ends()
        goal = ends if self._goal is None else self._goal
        wanted: dict[TopicPartition, int] = {}
        self._lag = 0
        for partition, end in ends.items():
            behind = min(end, goal.get(partition, 0)) - self._next[partition]
            if behind > 0:
                self._lag += behind
                wanted[partition] = self._next[partition] + behind
        if not wanted:
            return False
        round = self._sink.begin_round()
        try:
            taken = self._fetch(round, wanted)
            if taken:
                self._publish(round, taken)
        except BaseException:
            round.discard()
            raise
        return True

    def _ends(self) -> dict[TopicPartition, int]:
        """Ends of all partitions at the source."""
        ends = self._source.ends(sorted(self._next))
        if any(end < self._next[partition] for partition, end in ends.items()):
            self._look_at_topics()  # a topic was replaced
            ends = self._source.ends(sorted(self._next))
        for partition, end in ends.items():
            if end < self._next[partition]:
                raise Unavailable(
                    f"source: {_named(partition)} ends at offset {end}, and is copied up to {self._next[partition]}: "
                    "it has lost records"
                )
        return ends

    def _fetch(
        self, round: Round, wanted: dict[TopicPartition, int]
    ) -> dict[TopicPartition, list[SourceRun]]:
        """Fetch into a round; returns what it has of each partition."""
        order = sorted(wanted)
        at = next((n for n, each in enumerate(order) if each > self._last), 0)
        order = [*order[at:], *order[:at]][:_PARTITIONS_PER_ROUND]
        versions = [topic.version for topic in self._topics.values()]
        until = self._clock() + self._options.round_s
        taken: dict[TopicPartition, list[SourceRun]] = {}
        for partition, answer in self._answers(order, wanted):
            self._last = partition
            runs: list[SourceRun] = []
            offset = self._next[partition]
            for each in take_batches(answer.batches, offset):
                round.add(partition, each.batch, versions)
                runs += each.sources
            if runs:
                taken.setdefault(partition, []).extend(runs)
                offset = runs[-1].offset + runs[-1].records
            self._next[partition] = max(offset, answer.next_offset)
            self._lag -= sum(run.records for run in runs)
            self._pace(len(answer.batches))
            if round.size >= self._options.round_bytes or self._clock() >= until:
                break
        return taken

    def _answers(
        self, order: Sequence[TopicPartition], wanted: dict[TopicPartition, int]
    ) -> Iterator[tuple[TopicPartition, log_pb.FetchResponse]]:
        """Answers with records, or further offsets, of the partitions."""
        ranges = [
            log_pb.FetchRange(
                topic=each.topic,
                partition=each.partition,
                from_offset=self._next[each],
                to_offset=wanted[each],
                topic_id=self._topics[each.topic].source.topic_id,
            )
            for each in order
        ]
        for answer in self._source.fetch(ranges):
            partition = order[answer.range]
            if answer.state == log_pb.UNKNOWN_PARTITION:
                self._topics_at = 0.0  # it was deleted, or replaced
            elif answer.state == log_pb.OFFSET_OUT_OF_RANGE:
                self._begins_later(partition, answer.log_begin_offset)
            else:
                yield partition, answer

    def _begins_later(self, partition: TopicPartition, begin: int) -> None:
        """Records were removed at the source before they were copied."""
        at = self._next[partition]
        if begin <= at:
            return  # a replica that lags: the next round asks again
        self._next[partition] = begin
        text = (
            f"{begin - at} records of {_named(partition)} from offset {at} on were removed at the source before "
            "they were copied"
        )
        values = {"topic": partition.topic, "partition": partition.partition, "from": at, "to": begin}
        self._tell(Event("gap", text, values))

    def _publish(self, round: Round, taken: dict[TopicPartition, list[SourceRun]]) -> None:
        begins = self._target.ends(sorted(taken))
        copied = []
        for partition, sources in taken.items():
            topic = self._topics[partition.topic]
            known = self._sink.positions.topics.get(partition.topic)
            if partition not in begins:
                raise Unavailable(f"target: there is no {_named(partition)} any more")
            target, runs = begins[partition], list[Run]()
            for source in sources:
                add_run(runs, Run(source.offset, target, source.records))
                target += source.records
            copied.append(
                Copied(
                    partition,
                    topic.source.topic_id,
                    topic.version.topic_id,
                    self._next[partition],
                    sum(source.records for source in sources),
                    tuple(runs),
                    0 if known is None else known.turn,
                )
            )
        size = round.size
        self._sink.publish(round, copied, [topic.version for topic in self._topics.values()])
        self._records += sum(run.records for runs in taken.values() for run in runs)
        self._bytes += size
        self._failures = 0

    def _pace(self, size: int) -> None:
        if self._bucket is not None:
            wait_s = self._bucket.take(size, self._clock())
            if wait_s > 0:
                self._sleep(wait_s)

    # --- groups and words -------------------------------------------------------------------------

    def _carry_groups(self) -> None:
        begun = self._clock()
        ids = {name: topic.source.topic_id for name, topic in self._topics.items()}
        self._offsets_set += self._groups.carry(self._sink.positions, ids)
        took_s = self._clock() - begun
        self._groups_at = begun + max(self._options.groups_s, _GROUPS_SHARE * took_s)

    def _fails(self, reason: str) -> None:
        if not self._failing:
            self._failing = True
            self._tell(Event("outage", f"{reason}; trying again", {"reason": reason}))

    def _say(self, kind: str) -> None:
        values = {
            "messages": self._records,
            "bytes": self._bytes,
            "lag": self._lag,
            "topics": len(self._topics),
            "offsets": self._offsets_set,
        }
        text = (
            f"copied {self._records} messages of {len(self._topics)} topics, {self._bytes / 1e6:.1f} MB; "
            f"{self._lag} to go"
        )
        self._tell(Event(kind, text, values))


def _named(partition: TopicPartition) -> str:
    return f"partition {partition.partition} of topic {partition.topic}"
