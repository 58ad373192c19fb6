"""Connections of strangers by the second."""

from pixy.peers.stranger_rate import STRANGERS_PER_S, StrangerRate


def test_one_address_has_half_of_a_second_s_connections() -> None:
    rate = StrangerRate()
    taken = [rate.takes("attacker", 10.0 + number / 5000) for number in range(1000)]
    assert taken == [True] * (STRANGERS_PER_S // 2) + [False] * (1000 - STRANGERS_PER_S // 2)
    assert rate.takes("other", 10.5)


def test_all_addresses_together_have_a_bound() -> None:
    rate = StrangerRate()
    assert sum(rate.takes(f"host {number}", 10.0) for number in range(5000)) == STRANGERS_PER_S


def test_each_second_begins_anew() -> None:
    rate = StrangerRate()
    for second in range(3):
        taken = [rate.takes("a", 10.0 + second) for _ in range(1000)]
        assert sum(taken) == STRANGERS_PER_S // 2
