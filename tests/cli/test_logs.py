import io
import json
import logging
from contextlib import suppress

import pytest
import structlog

from pixy.cli.logs import FewLines, setup_logging
from pixy.config import LoggingConfig


def test_both_kinds_of_loggers_write_json_with_the_same_fields() -> None:
    stream = io.StringIO()
    setup_logging([LoggingConfig("json", "info")], stream)
    structlog.get_logger("pixy.daemon").info("started", address="127.0.0.1:1")
    logging.getLogger("library").warning("odd %s", "thing")
    ours, theirs = (json.loads(line) for line in stream.getvalue().splitlines())
    assert ours.pop("timestamp").endswith("Z")
    assert theirs.pop("timestamp").endswith("Z")
    assert ours == {"event": "started", "address": "127.0.0.1:1", "level": "info", "logger": "pixy.daemon"}
    assert theirs == {"event": "odd thing", "level": "warning", "logger": "library"}


def test_records_below_the_severity_are_left_out() -> None:
    stream = io.StringIO()
    setup_logging([LoggingConfig("json", "warning")], stream)
    structlog.get_logger("a").info("quiet")
    logging.getLogger("b").info("quiet")
    structlog.get_logger("a").warning("loud")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["loud"]


def test_the_console_is_for_people_and_has_no_colours_in_a_pipe() -> None:
    stream = io.StringIO()
    setup_logging([LoggingConfig("console", "debug")], stream)
    structlog.get_logger("a").debug("detail", offset=3)
    line = stream.getvalue()
    assert "detail" in line
    assert "offset=3" in line
    assert "\x1b" not in line


@pytest.mark.parametrize("name", ["json", "console"])
def test_an_exception_is_logged_with_its_traceback(name: str) -> None:
    stream = io.StringIO()
    setup_logging([LoggingConfig(name, "info")], stream)
    try:
        raise ValueError("broken")
    except ValueError:
        structlog.get_logger("a").exception("failed")
        logging.getLogger("b").exception("failed too")
    assert stream.getvalue().count("ValueError: broken") == 2


def test_each_entry_has_its_own_severity_and_another_setup_replaces_all() -> None:
    stream = io.StringIO()
    setup_logging([LoggingConfig("json", "debug"), LoggingConfig("json", "error")], stream)
    structlog.get_logger("a").info("once")
    structlog.get_logger("a").error("twice")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == [
        "once",
        "twice",
        "twice",
    ]
    setup_logging([LoggingConfig("json", "info")], stream)
    structlog.get_logger("a").error("last")
    assert stream.getvalue().count("last") == 1


HOSTILE = "a\n2026-01-01T00:00:00Z [info ] forged\r\x1b[2J\x9b\u2028\u202e"
ESCAPED = r"a\n2026-01-01T00:00:00Z [info ] forged\r\x1b[2J\x9b\u2028\u202e"


@pytest.mark.parametrize("name", ["json", "console"])
def test_texts_from_outside_forge_no_line_and_give_no_commands(name: str) -> None:
    stream = io.StringIO()
    setup_logging([LoggingConfig(name, "info")], stream)
    structlog.get_logger("a").info(
        f"group {HOSTILE}", group=HOSTILE, names=[HOSTILE], error=ValueError(HOSTILE)
    )
    logging.getLogger("b").warning("topic %s", HOSTILE)
    ours, theirs, rest = stream.getvalue().split("\n")
    assert not rest
    assert ours.isprintable()
    assert theirs.isprintable()
    if name == "console":
        assert (ours.count(r"\u202e"), theirs.count(ESCAPED)) == (4, 1)
    else:
        assert json.loads(ours)["group"] == HOSTILE


def failed(error: Exception) -> Exception:
    try:
        raise error from ValueError(HOSTILE)
    except Exception as caught:
        return caught


@pytest.mark.parametrize(
    "error",
    [ValueError(HOSTILE), ExceptionGroup(HOSTILE, [failed(KeyError("x")), failed(ValueError(HOSTILE))])],
    ids=["one", "group"],
)
def test_a_message_of_an_exception_is_one_line_of_its_traceback(error: Exception) -> None:
    stream = io.StringIO()
    setup_logging([LoggingConfig("console", "info")], stream)
    structlog.get_logger("a").error("failed", exc_info=failed(error))
    lines = stream.getvalue().split("\n")
    assert all(line.isprintable() for line in lines)
    assert len([line for line in lines if r"\x1b[2J\x9b\u2028" in line]) >= 2
    assert not any(line.startswith("2026-01-01T00:00:00Z") for line in lines)
    assert any(line.lstrip(" |").startswith("raise error from") for line in lines)


@pytest.mark.parametrize("name", ["json", "console"])
def test_a_long_text_is_cut(name: str) -> None:
    stream = io.StringIO()
    setup_logging([LoggingConfig(name, "info")], stream)
    structlog.get_logger("a").warning("refused", error="x" * 100_000)
    logging.getLogger("b").warning("y" * 100_000)
    assert len(stream.getvalue()) < 5000
    assert stream.getvalue().count("... (100000 characters)") == 2


def test_an_event_has_so_many_lines_a_minute_and_the_next_line_says_what_was_left_out() -> None:
    now = 0.0
    few = FewLines(lambda: now)

    def lines(event: str, count: int, method: str = "warning") -> list[dict[str, object]]:
        written = []
        for number in range(count):
            with suppress(structlog.DropEvent):
                written.append(dict(few(None, method, {"event": event, "number": number})))
        return written

    first = lines("asked", 1000)
    assert [line["number"] for line in first] == list(range(200))
    assert [line for line in first if "more" in line] == [first[-1]]
    assert len(lines("another", 1)) == 1
    assert len(lines("asked", 300, "error")) == 300
    now = 60.0
    assert lines("asked", 1) == [{"event": "asked", "number": 0, "left_out": 800}]
    assert lines("asked", 1) == [{"event": "asked", "number": 0}]


def test_loggers_leave_lines_out() -> None:
    stream = io.StringIO()
    setup_logging([LoggingConfig("json", "info")], stream)
    for _ in range(1000):
        structlog.get_logger("a").warning("asked")
    assert stream.getvalue().count("\n") == 200
