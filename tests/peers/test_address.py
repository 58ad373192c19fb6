"""Addresses of peers."""

import pytest

from pixy.peers import Address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:19094", Address("127.0.0.1", 19094)),
        ("[::1]:1", Address("::1", 1)),
        ("node-1.example.org:65535", Address("node-1.example.org", 65535)),
        (":7", Address("", 7)),
    ],
)
def test_an_address_is_host_and_port(text: str, address: Address) -> None:
    assert Address.parse(text) == address
    assert str(address) == text


@pytest.mark.parametrize("text", ["", "host", "host:", "host:70000", "::1:1", "/run/pixy.sock"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected host:port"):
        Address.parse(text)
