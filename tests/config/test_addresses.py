import pytest

from pixy.config.addresses import is_every_interface, is_loopback, split_address, why_not_dialled


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("127.0.0.1:19091", ("127.0.0.1", 19091)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:1", ("::1", 1)),
        (":19091", ("", 19091)),
    ],
)
def test_an_address_is_host_and_port(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


@pytest.mark.parametrize(
    "address", ["", "19091", "host", "host:", "host:65536", "::1:19091", "host:port", "a/b:1"]
)
def test_anything_but_host_and_port_is_rejected(address: str) -> None:
    with pytest.raises(ValueError, match="expected host:port"):
        split_address(address)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:0", "127.1.2.3:1", "[::1]:1", "localhost:1", "/run/pixy.sock"]
)
def test_loopback_is_reached_from_this_machine_only(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", ":1", "10.1.2.3:1", "pixy.example:1"])
def test_any_other_address_may_be_reached_from_elsewhere(address: str) -> None:
    assert not is_loopback(address)


@pytest.mark.parametrize(
    ("address", "every"),
    [("0.0.0.0:1", True), ("[::]:1", True), (":1", True), ("10.1.2.3:1", False), ("pixy.example:1", False)],
)
def test_an_address_may_stand_for_all_of_the_machine(address: str, every: bool) -> None:
    assert is_every_interface(address) == every


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:1",
        "10.0.0.1:65535",
        "[::1]:1",
        "[2001:db8::1]:1",
        "[fe80::1%eth0]:1",
        "node-1.pixy:1",
        "localhost:1",
        "0a.pixy:1",
    ],
)
def test_an_address_at_which_a_node_may_be(address: str) -> None:
    assert why_not_dialled(address) == ""


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("nowhere", "expected host:port"),
        ("10.0.0.1:0", "its port is 0"),
        (":1", "it has no host"),
        ("0.0.0.0:1", "all addresses of a machine"),
        ("[::]:1", "all addresses of a machine"),
        ("[::ffff:0.0.0.0]:1", "all addresses of a machine"),
        ("0:1", "its host is a number"),
        ("0x7f000001:1", "its host is a number"),
        ("127.1:1", "its host is a number"),
        ("224.0.0.1:1", "of many machines"),
        ("255.255.255.255:1", "of many machines"),
        ("[ff02::1]:1", "of many machines"),
        ("169.254.169.254:1", "link-local"),
        ("[::ffff:169.254.169.254]:1", "link-local"),
        ("[fe80::1]:1", "link-local"),
    ],
)
def test_no_node_is_at_an_address_that_is_of_no_machine(address: str, reason: str) -> None:
    assert address in why_not_dialled(address)
    assert reason in why_not_dialled(address)
