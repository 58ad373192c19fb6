"""Flow control, `pixy.http2.flow`: a client may never send more than was consumed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.http2 import ErrorCode, Options
from pixy.http2 import frames as f
from pixy.http2.errors import Http2ConnectionError, Http2StreamError
from pixy.http2.flow import WINDOW_MAX, ReceiveWindow, increase_window
from pixy.http2.frames import FrameType
from tests.http2.peer import OK, TRAILERS, Peer, data, headers

SIZE = 65_535


def test_a_window_accepts_its_size_and_not_a_byte_more() -> None:
    window = ReceiveWindow(10)
    assert not window.take(11)
    assert window.take(10)
    assert not window.take(1)
    assert window.take(0)


@given(st.lists(st.integers(0, 30), max_size=50))
def test_a_window_opens_in_steps_of_half_its_size_and_loses_nothing(sizes: list[int]) -> None:
    window, received = ReceiveWindow(20), 0
    for size in sizes:
        if window.take(size):
            received += size
            window.unannounced += size
        due = window.due()
        assert due == 0 or due >= 10
        assert window.unannounced < 10
        assert window.left + window.unannounced == 20
    assert window.left > 10


def test_a_window_overflow_is_a_stream_or_connection_error() -> None:
    assert increase_window(WINDOW_MAX - 1, 1, 1) == WINDOW_MAX
    assert increase_window(-5, 3, 1) == -2
    with pytest.raises(Http2StreamError) as of_stream:
        increase_window(WINDOW_MAX, 1, 3)
    assert (of_stream.value.stream_id, of_stream.value.code) == (3, ErrorCode.FLOW_CONTROL_ERROR)
    with pytest.raises(Http2ConnectionError) as of_connection:
        increase_window(WINDOW_MAX, 1, 0)
    assert of_connection.value.code is ErrorCode.FLOW_CONTROL_ERROR


class WindowLedger:
    """A client that keeps account of its windows and of the bytes that the server may still have in
    memory.
    """

    def __init__(self) -> None:
        self.peer = Peer(Options(connection_window_bytes=SIZE, stream_window_bytes=SIZE))
        self.connection_window = SIZE
        # Bytes it may send on open streams, and bytes sent but not consumed by the server.
        self.windows: dict[int, int] = {}
        self.kept: dict[int, int] = {}
        self.next_id = 1

    def begin(self) -> int:
        stream_id, self.next_id = self.next_id, self.next_id + 2
        return stream_id

    def whole(self, stream_id: int, size: int) -> None:
        """A request in one chunk, answered at once."""
        size = min(size, self.connection_window)
        self.peer.send(headers(stream_id, self.peer.block()), data(stream_id, bytes(size)))
        self.peer.connection.respond(stream_id, OK, b"")
        self.connection_window -= size

    def open(self, stream_id: int) -> None:
        self.peer.send(headers(stream_id, self.peer.block()))
        self.windows[stream_id], self.kept[stream_id] = SIZE, 0

    def send(self, stream_id: int, size: int, padding: int) -> None:
        """Send DATA; padding counts as consumed."""
        room = min(self.connection_window, self.windows[stream_id])
        if room > padding:
            size = min(size, room - padding - 1)
            body = bytes((padding,)) + bytes(size + padding)
            self.peer.send(data(stream_id, body, f.PADDED))
            self.connection_window -= len(body)
            self.windows[stream_id] -= len(body)
            self.kept[stream_id] += size

    def consume(self, stream_id: int, size: int) -> None:
        size = min(size, self.kept[stream_id])
        self.peer.connection.replenish(stream_id, size)
        self.kept[stream_id] -= size

    def end(self, stream_id: int, action: str) -> None:
        """A closed stream leaves nothing unconsumed."""
        if action == "reset":
            self.peer.connection.reset(stream_id, ErrorCode.CANCEL)
        elif action == "cancel":
            self.peer.send(f.rst_stream(stream_id, ErrorCode.CANCEL))
        else:
            self.peer.connection.send_trailers(stream_id, [(b":status", b"200"), *TRAILERS])
        del self.kept[stream_id], self.windows[stream_id]

    def settle(self) -> None:
        """Apply received WINDOW_UPDATE frames, and check all windows against the consumed bytes."""
        for sent in self.peer.frames():
            if sent.type == FrameType.WINDOW_UPDATE and not sent.stream_id:
                self.connection_window += f.read_uint32(sent.payload)
            elif sent.type == FrameType.WINDOW_UPDATE and sent.stream_id in self.windows:
                self.windows[sent.stream_id] += f.read_uint32(sent.payload)
        assert self.connection_window <= SIZE - sum(self.kept.values())
        for stream_id, kept in self.kept.items():
            assert self.windows[stream_id] <= SIZE - kept


ACTIONS = st.sampled_from(
    ["whole", "open", "send", "send", "send", "consume", "consume", "reset", "cancel", "answer"]
)


@pytest.mark.slow
@given(st.lists(st.tuples(ACTIONS, st.integers(0, 5), st.integers(0, 16_000)), max_size=60))
def test_no_window_is_opened_for_more_than_was_consumed(steps: list[tuple[str, int, int]]) -> None:
    ledger = WindowLedger()
    for action, number, size in steps:
        stream_id = sorted(ledger.kept)[number % len(ledger.kept)] if ledger.kept else 0
        if action == "whole":
            ledger.whole(ledger.begin(), size)
        elif action == "open" or not stream_id:
            ledger.open(ledger.begin())
        elif action == "send":
            ledger.send(stream_id, size, number)
        elif action == "consume":
            ledger.consume(stream_id, size)
        else:
            ledger.end(stream_id, action)
        ledger.settle()


def test_a_stream_read_as_it_arrives_may_send_what_was_read_and_not_a_byte_more() -> None:
    ledger = WindowLedger()
    ledger.open(1)
    for round_ in range(40):
        ledger.send(1, 7_000, round_ % 5)
        ledger.consume(1, 7_000)
        ledger.settle()
    assert ledger.windows[1] > SIZE // 2
    assert ledger.connection_window > SIZE // 2
