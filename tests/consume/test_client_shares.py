"""pixy/consume/core/client_shares.py: counts of a limit by client address."""

from pixy.consume.core.client_shares import ClientShares


def test_what_is_released_can_be_taken_again_and_nothing_is_kept_of_it() -> None:
    shares = ClientShares[str](4, 50)
    for key in "ab":
        assert not shares.is_used_up("10.0.0.1")
        shares.take(key, "10.0.0.1")
    assert shares.is_used_up("10.0.0.1")
    assert not shares.is_used_up("10.0.0.2")
    shares.release("a")
    assert not shares.is_used_up("10.0.0.1")
    shares.release("b")
    shares.release("unknown")
    assert (shares._holders, shares._counts) == ({}, {})


def test_callers_without_an_address_have_no_share() -> None:
    shares = ClientShares[str](1, 50)
    for key in "abc":
        shares.take(key, "")
    assert not shares.is_used_up("")
    assert not shares.is_used_up("10.0.0.1")
