"""pixy/client_address.py: what counts as one client."""

import pytest

from pixy.client_address import client_address, share_of


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        ("10.1.2.3:50000", "10.1.2.3"),
        ("[2001:db8:1:2:3:4:5:6]:50000", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2::7]:50001", "2001:db8:1:2::/64"),
        ("[2001:db8:1:3::7]:50001", "2001:db8:1:3::/64"),
        ("127.0.0.1:50000", "127.0.0.1"),
        ("127.255.255.254:50000", "127.0.0.1"),
        ("[::1]:50000", "127.0.0.1"),
        ("[::ffff:127.0.0.2]:50000", "127.0.0.1"),
        ("[fe80::1%eth0]:50000", "fe80::1"),
        ("[::ffff:10.1.2.3]:50000", "10.1.2.3"),
        ("unix", "unix"),
    ],
)
def test_a_client_is_an_address_without_its_port_and_an_ipv6_network(peer: str, client: str) -> None:
    assert client_address(peer) == client


@pytest.mark.parametrize(
    ("limit", "percent", "share"), [(10_000, 50, 5000), (3, 50, 1), (1, 50, 1), (7, 100, 7)]
)
def test_a_share_is_part_of_a_limit_and_never_nothing(limit: int, percent: int, share: int) -> None:
    assert share_of(limit, percent) == share
