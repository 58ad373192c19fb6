"""Kinds of faults and actions of operators."""

from tests.sim.kit.faults import FaultKinds


class FaultKind(FaultKinds):
    """See `FaultKinds`."""

    CRASH = "crash", 6
    CRASH_LEADER = "crash of a leader", 4
    CRASH_AT = "crash at an operation of the disk", 5
    CRASH_NEAR = "crash near a decisive operation of the disk", 4
    CRASH_ALL = "crash of all", 2
    CRASH_STARTS = "crash of all, and of their starts", 6
    STOP = "orderly stop", 3
    PAUSE = "pause of a process", 5
    SPLIT = "split", 3
    ONE_WAY = "one-way cut", 3
    ONE_LINK = "one link cut", 3
    ISOLATE_LEADER = "leader cut off", 4
    STORM = "packets late and lost", 3
    SLOW_LINK = "slow link", 2
    RESET = "connections reset", 2
    DAMAGE = "bytes changed on their way", 1
    SLOW_DISK = "slow disk", 3
    STALLED_DISK = "stalled disk", 2
    FULL_DISK = "full disk", 2
    FAILING_DISK = "failing call on the disk", 3
    FAILING_READ = "failing read of the disk", 1
    CLOCK = "wall clock set", 2
    DRIFT = "wall clock drifts", 2
    JUMP = "all wall clocks jump", 2
    BURST = "many appends at once", 3
    LAGGARD = "a node cut off for long", 3
    JOIN = "a new node joins", 3
    REMOVE = "a node removed", 1
    OLDER_SELF = "a node put back from a backup", 1
    TWIN = "two nodes with one id", 1
    LOST_DISK = "a lost disk", 1
    DAMAGED_FLUSH = "the newest flush damaged", 1
    MOVE = "partitions move", 30
    DRAIN = "a node drained for a while", 5
    REBALANCE = "partitions rebalanced", 5
    CANCEL = "moves taken back", 8
    REPLICATION = "a topic gets another number of replicas", 5
    LATE_METADATA = "a node hears late of moves, and leads or is called back", 5
    LATE_ENDS = "moves are taken back and begun again, and their ends are late", 3
