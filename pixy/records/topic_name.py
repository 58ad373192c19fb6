"""Kafka's rules for topic names."""

import re

from pixy.errors import InvalidTopic

_RULE = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def check_topic_name(name: str) -> None:
    """Check that a topic may have this name.

    Raises:
        InvalidTopic: the name violates a rule.
    """
    if not _RULE.fullmatch(name) or name in (".", ".."):
        shown = name if len(name) <= 60 else name[:60] + "..."
        raise InvalidTopic(
            f"invalid topic name {shown!r}: 1 to 249 of the characters a-z A-Z 0-9 . _ - are allowed, and not . or .."
        )
