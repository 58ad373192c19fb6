"""pixy/access/plain.py"""

import pytest

from pixy.access.plain import PlainRefused, parse_plain


@pytest.mark.parametrize("message", [b"\0user\0pass word", b"user\0user\0pass word"])
def test_user_and_password(message: bytes) -> None:
    assert parse_plain(message) == ("user", "pass word")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"user",
        b"user\0pass",
        b"\0\0pass",
        b"\0user\0",
        b"other\0user\0pass",
        b"\0user\0pa\0ss",
        b"\0u\0\xff",
    ],
)
def test_what_is_no_message_of_plain_is_refused(message: bytes) -> None:
    with pytest.raises(PlainRefused):
        parse_plain(message)
