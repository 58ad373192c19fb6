import json
import unicodedata

import pytest

from pixy.escaping import escape, escape_json, escape_lines

UNSAFE = [
    *map(chr, range(0x20)),
    *map(chr, range(0x7F, 0xA0)),
    *"\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069",
    "\ud800",
    "\udcff",
]


@pytest.mark.parametrize("character", UNSAFE, ids=lambda character: f"U+{ord(character):04X}")
def test_an_unsafe_character_becomes_an_escape_that_python_reads_back(character: str) -> None:
    escaped = escape(f"a{character}b")
    assert escaped.isascii()
    assert escaped.isprintable()
    assert escaped.encode().decode("unicode_escape").encode("utf-16", "surrogatepass") == (
        f"a{character}b".encode("utf-16", "surrogatepass")
    )


@pytest.mark.slow
def test_no_control_character_of_unicode_is_left() -> None:
    every = "".join(map(chr, range(0x11_0000)))
    assert {unicodedata.category(each) for each in escape(every)}.isdisjoint({"Cc", "Zl", "Zp", "Cs"})


@pytest.mark.parametrize("text", ["", "plain", "ключ ü 日本 🙂", "{\\n}", "a\u00a0b", "👩\u200d🔬"])
def test_other_text_stays_as_it_is(text: str) -> None:
    assert escape(text) == escape_lines(text) == escape_json(text) == text


def test_what_is_to_be_kept_is_kept() -> None:
    assert escape("a\tb\nc\x1b", keep="\t") == "a\tb\\nc\\x1b"
    assert escape_lines("a\tb\nc\r\x1b") == "a\tb\nc\\r\\x1b"


@pytest.mark.parametrize("indent", [None, 2])
def test_json_stays_the_same_json(indent: int | None) -> None:
    value = {"a": [*UNSAFE, "ü"]}
    text = escape_json(json.dumps(value, ensure_ascii=False, indent=indent))
    assert json.loads(text) == value
    assert "ü" in text
    assert all(line.isprintable() for line in text.split("\n"))
