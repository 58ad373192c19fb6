"""Text from outside, made safe for one line of a terminal or a log.

Names, keys, values and headers are chosen by clients, peers and whoever writes a file. Printed as
they are, a line end forges a line of output, ESC gives commands to the terminal, and an override of
the writing direction shows another text than the one that is there.

Escaped are the control characters C0, DEL and C1, the separators of lines and paragraphs, the marks
and overrides of the writing direction, and lone surrogates, which no encoding has. All else stays
as it is, backslashes included: the result is for people, and JSON output is exact.
"""

import re

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SHORT = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}


def escape(text: str, *, keep: str = "") -> str:
    """The text on one line, with unsafe characters as escapes such as `\\n`, `\\x1b`, `\\u202e`.

    Args:
        keep: unsafe characters that stay, such as tabs in the last field of a line.
    """
    if text.isprintable():
        return text
    return _UNSAFE.sub(lambda found: found[0] if found[0] in keep else _escaped(found[0]), text)


def escape_lines(text: str) -> str:
    """Text of several lines of our own: all is escaped but line feeds and tabs."""
    return escape(text, keep="\n\t")


def escape_json(text: str) -> str:
    """JSON that shows no unsafe character: those that JSON has raw in its texts become escapes."""
    if text.isprintable():
        return text
    return _UNSAFE.sub(lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", text)


def _escaped(character: str) -> str:
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
