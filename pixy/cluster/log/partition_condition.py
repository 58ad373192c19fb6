"""The condition of a partition on this node.

    condition    serves and takes   its log is written   since
    READY        yes                yes
    UNREADABLE   no                 yes                  a reader found damage, or a start misses a
                                                         stage that was published
    UNWRITABLE   no                 no                   a start found damage and did not open the
                                                         log, or the log writer gave it up

A condition only becomes worse, until a copy replaces the files (`Partitions.install`); the next
start decides anew. While a partition is unwritable, its
entries behind the applied position stay in the journal.

Two facts are no part of the condition. The deletion of a topic is one flag for all its partitions
(`TopicLogs.deleted`), because 10 000 of them are deleted in one step; the condition of a deleted
partition matters to nobody. Writing that waits for room on the disk is a state of the node.
"""

from enum import IntEnum


class PartitionCondition(IntEnum):
    """The condition of a partition, ascending by damage; see the table of the module."""

    READY = 0
    UNREADABLE = 1
    UNWRITABLE = 2
