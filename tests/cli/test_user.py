"""`pixy user`: lines of the file of users."""

import pytest
from click.testing import CliRunner, Result

from pixy.access import MECHANISMS, parse_users
from pixy.access.scram import has_password
from pixy.cli import main


def run(*args: str, given: str) -> Result:
    return CliRunner().invoke(main, ["user", *args], input=given)


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_line_has_credentials_of_the_password_and_not_the_password(end: str) -> None:
    result = run("alice", "--iterations", "5000", given=f" se cret{end}")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "cret" not in result.stdout
    of_user = parse_users(result.stdout.encode()).credentials["alice"]
    assert set(of_user) == set(MECHANISMS)
    for mechanism, credential in of_user.items():
        assert credential.iterations == 5000
        assert has_password(mechanism, credential, " se cret")
        assert not has_password(mechanism, credential, "se cret")


def test_each_line_has_salts_of_its_own() -> None:
    made = [parse_users(run("a", given="secret\n").stdout.encode()).credentials["a"] for _ in range(2)]
    assert len({credential.salt for each in made for credential in each.values()}) == 4


@pytest.mark.parametrize(
    ("name", "given", "reason"),
    [
        ("alice", "", "a password has 1 to 1024 characters"),
        ("alice", "\n", "a password has 1 to 1024 characters"),
        ("alice", "x" * 1025, "a password has 1 to 1024 characters"),
        ("alice", "a\0b", "a password has 1 to 1024 characters"),
        ("a b", "secret", "a user's name has printable characters"),
    ],
)
def test_what_cannot_be_a_user_is_refused_with_exit_code_2(name: str, given: str, reason: str) -> None:
    result = run(name, given=given)
    assert (result.exit_code, result.stdout) == (2, "")
    assert reason in result.stderr
