"""pixy/futures.py: a waiter may be gone when its future is completed, and nothing completes one in another way."""

import ast
import asyncio
from pathlib import Path

import pytest

import pixy
from pixy.futures import reject, resolve

SOURCES = sorted(Path(pixy.__file__).parent.rglob("*.py"))


async def test_a_future_is_completed_once() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    resolve(future, 1)
    resolve(future, 2)
    reject(future, ValueError("too late"))
    assert await future == 1


async def test_a_future_fails_once() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    reject(future, ValueError("no"))
    reject(future, ValueError("too late"))
    resolve(future, 1)
    with pytest.raises(ValueError, match="no"):
        await future


async def test_one_whose_waiter_was_cancelled_is_left_alone() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    future.cancel()
    resolve(future, 1)
    reject(future, ValueError("too late"))
    assert future.cancelled()


def test_nothing_else_completes_a_future() -> None:
    completing = [
        f"{path}:{node.lineno}"
        for path in SOURCES
        if path.name != "futures.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("set_result", "set_exception")
    ]
    assert not completing, f"complete futures with pixy.futures, their waiters may be gone: {completing}"
