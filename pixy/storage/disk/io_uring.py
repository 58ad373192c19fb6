"""Durable writes from the event loop by Linux's io_uring: one at a time, and no thread of Python.

A write by a thread takes the GIL three times, and waits for it each time that the event loop runs.
Here the event loop gives a write to the kernel with one system call; a kernel thread writes and
syncs, and an eventfd wakes the loop. The call never waits for the device: the kernel is told to
queue the write (IOSQE_ASYNC) and not to try it first.

    event loop                       kernel thread
    bytes -> buffer
    io_uring_enter      ------->     pwritev2(RWF_DSYNC)
    eventfd, result     <-------     completion

The kernel refuses io_uring where it is switched off (sysctl, seccomp, most container runtimes).
Kernels before 6.0 are not asked: theirs has lost completions. Then the thread writes.

A process that is killed waits for a write that its kernel thread has begun, and only then closes
its files. So the lock on a data directory outlives all writes to it.

The rings are memory shared with the kernel. Submissions are read during the system call of the
thread that wrote them. Completions are read behind a read of the eventfd, which orders them. So no
memory barriers are needed, which Python does not have.

The roads not taken: liburing, whose Python wrappers have to be compiled or are not maintained;
Linux' older asynchronous I/O, whose buffered writes block the caller; direct writes, which a killed
process does not wait for: on a slow disk one lands seconds after the lock is free, behind the back
of the next process.
"""

import asyncio
import ctypes
import errno
import mmap
import os
import platform
import select
import struct
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import structlog

from pixy.storage.disk.direct_writes import DIRECT_BYTES_MIN

log = structlog.get_logger(__name__)

# <linux/io_uring.h>; the numbers of the calls are the same on all these machines.
_MACHINES = ("x86_64", "aarch64")
_SETUP, _ENTER, _REGISTER = 425, 426, 427
_OP_WRITE = 23
_SQE_ASYNC = 1 << 4
_REGISTER_EVENTFD = 4
_OFFSET_SUBMISSIONS = 0x10000000
_FEATURE_SINGLE_MMAP = 1 << 0
_SETUP_SINGLE_ISSUER = 1 << 12
"""One thread alone submits. Kernels before 6.0 refuse a flag that they do not know."""

_PARAMETERS = struct.Struct("<7I3I10I10I")
"""io_uring_params: entries of both rings, flags, CPU, idle time, features, descriptor; reserved;
offsets of the submission ring, and of the completion ring.
"""
_ENTRIES = 4
"""One would do; the kernel takes more processor time then."""
_ENTRY_BYTES = 64
_ENTRY = struct.Struct("<BBHiQQIIQ24x")
"""io_uring_sqe: operation, flags, priority, descriptor, position, address, length, RWF flags, user
data.
"""
_COMPLETION_BYTES = 16
_COMPLETION = struct.Struct("<QiI")
"""io_uring_cqe: user data, result, flags."""
_COUNTER = struct.Struct("<I")
_COUNTER_MAX = 0xFFFFFFFF

_unfinished: list["IoUring"] = []
"""Rings that were closed before the end of their write: the kernel may use their memory."""


def _system_call() -> Callable[..., int] | None:
    """The function `syscall`, called with the GIL held: the calls here do not block."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES or not hasattr(os, "RWF_DSYNC"):
        return None
    function = ctypes.PyDLL(None, use_errno=True).syscall
    function.restype = ctypes.c_long
    function.argtypes = (ctypes.c_long, *[ctypes.c_void_p] * 5, ctypes.c_size_t)
    return function


_call = _system_call()


class IoUring:
    """A ring for one write at a time, on the running event loop.

    Raises:
        OSError: the system has no usable io_uring.
    """

    __slots__ = (
        "_address",
        "_array",
        "_buffer",
        "_closed",
        "_completions",
        "_done",
        "_end",
        "_event",
        "_fd",
        "_head",
        "_loop",
        "_mask",
        "_release",
        "_ring",
        "_submissions",
        "_submitted",
        "_tail",
        "_write_mask",
        "_written",
    )

    def __init__(self) -> None:
        if _call is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        parameters = ctypes.create_string_buffer(
            _PARAMETERS.pack(0, 0, _SETUP_SINGLE_ISSUER, *[0] * 27), _PARAMETERS.size
        )
        self._fd = _checked(_call(_SETUP, _ENTRIES, ctypes.addressof(parameters), None, None, None, 0))
        with ExitStack() as undo:
            undo.callback(os.close, self._fd)
            self._map(_PARAMETERS.unpack(parameters.raw), undo)
            self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            undo.callback(os.close, self._event)
            event = ctypes.c_int(self._event)
            _checked(_call(_REGISTER, self._fd, _REGISTER_EVENTFD, ctypes.addressof(event), 1, None, 0))
            self._release = undo.pop_all().close
        # The bytes of the write in progress, and its callback.
        self._buffer = mmap.mmap(-1, DIRECT_BYTES_MIN)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))
        self._done: Callable[[int], None] | None = None
        # Number of submissions, and of completions that were taken.
        self._submitted = self._written = 0
        self._loop = asyncio.get_running_loop()
        self._closed = False
        # Not at once: requests of the same iteration of the loop come first, and are in the next
        # write.
        self._loop.add_reader(self._event, self._loop.call_soon, self._woken)

    def _map(self, parameters: tuple[int, ...], undo: ExitStack) -> None:
        """Map the rings of `io_uring_params`."""
        entries, completions, features = parameters[0], parameters[1], parameters[5]
        if not features & _FEATURE_SINGLE_MMAP:
            raise OSError(errno.ENOSYS, "the kernel maps each ring on its own")
        _, self._tail, mask, _, _, _, self._array = parameters[10:17]
        self._head, self._end, completion_mask, _, _, self._completions = parameters[20:26]
        size = max(self._array + _COUNTER.size * entries, self._completions + _COMPLETION_BYTES * completions)
        self._ring = undo.enter_context(mmap.mmap(self._fd, size))
        self._submissions = undo.enter_context(
            mmap.mmap(self._fd, _ENTRY_BYTES * entries, offset=_OFFSET_SUBMISSIONS)
        )
        self._write_mask = _COUNTER.unpack_from(self._ring, mask)[0]
        self._mask = _COUNTER.unpack_from(self._ring, completion_mask)[0]

    def write(
        self,
        fd: int,
        buffers: Sequence[bytes | bytearray | memoryview],
        position: int,
        done: Callable[[int], None],
    ) -> bool:
        """Begin to write buffers back to back from byte `position` of a file on.

        Args:
            fd: open for writing until `done` is called.
            done: called on the event loop with the number of bytes that are durable, or a negative
                errno.

        Returns:
            False if they are too large, or the kernel does not take the write: nothing is written
            then.
        """
        assert self._done is None, "a write is in progress"
        assert _call is not None
        size = sum(map(len, buffers))
        if size >= DIRECT_BYTES_MIN:
            return False
        self._buffer[:size] = b"".join(buffers)
        at = self._submitted & self._write_mask
        _ENTRY.pack_into(
            self._submissions,
            _ENTRY_BYTES * at,
            _OP_WRITE,
            _SQE_ASYNC,
            0,
            fd,
            position,
            self._address,
            size,
            os.RWF_DSYNC,
            self._submitted,
        )
        _COUNTER.pack_into(self._ring, self._array + _COUNTER.size * at, at)
        _COUNTER.pack_into(self._ring, self._tail, (self._submitted + 1) & _COUNTER_MAX)
        if _call(_ENTER, self._fd, 1, None, None, None, 0) != 1:
            _COUNTER.pack_into(self._ring, self._tail, self._submitted & _COUNTER_MAX)
            return False
        self._submitted += 1
        self._done = done
        return True

    def close(self, timeout: float) -> None:
        """Wait for the write in progress, whose callback is called, and release the ring.

        Args:
            timeout: seconds. Afterwards the callback is never called, and the kernel may still use
                the descriptor of the write.
        """
        self._closed = True
        self._loop.remove_reader(self._event)
        end = time.monotonic() + timeout
        poll = select.poll()
        poll.register(self._event, select.POLLIN)
        while self._done is not None:
            if not poll.poll(1000 * max(0.0, end - time.monotonic())):
                _unfinished.append(self)
                return
            self._completed()
        self._release()

    def _woken(self) -> None:
        if not self._closed:
            self._completed()

    def _completed(self) -> None:
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            return
        if _COUNTER.unpack_from(self._ring, self._end)[0] == self._written & _COUNTER_MAX:
            return  # woken without a completion
        done, self._done = self._done, None
        at = self._completions + _COMPLETION_BYTES * (self._written & self._mask)
        number, result, _ = _COMPLETION.unpack_from(self._ring, at)
        assert done is not None, "a completion without a write"
        assert number == self._written, f"completion {number} in place of {self._written}"
        self._written += 1
        _COUNTER.pack_into(self._ring, self._head, self._written & _COUNTER_MAX)
        done(result)


def open_io_uring() -> IoUring | None:
    """A ring on the running event loop; None if the system has none that can be used."""
    try:
        return IoUring()
    except OSError as error:
        log.debug("the journal is written by a thread", reason=error.strerror)
        return None


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
