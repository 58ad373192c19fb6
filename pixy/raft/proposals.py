"""Outcome of a proposal."""

from enum import Enum


class NotAppended(Enum):
    """Reason why a proposal was not appended to this node's log.

    Nothing of it was appended here, and, unless it was forwarded, nothing anywhere.
    """

    FORWARDED = "forwarded to the leader, whose answer is not known"
    NO_LEADER = "no leader is known"
    NOT_LEADER = "another node leads, and proposals are not forwarded"
    NOT_MEMBER = "the leader has removed itself from the configuration"
    TRANSFERRING = "the leadership is being transferred"
