"""pixy/rpc/methods.py: the table of methods, by descriptors."""

import pytest

from pixy.rpc import Service, StreamCall
from pixy.rpc.methods import method_table
from tests.fakes.echo import DESCRIPTOR, Echo


def test_methods_have_their_paths_kinds_and_classes() -> None:
    table = method_table([Echo().service()])
    kinds = {
        path: [kind for kind in ("unary", "coroutine", "stream") if getattr(method, kind) is not None]
        for path, method in table.items()
    }
    assert kinds == {
        b"/test.Echo/Unary": ["unary"],
        b"/test.Echo/Task": ["coroutine"],
        b"/test.Echo/Collect": ["stream"],
        b"/test.Echo/Repeat": ["stream"],
        b"/test.Echo/Chat": ["stream"],
    }
    collect = table[b"/test.Echo/Collect"]
    assert (collect.client_streams, collect.server_streams, collect.name) == (
        True,
        False,
        "test.Echo/Collect",
    )
    assert collect.parse(bytearray(b"\x0a\x01x")).value == b"x"


def test_a_handler_of_a_method_that_does_not_exist_is_a_bug() -> None:
    async def handler(call: StreamCall) -> None: ...

    with pytest.raises(AssertionError, match="has no methods"):
        method_table([Service(DESCRIPTOR, {"None": handler})])


def test_a_streaming_method_needs_a_coroutine() -> None:
    with pytest.raises(AssertionError, match="needs a coroutine"):
        method_table([Service(DESCRIPTOR, {"Chat": lambda call: None})])
