"""The tasks of the event loop and the stacks of threads, as text.

Equal tasks are counted together, because a daemon has thousands of long polls. Stacks are not taken
from running code but from where each task and thread waits, or is at this moment.
"""

import asyncio
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Iterable
from types import FrameType
from typing import Any

from pixy.aio.steps import in_steps

_LINES_MAX = 1000
_STACKS_MAX = 100
_FRAMES_MAX = 30


async def tasks_text() -> str:
    """A line for each kind of task, the most frequent first: how many, name, and where it waits."""
    kinds: Counter[str] = Counter()
    async for task in in_steps(asyncio.all_tasks()):
        kinds[f"{_kind(task)}  {_place(_innermost(task))}"] += 1
    lines = [f"{count:7}  {kind}\n" for kind, count in kinds.most_common(_LINES_MAX)]
    left = len(kinds) - len(lines)
    return f"{kinds.total()} tasks\n{''.join(lines)}" + (f"and {left} more kinds\n" if left else "")


async def stacks_text() -> str:
    """Stacks of all threads, then those of the tasks, equal ones counted together."""
    frames, parts = sys._current_frames(), []
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if frame is not None:
            parts.append(f"thread {thread.name}\n{''.join(traceback.format_stack(frame))}\n")
    del frames
    stacks: Counter[str] = Counter()
    async for task in in_steps(asyncio.all_tasks()):
        stacks["".join(_lines(task.get_stack(limit=_FRAMES_MAX)))] += 1
    for stack, count in stacks.most_common(_STACKS_MAX):
        parts.append(f"{count} task{'' if count == 1 else 's'}\n{stack}\n")
    left = len(stacks) - _STACKS_MAX
    return "".join(parts) + (f"and {left} more stacks\n" if left > 0 else "")


def _kind(task: asyncio.Task[Any]) -> str:
    """Name of a task, without what tells it from others of its kind."""
    name = getattr(task.get_coro(), "__qualname__", "") or task.get_name()
    return f"{name} ({task.get_name()})" if not task.get_name().startswith("Task-") else name


def _innermost(task: asyncio.Task[Any]) -> FrameType | None:
    stack = task.get_stack(limit=_FRAMES_MAX)
    return stack[-1] if stack else None


def _place(frame: FrameType | None) -> str:
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _lines(stack: Iterable[FrameType]) -> Iterable[str]:
    # Without the text of lines, which is read from files.
    return (f"  {_place(frame)} in {frame.f_code.co_qualname}\n" for frame in stack)
