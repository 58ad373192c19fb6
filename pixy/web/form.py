"""Parameters of a query or a form, read as Go's `net/url` reads them.

A pair that cannot be read is left out, and the first fault is kept: most handlers take what is
there, as kafka-pixy's do.
"""

import re
from binascii import a2b_qp

from pixy.web.style import HttpError

_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2}).{0,2}", re.DOTALL)
_PAIRS_MAX = 1000
"""A form of a megabyte could have half a million, which take half a second."""


class BadQuery(ValueError):
    """A query that cannot be read; the text is for the client."""


class Form(dict[str, list[bytes]]):
    """Values by name, in their order.

    Attributes:
        fault: text of the first pair that was left out, "" if there is none.
    """

    __slots__ = ("fault",)

    def __init__(self) -> None:
        super().__init__()
        self.fault = ""

    def first(self, name: str) -> bytes | None:
        """The first value of a parameter."""
        values = self.get(name)
        return values[0] if values else None

    def extend(self, other: "Form") -> None:
        """Append the values of another form to those here."""
        for name, values in other.items():
            self.setdefault(name, []).extend(values)
        self.fault = self.fault or other.fault


def parse_form(encoded: bytes) -> Form:
    """The parameters of a query, or of a body of type application/x-www-form-urlencoded.

    Raises:
        HttpError: there are more than a thousand.
    """
    form = Form()
    count = encoded.count(b"&") + 1
    if count > _PAIRS_MAX:
        raise HttpError(400, f"there are {count} parameters, at most {_PAIRS_MAX} are allowed")
    for pair in encoded.split(b"&") if encoded else ():
        if not pair:
            continue
        if b";" in pair:
            form.fault = form.fault or "invalid semicolon separator in query"
            continue
        name, _, value = pair.partition(b"=")
        try:
            key = unescape(name.replace(b"+", b" ")).decode("utf-8", "replace")
            content = unescape(value.replace(b"+", b" "))
        except BadQuery as error:
            form.fault = form.fault or str(error)
        else:
            form.setdefault(key, []).append(content)
    return form


def unescape(encoded: bytes) -> bytes:
    """Bytes from their percent-encoding.

    Raises:
        BadQuery: a percent sign is not followed by two hexadecimal digits.
    """
    if b"%" not in encoded:
        return encoded
    bad = _BAD_ESCAPE.search(encoded)
    if bad is not None:
        text = bad[0].decode("utf-8", "replace")
        raise BadQuery(f'invalid URL escape "{text}"')
    # Quoted-printable differs by its sign alone, and is decoded in a few milliseconds a megabyte.
    return a2b_qp(encoded.replace(b"=", b"=3D").replace(b"%", b"="))
