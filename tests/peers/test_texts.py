"""Texts of other nodes in logs."""

import pytest

from pixy.peers.texts import STRANGER_CHARACTERS_MAX, shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the reason", "the reason"),
        ("caf\u00e9", "caf\u00e9"),
        (b"a\x1b[2Jb", "a\\x1b[2Jb"),
        (b"a\r\nb", "a\\r\\nb"),
        ("\u202eevil", "\\u202eevil"),
        (b"\xff", "\ufffd"),
    ],
)
def test_what_does_not_print_is_escaped(text: str | bytes, expected: str) -> None:
    assert shown(text) == expected


def test_a_text_is_cut_off() -> None:
    for text in ("A" * 5000, b"\x1b" * 5000, "\u202e" * 5000):
        assert len(shown(text)) == STRANGER_CHARACTERS_MAX
