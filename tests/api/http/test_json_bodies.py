"""pixy/api/http/json_bodies.py: what a body may cost is known in one look at each of its bytes."""

import time
from contextlib import suppress

import pytest

from pixy.api.http.json_bodies import check_json
from pixy.web import HttpError


@pytest.mark.slow
@pytest.mark.parametrize("end", [b"", b'"', b"\\", b'\\"', b"\\\\"])
@pytest.mark.parametrize("piece", [b'\\"', b'"\\"', b'"', b"\\", b'"\\\\'])
def test_a_body_of_quotes_and_backslashes_is_read_once(piece: bytes, end: bytes) -> None:
    body = piece * (800_000 // len(piece)) + end
    began = time.process_time()
    with suppress(HttpError):
        check_json(body)
    # Milliseconds. It was half an hour when a text without an end was looked for from each quote.
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("body", "beside"),
    [
        (b'{"a": "' + b"x" * 1_000_000 + b'"}', None),
        (b'["' + b'\\"' * 500_000 + b'"]', None),
        (b"[" + b"1," * 200_000 + b"1]", "400003 bytes beside its texts"),
        (b'"\\\\"' + b"1" * 300_000, "300000 bytes beside its texts"),
        (b'["no end' + b"1" * 300_000, None),
    ],
)
def test_what_is_beside_texts_is_bounded(body: bytes, beside: str | None) -> None:
    if beside is None:
        check_json(body)
    else:
        with pytest.raises(HttpError, match=beside):
            check_json(body)
