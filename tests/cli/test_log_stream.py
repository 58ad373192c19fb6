"""Log lines of a reader that stops to read, and of one that has ended."""

import os
from collections.abc import Iterator

import pytest
import structlog

from pixy.cli.log_stream import LogStream, log_stream
from pixy.cli.logs import setup_logging
from pixy.config import LoggingConfig

ENDS = b"the end\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Read and write end."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def read_up_to(fd: int, text: bytes) -> bytes:
    found = b""
    while not found.endswith(text):
        found += os.read(fd, 1 << 20)
    return found


@pytest.mark.slow
def test_a_reader_that_does_not_read_stops_nobody_and_is_told_how_much_it_missed(
    pipe: tuple[int, int],
) -> None:
    source, sink = pipe
    stream = LogStream(sink)
    setup_logging([LoggingConfig("json", "info")], stream)
    for number in range(20_000):  # 3 MB
        structlog.get_logger("a").error("line", number=number, text="x" * 100)
    missed = 0
    found: list[bytes] = []
    while not missed:
        found += os.read(source, 1 << 16).splitlines()
        structlog.get_logger("a").error("present")
        missed = sum(b"unread_lines_left_out" in line for line in found)
    stream.drain()
    assert missed == 1


def test_what_waits_is_written_in_order_at_the_end(pipe: tuple[int, int]) -> None:
    source, sink = pipe
    with log_stream(sink) as stream:
        assert not stream.isatty()
        for number in range(100):
            stream.write(f"line {number}\n")
    os.set_blocking(source, False)
    assert os.read(source, 1 << 20).splitlines() == [b"line %d" % number for number in range(100)]


@pytest.mark.slow
def test_the_end_does_not_wait_for_a_reader_that_does_not_read(pipe: tuple[int, int]) -> None:
    source, sink = pipe
    with log_stream(sink) as stream:
        stream.write("x" * (1 << 17))
        stream.write(ENDS.decode())
    assert len(read_up_to(source, ENDS)) == (1 << 17) + len(ENDS)


def test_a_reader_that_has_ended_does_no_harm() -> None:
    source, sink = os.pipe()
    os.close(source)
    with log_stream(sink) as stream:
        stream.write("nobody reads this\n")
    os.close(sink)
