"""Model of committed offsets: the last acknowledged commit, or one sent after it.

All offsets of a consumer group may expire after a time without commits and members.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pixy.records import OffsetCommit
from tests.fakes.clock import FakeClock

_ROUNDING_MS = 2


class PartitionId(NamedTuple):
    """One partition of one topic, whose name other topics may have had."""

    topic_id: bytes
    partition: int


@dataclass(slots=True)
class _Group:
    """Last certain and last possible activity of a consumer group."""

    active_ms: int = 0
    perhaps_ms: int = 0
    has_members: bool = False


class OffsetsModel:
    """All commits.

    Args:
        clock: what time it is.

    Attributes:
        forgotten: number of offsets found to be expired.
    """

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        # Retention of the offsets of an inactive consumer group; 0: forever.
        self._kept_ms = 0
        self._life_ms = clock.true_ms()
        # The acknowledged offset, then those sent after it. None: no commit.
        self._commits: dict[tuple[str, PartitionId], list[OffsetCommit | None]] = {}
        self._groups: dict[str, _Group] = {}
        self.forgotten = 0
        self._unanswered: list[OffsetCommit] = []

    def begin_life(self, kept_ms: int) -> None:
        """Begin a process with this retention of offsets."""
        self.pass_time()
        for of in self._groups.values():
            if of.has_members:
                of.has_members, of.perhaps_ms = False, self._latest_ms()
        self._kept_ms, self._life_ms = kept_ms, self._clock.true_ms()

    def _latest_ms(self) -> int:
        """The latest time that the process may have stamped with: for an hour, the most that its
        clock was ahead.
        """
        return self._clock.true_ms() + self._clock.ahead_ms(self._life_ms)

    @property
    def outstanding(self) -> list[str]:
        """Unanswered commits."""
        return [str(commit) for commit in self._unanswered]

    def send(self, group: str, partition: PartitionId, commit: OffsetCommit) -> None:
        self.pass_time()
        now_ms = self._clock.true_ms()
        self._commits.setdefault((group, partition), [None]).append(commit)
        self._unanswered.append(commit)
        of = self._groups.setdefault(group, _Group(active_ms=now_ms))
        of.perhaps_ms = max(of.perhaps_ms, self._latest_ms())

    def take_back(self, group: str, partition: PartitionId, commit: OffsetCommit) -> None:
        self._unanswered.remove(commit)
        if (group, partition) in self._commits:  # else the topic is deleted
            self._commits[group, partition].remove(commit)

    def acknowledge(self, group: str, partition: PartitionId, commit: OffsetCommit, sent_ms: int) -> None:
        self._unanswered.remove(commit)
        of = self._groups[group]
        of.active_ms = max(of.active_ms, sent_ms)
        commits = self._commits.get((group, partition))
        if commits is None:
            return  # the topic is deleted
        assert commit in commits, f"{commit} of {group} is answered after a later one"
        del commits[: commits.index(commit)]
        # The answer may arrive late.
        self.pass_time()

    def forget_topic(self, topic_id: bytes) -> None:
        """Record the deletion of a topic."""
        for key in [key for key in self._commits if key[1].topic_id == topic_id]:
            del self._commits[key]

    def set_members(self, group: str, has_members: bool) -> None:
        self.touch(group).has_members = has_members

    def touch(self, group: str) -> _Group:
        """A group may have become active."""
        self.pass_time()
        now_ms = self._clock.true_ms()
        of = self._groups.setdefault(group, _Group(active_ms=now_ms))
        of.perhaps_ms = max(of.perhaps_ms, self._latest_ms())
        return of

    def pass_time(self) -> None:
        """Advance to the current time: offsets that may have expired by now may be gone, whatever
        is committed next.
        """
        now_ms = self._clock.true_ms()
        for (group, _), commits in self._commits.items():
            of = self._groups[group]
            late = self._kept_ms and now_ms - of.active_ms >= self._kept_ms - _ROUNDING_MS
            if late and not of.has_members and None not in commits:
                commits.insert(0, None)

    def check(self, committed: Mapping[tuple[str, PartitionId], OffsetCommit]) -> None:
        """Raise AssertionError unless these may be the committed offsets of the existing topics."""
        self.pass_time()
        for key, commits in self._commits.items():
            found = committed.get(key)
            assert found in commits, f"{key}: {found} not in {commits}"
            left = [commit for commit in commits if commit in self._unanswered]
            if found is None and len(commits) > len(left) + 1:
                # Expired offsets do not come back.
                self._commits[key] = [None, *left]
                self.forgotten += 1
        for key in committed:
            assert key in self._commits, f"{key} was never committed"

    def check_forgotten(
        self, committed: Mapping[tuple[str, PartitionId], OffsetCommit], before_ms: int
    ) -> None:
        """Raise AssertionError if offsets of a consumer group last active before a time still
        exist.
        """
        for group, _ in committed:
            of = self._groups[group]
            assert of.has_members or of.perhaps_ms >= before_ms, f"consumer group {group} is not forgotten"

    def adopt(self, committed: Mapping[tuple[str, PartitionId], OffsetCommit]) -> None:
        """Adopt the state after a start: it counts as acknowledged, and nothing else as sent."""
        self._unanswered = []
        for key in self._commits:
            self._commits[key] = [committed.get(key)]
