"""Faults and operator actions, drawn from the seed before a run begins.

A fault has its own time and seed, so that one can be left out without changing the others. This is
how the transcript of a failure is minimized.
"""

from enum import Enum
from random import Random
from typing import NamedTuple


class FaultKind(Enum):
    """The value is for readers."""

    CRASH = "crash"
    CRASH_MAJORITY = "crash of a majority"
    CRASH_IN_WRITE = "crash between write and send"
    PARTITION = "partition"
    ONE_WAY = "one-way partition"
    ISOLATE_LEADER = "leader cut off"
    LOSSY = "messages lost, doubled and late"
    SLOW_DISK = "slow disk"
    RACE = "several campaign, one crashes"
    FIGURE_8 = "the story of figure 8"
    SPLIT_JOINT = "a joint configuration falls apart into its halves"
    DEPOSE = "leader and one follower cut off, another elected, the old one back"
    MEMBERSHIP = "membership change"
    TRANSFER = "leadership transfer"
    CAMPAIGN = "campaign"
    FORGET_LEADER = "leader forgotten"

    @property
    def breaks(self) -> bool:
        """True for faults; False for operator actions."""
        return self not in (
            FaultKind.MEMBERSHIP,
            FaultKind.TRANSFER,
            FaultKind.CAMPAIGN,
            FaultKind.FORGET_LEADER,
        )


class Profile(Enum):
    """Focus of a run."""

    MIXED = "a bit of everything"
    ELECTIONS = "one election after the other, short outages, slow disks"
    LEADERS = "leaders that replicate to one follower, are deposed, and come back"
    MEMBERSHIP = "large changes of the membership while the network falls apart"


_WEIGHTS = {
    Profile.MIXED: {
        FaultKind.CRASH: 5,
        FaultKind.CRASH_MAJORITY: 1,
        FaultKind.CRASH_IN_WRITE: 3,
        FaultKind.PARTITION: 4,
        FaultKind.ONE_WAY: 3,
        FaultKind.ISOLATE_LEADER: 3,
        FaultKind.LOSSY: 3,
        FaultKind.SLOW_DISK: 4,
        FaultKind.RACE: 1,
        FaultKind.MEMBERSHIP: 8,
        FaultKind.TRANSFER: 4,
        FaultKind.CAMPAIGN: 2,
        FaultKind.FORGET_LEADER: 1,
    },
    Profile.ELECTIONS: {
        FaultKind.RACE: 10,
        FaultKind.CRASH: 3,
        FaultKind.CRASH_IN_WRITE: 3,
        FaultKind.PARTITION: 3,
        FaultKind.ISOLATE_LEADER: 6,
        FaultKind.LOSSY: 1,
        FaultKind.SLOW_DISK: 6,
        FaultKind.CAMPAIGN: 8,
    },
    Profile.LEADERS: {FaultKind.DEPOSE: 8, FaultKind.FIGURE_8: 5, FaultKind.SLOW_DISK: 3, FaultKind.CRASH: 1},
    Profile.MEMBERSHIP: {
        FaultKind.MEMBERSHIP: 20,
        FaultKind.SPLIT_JOINT: 6,
        FaultKind.PARTITION: 8,
        FaultKind.ONE_WAY: 2,
        FaultKind.ISOLATE_LEADER: 4,
        FaultKind.CRASH: 2,
        FaultKind.CRASH_IN_WRITE: 1,
        FaultKind.CAMPAIGN: 6,
        FaultKind.TRANSFER: 3,
    },
}
_COUNTS = {
    Profile.MIXED: (5, 22),
    Profile.ELECTIONS: (25, 70),
    Profile.LEADERS: (30, 60),
    Profile.MEMBERSHIP: (20, 50),
}


class Fault(NamedTuple):
    """A scheduled fault or operator action.

    Args:
        number: its position in the schedule.
        at: virtual time.
        kind: kind of fault.
        seed: seed of its choices.
    """

    number: int
    at: int
    kind: FaultKind
    seed: int


def draw_faults(random: Random, profile: Profile, duration: int) -> list[Fault]:
    """A schedule with at least three real faults, at least one of them a crash."""
    weights = _WEIGHTS[profile]
    kinds = random.choices(list(weights), list(weights.values()), k=random.randrange(*_COUNTS[profile]))
    kinds.append(random.choice([FaultKind.CRASH, FaultKind.CRASH_IN_WRITE, FaultKind.CRASH_MAJORITY]))
    while sum(kind.breaks for kind in kinds) < 3:
        kinds.append(
            random.choice([FaultKind.PARTITION, FaultKind.ONE_WAY, FaultKind.SLOW_DISK, FaultKind.CRASH])
        )
    random.shuffle(kinds)
    times = sorted([random.randrange(duration // 20, duration) for _ in kinds])
    return [
        Fault(number, at, kind, random.getrandbits(32))
        for number, (at, kind) in enumerate(zip(times, kinds, strict=True))
    ]
