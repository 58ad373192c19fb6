"""SETTINGS, `pixy.http2.settings`."""

import pytest
from hyperframe.frame import SettingsFrame

from pixy.http2 import ErrorCode, Options
from pixy.http2.errors import Http2ConnectionError
from pixy.http2.settings import PeerSettings, Setting, encode_settings, our_preface, read_settings

MAX = 2**31 - 1


def test_our_settings_follow_from_the_options() -> None:
    frame = SettingsFrame(0)
    frame.parse_body(
        memoryview(our_preface(Options(max_concurrent_streams=7, max_header_list_bytes=2048))[9:33])
    )
    assert frame.settings == {
        SettingsFrame.MAX_CONCURRENT_STREAMS: 7,
        SettingsFrame.INITIAL_WINDOW_SIZE: Options().stream_window_bytes,
        SettingsFrame.MAX_FRAME_SIZE: 49_152,
        SettingsFrame.MAX_HEADER_LIST_SIZE: 2048,
    }


def test_the_last_of_equal_entries_wins_and_unknown_ones_are_ignored() -> None:
    entries = [
        (Setting.INITIAL_WINDOW_SIZE, 1),
        (0xFF, 2),
        (Setting.INITIAL_WINDOW_SIZE, 3),
        (Setting.MAX_FRAME_SIZE, 20_000),
    ]
    peer = PeerSettings()
    peer.apply(read_settings(encode_settings(entries)))
    assert peer == PeerSettings(initial_window_bytes=3, max_frame_bytes=20_000)


@pytest.mark.parametrize(
    ("setting", "value", "code"),
    [
        (Setting.ENABLE_PUSH, 2, ErrorCode.PROTOCOL_ERROR),
        (Setting.INITIAL_WINDOW_SIZE, MAX + 1, ErrorCode.FLOW_CONTROL_ERROR),
        (Setting.MAX_FRAME_SIZE, 16_383, ErrorCode.PROTOCOL_ERROR),
        (Setting.MAX_FRAME_SIZE, 2**24, ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_values_out_of_range_are_rejected(setting: Setting, value: int, code: ErrorCode) -> None:
    with pytest.raises(Http2ConnectionError) as caught:
        read_settings(encode_settings([(setting, value)]))
    assert caught.value.code is code


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        (Setting.ENABLE_PUSH, 1),
        (Setting.INITIAL_WINDOW_SIZE, MAX),
        (Setting.MAX_FRAME_SIZE, 2**24 - 1),
        (Setting.HEADER_TABLE_SIZE, 2**32 - 1),
    ],
)
def test_values_at_the_end_of_their_range_are_accepted(setting: Setting, value: int) -> None:
    assert read_settings(encode_settings([(setting, value)])) == [(setting, value)]


@pytest.mark.parametrize("size", [1, 5, 7, 11])
def test_incomplete_entries_are_a_frame_size_error(size: int) -> None:
    with pytest.raises(Http2ConnectionError) as caught:
        read_settings(bytes(size))
    assert caught.value.code is ErrorCode.FRAME_SIZE_ERROR
