"""Stream states, `pixy.http2.streams`."""

import pytest

from pixy.http2.flow import ReceiveWindow
from pixy.http2.frames import FrameType
from pixy.http2.streams import FRAME_ACTIONS, UNANSWERED, Stream, StreamState, StreamTable


def table_with_one_of_each() -> tuple[StreamTable, dict[int, StreamState]]:
    table = StreamTable(ReceiveWindow(100))
    for stream_id in (1, 3, 9, 11):
        table.mark_used(stream_id)
    table.active[1] = Stream(1, StreamState.OPEN, 10)
    table.active[3] = UNANSWERED
    table.remember_reset(9)
    return table, {
        1: StreamState.OPEN,
        3: StreamState.HALF_CLOSED_REMOTE,
        5: StreamState.SKIPPED,
        7: StreamState.SKIPPED,
        9: StreamState.RESET,
        11: StreamState.CLOSED,
        13: StreamState.IDLE,
        2: StreamState.IDLE,
        12: StreamState.IDLE,
    }


def test_the_state_of_a_stream_follows_from_its_history() -> None:
    table, states = table_with_one_of_each()
    assert {stream_id: table.state(stream_id) for stream_id in states} == states
    assert set(states.values()) == set(StreamState)


@pytest.mark.parametrize(
    "frame_type", [FrameType.DATA, FrameType.HEADERS, FrameType.RST_STREAM, FrameType.WINDOW_UPDATE]
)
def test_every_state_has_an_action_for_every_frame_type(frame_type: FrameType) -> None:
    assert set(FRAME_ACTIONS[frame_type]) == set(StreamState)


def test_a_stream_without_state_of_its_own_gets_an_object_on_demand() -> None:
    table, _ = table_with_one_of_each()
    stream = table.materialize(3, 42)
    assert stream is not None
    assert stream is not UNANSWERED
    assert (stream.stream_id, stream.state, stream.send_window) == (3, StreamState.HALF_CLOSED_REMOTE, 42)
    assert table.materialize(3, 7) is stream
    assert table.materialize(5, 7) is None


def test_unconsumed_bytes_of_a_closed_stream_return_to_the_connections_window() -> None:
    window = ReceiveWindow(100)
    table = StreamTable(window)
    table.mark_used(1)
    table.active[1] = Stream(1, StreamState.OPEN, 10)
    window.take(30)
    table.active[1].unconsumed_bytes = 30
    assert table.close(1) is not None
    assert window.unannounced == 30
    assert table.close(1) is None
    assert table.state(1) is StreamState.CLOSED


def test_the_memory_of_closed_streams_is_bounded() -> None:
    table = StreamTable(ReceiveWindow(100))
    for stream_id in range(1, 40_000, 4):
        table.mark_used(stream_id)
        table.remember_reset(stream_id)
    assert table.state(39_997) is StreamState.RESET
    assert table.state(39_995) is StreamState.SKIPPED
    assert table.state(1) is table.state(3) is StreamState.CLOSED
    assert len(table._reset) == 1024
    assert len(table._skipped) == 16
