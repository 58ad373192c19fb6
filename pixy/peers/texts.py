"""Texts of other nodes, and of whoever says to be one, as they may be logged and shown."""

STRANGER_CHARACTERS_MAX = 200
"""Longest text of a node that has proven nothing."""


def shown(text: bytes | memoryview | str, characters_max: int = STRANGER_CHARACTERS_MAX) -> str:
    """A text on one line, cut off, with escapes for what does not print: it may be anything.

    Args:
        text: UTF-8, or a string.
    """
    if not isinstance(text, str):
        text = bytes(text[: 4 * characters_max]).decode("utf-8", "replace")
    text = text[:characters_max]
    if not text.isprintable():
        text = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)[:characters_max]
    return text
