"""pixy/web/gate.py, form.py: requests of web pages of other origins, hosts, and parameters."""

import pytest

from pixy.web import HttpError, WebOptions, parse_form
from pixy.web.form import BadQuery, unescape
from tests.fakes.web import open_client, open_web


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ([], 200),
        (["Origin: http://localhost"], 200),
        (["Origin: http://LOCALHOST:80"], 200),
        (["Origin: https://localhost:443"], 200),
        (["Sec-Fetch-Site: same-origin"], 200),
        (["Sec-Fetch-Site: none"], 200),
        (["Origin: null"], 403),
        (["Origin: "], 403),
        (["Origin: http://evil.example"], 403),
        (["Origin: http://localhost:8080"], 403),
        (["Origin: http://localhost.evil.example"], 403),
        (["Sec-Fetch-Site: cross-site"], 403),
        (["Sec-Fetch-Site: same-site"], 403),
    ],
)
async def test_pages_of_other_origins_are_refused(fields: list[str], status: int) -> None:
    async with open_web() as web, open_client(web.address) as client:
        assert (await client.call("GET", "/echo/a", None, *fields)).status == status
        assert web.server.counters.calls == (status == 200)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:19093", 200),
        ("[::1]:19093", 200),
        ("10.1.2.3", 200),
        ("10.1.2.3.evil.example", 421),
        ("evil.example", 421),
        ("", 421),
        ("localhost.evil.example:80", 421),
    ],
)
async def test_hosts_can_be_listed(host: str, status: int) -> None:
    options = WebOptions(hosts=frozenset({"localhost", "::1"}))
    async with open_web(options) as web, open_client(web.address) as client:
        client.send(f"GET /echo/a HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert (await client.answer()).status == status


@pytest.mark.parametrize(
    ("encoded", "form"),
    [
        (b"", {}),
        (b"a", {"a": [b""]}),
        (b"a=1&b=2&a=3", {"a": [b"1", b"3"], "b": [b"2"]}),
        (b"a+b=c+d&&%41=%42%00", {"a b": [b"c d"], "A": [b"B\0"]}),
        (b"a=b=c", {"a": [b"b=c"]}),
        (b"=x", {"": [b"x"]}),
        (b"a==\r\n%3D%0a \t%5f_", {"a": [b"=\r\n=\n \t__"]}),
    ],
)
def test_a_query_is_read_as_go_does(encoded: bytes, form: dict[str, list[bytes]]) -> None:
    assert parse_form(encoded) == form
    assert parse_form(encoded).fault == ""


@pytest.mark.parametrize(
    ("encoded", "fault"),
    [
        (b"a=%zz&b=1&c=%", 'invalid URL escape "%zz"'),
        (b"a=%4&b=1", 'invalid URL escape "%4"'),
        (b"%=1&b=1", 'invalid URL escape "%"'),
        (b"a=1;c=2&b=1", "invalid semicolon separator in query"),
    ],
)
def test_pairs_that_cannot_be_read_are_left_out(encoded: bytes, fault: str) -> None:
    form = parse_form(encoded)
    assert form == {"b": [b"1"]}
    assert form.fault == fault


def test_a_form_has_a_thousand_parameters_at_most() -> None:
    assert len(parse_form(b"&".join([b"a=1"] * 1000))["a"]) == 1000
    with pytest.raises(HttpError, match="there are 1001 parameters, at most 1000 are allowed"):
        parse_form(b"&".join([b"a=1"] * 1001))


def test_an_escape_that_is_cut_off_is_refused() -> None:
    with pytest.raises(BadQuery):
        unescape(b"a%2")
