"""Kinds of faults and operator actions."""

from tests.sim.kit.faults import FaultKinds


class FaultKind(FaultKinds):
    """See `FaultKinds`."""

    CRASH = "crash", 6
    CRASH_LEADER = "crash of a leader", 4
    CRASH_AT = "crash at an operation of the disk", 6
    CRASH_NEAR = "crash near a decisive operation of the disk", 4
    CRASH_ALL = "crash of all", 2
    STOP = "orderly stop", 2
    SPLIT = "split", 3
    ONE_WAY = "one-way cut", 2
    ISOLATE_LEADER = "leader cut off", 4
    FIGURE_8 = "the story of figure 8", 2
    STORM = "packets lost, late and twice", 3
    SLOW_DISK = "slow disk", 3
    FULL_DISK = "full disk", 2
    FAILING_DISK = "failing call on the disk", 2
    FAILING_READ = "failing read of the disk", 1
    TRANSFER = "leadership transfer", 3
    MEMBERSHIP = "membership change", 3
    BURST = "many requests at once", 4
    LAGGARD = "a node cut off for long, many requests", 3
    OLDER_SELF = "a node put back from a backup", 1
