"""Writes to sockets that leave the interpreter to other threads meanwhile.

uvloop writes with the GIL held. A small write to the loopback wakes its reader and so takes 0.1 ms,
for which the journal's thread would wait before each sync.
"""

import asyncio
import os
import sys
from collections.abc import Callable


def write_of(transport: asyncio.WriteTransport) -> Callable[[bytes], bool | None]:
    """A function that does what `transport.write` does.

    It writes to the socket itself, and returns True if that has taken all of the output. What the
    socket does not take, or refuses, goes to the transport, and so does everything behind what the
    transport still has, and all of TLS.
    """
    write, buffered, is_closing = (
        transport.write,
        transport.get_write_buffer_size,
        transport.is_closing,
    )
    socket = transport.get_extra_info("socket")
    if socket is None or transport.get_extra_info("sslcontext") is not None or sys.platform == "win32":
        return write
    descriptor = socket.fileno()

    def write_directly(output: bytes) -> bool:
        # The descriptor of a transport that closes may soon be another's.
        if is_closing() or buffered():
            write(output)
            return False
        try:
            written = os.write(descriptor, output)
        except OSError:  # it is full, or has failed: the transport finds the same
            written = 0
        if written == len(output):
            return True
        write(memoryview(output)[written:])
        return False

    return write_directly
