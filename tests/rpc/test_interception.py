"""pixy/rpc/interception.py: principals, and refusals before any handler of any kind."""

from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import BytesValue

from pixy.rpc import CallHead, GrpcError, Status
from pixy.rpc.interception import ANONYMOUS, principal_of_certificate
from tests.fakes.echo import open_echo, value
from tests.fakes.grpc_client import Answer, messages_in, open_client

UNARY, TASK, REPEAT, COLLECT, CHAT = (
    f"/test.Echo/{name}" for name in ("Unary", "Task", "Repeat", "Collect", "Chat")
)


class Tokens:
    """Takes the metadata `token` for the principal, and refuses calls without one.

    Attributes:
        seen: heads of all decisions.
    """

    def __init__(self) -> None:
        self.seen: list[CallHead] = []

    def __call__(self, head: CallHead) -> str:
        self.seen.append(head)
        token = dict(head.metadata).get("token", "")
        if not token:
            raise GrpcError(Status.UNAUTHENTICATED, "no token")
        if token == "bug":
            raise KeyError("a bug")
        assert isinstance(token, str)
        return token


def said(answer: Answer) -> bytes:
    ((_, message),) = messages_in(answer.body)
    return BytesValue.FromString(message).value


@pytest.mark.parametrize("path", [UNARY, TASK, REPEAT, COLLECT, CHAT])
async def test_a_call_of_any_kind_is_refused_before_its_handler(path: str) -> None:
    async with open_echo(intercept=Tokens()) as echo, open_client(echo.address) as client:
        answer = await client.call(path, value(b"1 1"))
        assert (answer.status, answer.message) == (Status.UNAUTHENTICATED, "no token")
        assert (echo.server.counters.calls, echo.server.counters.rejected) == (0, 1)
        assert (await client.call(path, value(b"1 1"), [("token", "me")])).status == Status.OK


async def test_a_handler_knows_its_caller() -> None:
    async with open_echo(intercept=Tokens()) as echo, open_client(echo.address) as client:
        for name in ("alice", "bob", "alice"):
            assert said(await client.call(UNARY, value(b"who"), [("token", name)])) == name.encode()


async def test_a_header_section_that_repeats_is_decided_once_also_with_other_deadlines() -> None:
    tokens = Tokens()
    async with open_echo(intercept=tokens) as echo, open_client(echo.address) as client:
        for milliseconds in range(50_000, 50_020):
            fields = [("token", "alice"), ("grpc-timeout", f"{milliseconds}m")]
            assert said(await client.call(UNARY, value(b"who"), fields)) == b"alice"
    # The first sections differ in more than the deadline, because they fill the table of HPACK.
    assert len(tokens.seen) < 5
    assert (tokens.seen[0].method, tokens.seen[0].certificate) == ("test.Echo/Unary", None)
    assert tokens.seen[0].peer.startswith("127.0.0.1:")


async def test_a_refusal_is_decided_anew_each_time() -> None:
    tokens = Tokens()
    async with open_echo(intercept=tokens) as echo, open_client(echo.address) as client:
        for _ in range(5):
            assert (await client.call(UNARY, value(b"x"))).status == Status.UNAUTHENTICATED
    assert len(tokens.seen) == 5


async def test_a_bug_of_the_interceptor_ends_the_call_alone() -> None:
    async with open_echo(intercept=Tokens()) as echo, open_client(echo.address) as client:
        assert (await client.call(UNARY, value(b"x"), [("token", "bug")])).status == Status.INTERNAL
        assert (await client.call(UNARY, value(b"x"), [("token", "me")])).status == Status.OK
        assert [str(fault) for fault in echo.faults] == ["'a bug'"]


async def test_metadata_that_cannot_be_read_is_refused_when_the_interceptor_looks_at_it() -> None:
    async with open_echo(intercept=Tokens()) as echo, open_client(echo.address) as client:
        answer = await client.call(UNARY, value(b"x"), [("a-bin", "!")])
        assert (answer.status, echo.faults) == (Status.INTERNAL, [])


async def test_without_a_certificate_a_caller_is_anonymous() -> None:
    async with open_echo() as echo, open_client(echo.address) as client:
        assert said(await client.call(UNARY, value(b"who"))) == ANONYMOUS.encode()


def head_of(subject: Any) -> CallHead:
    return CallHead("a.B/C", "unix", {"subject": subject}, ())


@pytest.mark.parametrize(
    ("subject", "principal"),
    [
        ((), ""),
        (((("commonName", "alice"),),), "CN=alice"),
        (
            (
                (("countryName", "DE"),),
                (("organizationName", "A, B"),),
                (("commonName", "x"), ("userId", "7")),
            ),
            "CN=x+UID=7,O=A\\, B,C=DE",
        ),
        (((("serialNumber", "1"),),), "serialNumber=1"),
    ],
)
def test_the_subject_of_a_certificate_is_written_as_a_distinguished_name(
    subject: Any, principal: str
) -> None:
    assert principal_of_certificate(head_of(subject)) == principal
