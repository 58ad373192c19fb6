"""JSON of a client, once it is known to be small in objects.

A parsed body may take thirty times its bytes: two of them are an empty object. So a body may have
any size in texts, but only so much beside them, and only so many texts. Both are checked before it
is parsed, at a few nanoseconds a byte.
"""

import re

from pixy.web import HttpError

_SMALL_BYTES = 16 << 10
_BESIDE_BYTES_MAX = 256 << 10
_TEXTS_MAX = 50_000
TEXT = r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)'
"""Pattern of a text, or of the rest if it has no end; DOTALL. Nothing is taken back: each character
is looked at once.
"""
_TEXT = re.compile(TEXT.encode(), re.DOTALL)


def check_json(body: bytes) -> None:
    """Check a body before it is parsed.

    Raises:
        HttpError: it would take too much memory.
    """
    if len(body) <= _SMALL_BYTES:
        return
    texts = (body.count(b'"') - body.count(b'\\"')) // 2
    if texts > _TEXTS_MAX:
        raise HttpError(413, f"the body has {texts} texts, {_TEXTS_MAX} are allowed: divide it")
    beside = len(_TEXT.sub(b"", body))
    if beside > _BESIDE_BYTES_MAX:
        raise HttpError(
            413, f"the body has {beside} bytes beside its texts, {_BESIDE_BYTES_MAX} are allowed: divide it"
        )
