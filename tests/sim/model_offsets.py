"""What consumer groups must have committed: the last commit that was acknowledged, or one that was sent after it.

The offsets of a consumer group may be forgotten, all of them, after it has neither committed nor had members for a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pixy.records import OffsetCommit
from tests.fakes.clock import FakeClock

__all__ = ["OffsetsModel", "PartitionId"]

_ROUNDING_MS = 2


class PartitionId(NamedTuple):
    """One partition of one topic, which has a name that others may have too."""

    topic_id: bytes
    partition: int


@dataclass(slots=True)
class _Group:
    """When a consumer group was last active for sure, and when it may have been."""

    active_ms: int = 0
    perhaps_ms: int = 0
    has_members: bool = False


class OffsetsModel:
    """Every commit.

    Args:
        clock: what time it is.

    Attributes:
        forgotten: how many offsets were found to be so.
    """

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        # How long offsets of a consumer group without activity are kept; 0: without end.
        self._kept_ms = 0
        # The acknowledged offset, then those that were sent after it. None: nothing is committed.
        self._commits: dict[tuple[str, PartitionId], list[OffsetCommit | None]] = {}
        self._groups: dict[str, _Group] = {}
        self.forgotten = 0
        self._unanswered: list[OffsetCommit] = []

    def begin_life(self, kept_ms: int) -> None:
        """A process begins, in which offsets are kept for so long."""
        self.pass_time()
        self._kept_ms = kept_ms
        for of in self._groups.values():
            if of.has_members:
                of.has_members, of.perhaps_ms = False, self._clock.true_ms()

    @property
    def outstanding(self) -> list[str]:
        """What is not answered."""
        return [str(commit) for commit in self._unanswered]

    def send(self, group: str, partition: PartitionId, commit: OffsetCommit) -> None:
        self.pass_time()
        now_ms = self._clock.true_ms()
        self._commits.setdefault((group, partition), [None]).append(commit)
        self._unanswered.append(commit)
        of = self._groups.setdefault(group, _Group(active_ms=now_ms))
        of.perhaps_ms = now_ms

    def take_back(self, group: str, partition: PartitionId, commit: OffsetCommit) -> None:
        self._unanswered.remove(commit)
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
        # The answer may come late.
        self.pass_time()

    def forget_topic(self, topic_id: bytes) -> None:
        """A topic is deleted."""
        for key in [key for key in self._commits if key[1].topic_id == topic_id]:
            del self._commits[key]

    def set_members(self, group: str, has_members: bool) -> None:
        self.pass_time()
        now_ms = self._clock.true_ms()
        of = self._groups.setdefault(group, _Group(active_ms=now_ms))
        of.has_members, of.perhaps_ms = has_members, now_ms

    def pass_time(self) -> None:
        """It is so late: what may have been forgotten may be so from here on, whatever is committed next."""
        now_ms = self._clock.true_ms()
        for (group, _), commits in self._commits.items():
            of = self._groups[group]
            late = self._kept_ms and now_ms - of.active_ms >= self._kept_ms - _ROUNDING_MS
            if late and not of.has_members and None not in commits:
                commits.insert(0, None)

    def check(self, committed: Mapping[tuple[str, PartitionId], OffsetCommit]) -> None:
        """Raise AssertionError unless these may be the committed offsets of the topics that there are."""
        self.pass_time()
        for key, commits in self._commits.items():
            found = committed.get(key)
            assert found in commits, f"{key}: {found} not in {commits}"
            left = [commit for commit in commits if commit in self._unanswered]
            if found is None and len(commits) > len(left) + 1:
                # What is forgotten does not come back.
                self._commits[key] = [None, *left]
                self.forgotten += 1
        for key in committed:
            assert key in self._commits, f"{key} was never committed"

    def check_forgotten(
        self, committed: Mapping[tuple[str, PartitionId], OffsetCommit], before_ms: int
    ) -> None:
        """Raise AssertionError if a consumer group that was last active before a time is remembered."""
        for group, _ in committed:
            of = self._groups[group]
            assert of.has_members or of.perhaps_ms >= before_ms, f"consumer group {group} is not forgotten"

    def adopt(self, committed: Mapping[tuple[str, PartitionId], OffsetCommit]) -> None:
        """From here on, what is there was acknowledged, and nothing else was sent."""
        self._unanswered = []
        for key in self._commits:
            self._commits[key] = [committed.get(key)]
