"""pixy/access/users.py: lines of users, and lines that are none."""

import pytest

from pixy.access import MECHANISMS, make_credential, parse_users, user_line

SALT = b"0123456789abcdef"
CREDENTIALS = {mechanism: make_credential(mechanism, "secret", SALT, 4096) for mechanism in MECHANISMS}
LINE = user_line("alice", CREDENTIALS)
ONE = LINE.split()[1]


def test_lines_are_read_as_they_were_written() -> None:
    content = f"\ufeff# users\r\n\r\n{LINE}\r\n  bob@example \t {ONE}\n#{LINE}\n".encode()
    assert parse_users(content).credentials == {
        "alice": CREDENTIALS,
        "bob@example": {"SCRAM-SHA-256": CREDENTIALS["SCRAM-SHA-256"]},
    }


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it has no user"),
        (b"# nobody\n", "it has no user"),
        (b"\xff", "it is no UTF-8 text"),
        (b"\nalice", "line 2: a user without a credential"),
        (f"{LINE}\n{LINE}".encode(), "line 2: the user is there twice"),
        (f"{LINE} {ONE}".encode(), "line 1: two credentials of SCRAM-SHA-256"),
        (b"alice secret", "line 1: expected SCRAM-SHA-256"),
        (f"a\0b {ONE}".encode(), "line 1: a user's name has printable"),
        (f"{'a' * 256} {ONE}".encode(), "line 1: a user's name has at most 255"),
        (f"a {ONE.replace('$4096', '$4095')}".encode(), "line 1: 4095 iterations, expected 4096 to 16384"),
        (f"a {ONE.replace('$4096', '$999999999')}".encode(), "line 1: 999999999 iterations"),
        (f"a {ONE.replace('SHA-256', 'SHA-512')}".encode(), "line 1: keys of SCRAM-SHA-512 have 64 bytes"),
        (
            f"a {ONE.replace('$4096:', '$4096:!')}".encode(),
            "line 1: SCRAM-SHA-256 with a part that is no base64",
        ),
        (b"a SCRAM-SHA-256$4096:AAAA$" + ONE.split("$", 2)[2].encode(), "line 1: a salt of 3 bytes"),
    ],
)
def test_what_is_no_file_of_users_is_refused_with_its_line(content: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        parse_users(content)
    assert "secret" not in str(refused.value)


def test_every_truncated_prefix_of_a_file_is_refused_or_a_user() -> None:
    for at in range(len(LINE)):
        try:
            users = parse_users(LINE[:at].encode()).credentials
        except ValueError:
            continue
        assert at >= len("alice ") + len(ONE) - 1
        assert set(users) == {"alice"}


@pytest.mark.parametrize("name", ["", "a b", "#a", "a\n", "a\u202eb", "a" * 256])
def test_a_name_that_cannot_be_in_a_line_has_none(name: str) -> None:
    with pytest.raises(ValueError, match="a user's name"):
        user_line(name, CREDENTIALS)
