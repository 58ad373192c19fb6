import pytest

from pixy.cli.output import MessageProgress, json_bytes, print_json, print_table, readable_bytes, report_error
from tests.fakes.clock import FakeClock


def test_numbers_are_right_aligned_and_texts_left_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["NAME", "COUNT"], [["a", 1], ["longer", 23456]])
    assert capsys.readouterr().out == "NAME    COUNT\na           1\nlonger  23456\n"


def test_bytes_are_text_if_they_are_utf_8() -> None:
    assert (readable_bytes("ü".encode()), json_bytes("ü".encode())) == ("ü", "ü")
    assert (readable_bytes(b"\xff"), json_bytes(b"\xff")) == ("base64:/w==", {"base64": "/w=="})


def test_json_keeps_letters_of_all_languages(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": "ü"})
    assert capsys.readouterr().out == '{"a": "ü"}\n'


def test_each_line_of_an_error_is_prefixed(capsys: pytest.CaptureFixture[str]) -> None:
    report_error("one\ntwo")
    assert capsys.readouterr() == ("", "pixy: one\npixy: two\n")


def test_progress_is_drawn_at_intervals_and_summed_up(capsys: pytest.CaptureFixture[str]) -> None:
    clock = FakeClock()
    progress = MessageProgress(shown=True, clock=clock.monotonic)
    for _ in range(4):
        clock.advance(0.125)
        progress.add(1)
    progress.finish()
    drawn = "\r2 messages, 8/s \r4 messages, 8/s \r4 messages in 0.50 s, 8/s\n"
    assert capsys.readouterr() == ("", drawn)


def test_without_progress_only_the_summary_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    clock = FakeClock()
    progress = MessageProgress(shown=False, clock=clock.monotonic)
    clock.advance(0.5)
    progress.add(1)
    progress.finish()
    assert capsys.readouterr() == ("", "1 message in 0.50 s, 2/s\n")
