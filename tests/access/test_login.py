"""pixy/access/login.py: both mechanisms against a file of users."""

from pathlib import Path

import pytest

from pixy.access import (
    MECHANISMS,
    Login,
    LoginFailed,
    Logins,
    SaslStep,
    UsersFile,
    make_credential,
    user_line,
)
from pixy.config import read_users
from tests.access.test_scram import client_final


@pytest.fixture
def logins(tmp_path: Path) -> Logins:
    path = tmp_path / "users"
    both = {mechanism: make_credential(mechanism, "secret", bytes(16), 4096) for mechanism in MECHANISMS}
    one = {"SCRAM-SHA-512": make_credential("SCRAM-SHA-512", "other", bytes(16), 5000)}
    path.write_text(f"{user_line('alice', both)}\n{user_line('bob', one)}\n")
    return Logins(UsersFile(str(path), read_users))


async def log_in(logins: Logins, mechanism: str, user: str, password: str) -> str:
    """The user that has logged in."""
    login = Login(logins, mechanism, "127.0.0.1")
    if mechanism == "PLAIN":
        return (await login.step(f"\0{user}\0{password}".encode())).user
    challenge, nobody = await login.step(f"n,,n={user},r=abc".encode())
    assert nobody == ""
    return (await login.step(client_final(mechanism, password, challenge, f"n={user},r=abc"))).user


@pytest.mark.parametrize("mechanism", Logins.mechanisms)
async def test_a_user_logs_in_with_the_right_password(logins: Logins, mechanism: str) -> None:
    assert await log_in(logins, mechanism, "alice", "secret") == "alice"
    for user, password, known in (("alice", "Secret", "alice"), ("carol", "secret", "")):
        with pytest.raises(LoginFailed) as failed:
            await log_in(logins, mechanism, user, password)
        assert failed.value.user == known


async def test_a_user_with_one_credential_logs_in_with_that_and_with_plain(logins: Logins) -> None:
    assert await log_in(logins, "SCRAM-SHA-512", "bob", "other") == "bob"
    assert await log_in(logins, "PLAIN", "bob", "other") == "bob"
    with pytest.raises(LoginFailed):
        await log_in(logins, "SCRAM-SHA-256", "bob", "other")


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_name_that_is_no_user_is_challenged_like_one(logins: Logins, mechanism: str) -> None:
    challenges = [
        (await Login(logins, mechanism, "").step(f"n,,n={name},r=abc".encode())).message.split(b",")[1:]
        for name in ("alice", "carol", "carol", "dora")
    ]
    assert challenges[1] == challenges[2]
    assert challenges[1] != challenges[3]
    assert all(each[1] == b"i=4096" and len(each[0]) == len(challenges[0][0]) for each in challenges)


@pytest.mark.parametrize("mechanism", Logins.mechanisms)
async def test_what_is_no_message_fails_the_login(logins: Logins, mechanism: str) -> None:
    with pytest.raises(LoginFailed):
        await Login(logins, mechanism, "").step(b"\xff")


async def test_a_nonce_is_never_given_twice(logins: Logins) -> None:
    steps: list[SaslStep] = [
        await Login(logins, "SCRAM-SHA-256", "").step(b"n,,n=alice,r=abc") for _ in range(100)
    ]
    assert len({each.message for each in steps}) == 100
