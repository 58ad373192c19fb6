"""Limits, `pixy.http2.options`."""

from dataclasses import replace

import pytest

from pixy.http2 import Options


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_concurrent_streams", 0),
        ("max_header_list_bytes", 0),
        ("max_frame_bytes", 16_383),
        ("max_frame_bytes", 2**24),
        ("stream_window_bytes", 65_534),
        ("stream_window_bytes", 2**31),
        ("connection_window_bytes", 65_534),
        ("output_bytes", 0),
    ],
)
def test_limits_outside_the_protocols_range_are_rejected(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value}, expected"):
        replace(Options(), **{name: value})  # type: ignore[arg-type]  # the names are those of integers


def test_a_frame_may_not_be_larger_than_a_streams_window() -> None:
    """The fast path does not check a single frame against the stream's window."""
    with pytest.raises(ValueError, match="max_frame_bytes"):
        Options(max_frame_bytes=100_000, stream_window_bytes=65_535)
