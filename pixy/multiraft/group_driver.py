"""Verbs of a driver for its parts: clock, reads, rest and snapshots of its groups."""

from typing import Protocol

from pixy.multiraft.raft_group import RaftGroup


class GroupDriver(Protocol):
    """See `Driver`."""

    def drive(self, group: RaftGroup) -> None:
        """Work off what the core has to do."""

    def ticked(self, group: RaftGroup, *, timed_out: bool) -> None:
        """The clock of a group was advanced; `timed_out` once in an election timeout."""

    def seek_leader(self, group: RaftGroup) -> None:
        """Campaign if this node has the only vote."""

    def hand_over(self, group: RaftGroup) -> None:
        """Hand the leadership over to the follower that is closest behind, if one is active."""

    def waits_for_room(self, group: RaftGroup) -> bool:
        """True if something of a group waits to be proposed."""
