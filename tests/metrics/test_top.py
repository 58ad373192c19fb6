"""The names that have series of their own."""

from collections.abc import Mapping
from random import Random

from pixy.metrics import TopCounts, largest


def look(top: TopCounts[str], counts: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Series and `other` after a look at counts of one number each."""
    for _ in top.look({name: (count,) for name, count in counts.items()}):
        pass
    return {name: series[0] for name, series in top.series.items()}, top.other[0]


def test_all_names_within_the_limit_have_series_with_all_that_they_counted() -> None:
    assert look(TopCounts(2, 1), {"a": 5, "b": 7}) == ({"a": 5, "b": 7}, 0)


def test_the_names_with_most_have_series_and_the_rest_is_other() -> None:
    assert look(TopCounts(2, 1), {"a": 5, "b": 7, "c": 9, "d": 1}) == ({"b": 7, "c": 9}, 6)


def test_a_name_keeps_its_series_until_another_counts_twice_as_much() -> None:
    top = TopCounts[str](1, 1)
    assert look(top, {"a": 10, "b": 0}) == ({"a": 10}, 0)
    assert look(top, {"a": 20, "b": 20}) == ({"a": 20}, 20)


def test_a_series_begins_at_zero_and_what_was_counted_before_stays_in_other() -> None:
    top = TopCounts[str](1, 1)
    look(top, {"a": 10, "b": 1})
    assert look(top, {"a": 10, "b": 101}) == ({"b": 0}, 101)
    assert look(top, {"a": 13, "b": 111}) == ({"b": 10}, 104)


def test_a_name_that_is_gone_has_no_series_and_other_does_not_change() -> None:
    top = TopCounts[str](1, 1)
    look(top, {"a": 10, "b": 1})
    assert look(top, {"b": 1}) == ({"b": 0}, 1)


def test_every_count_is_in_one_series_and_no_series_decreases_while_it_lasts() -> None:
    rng = Random(1)
    top, counts = TopCounts[str](5, 1), {f"t{at}": 0 for at in range(20)}
    seen: dict[str, int] = {}
    counted, last_other = 0, 0
    for _ in range(300):
        for name in counts:
            counts[name] += rng.randrange(100) if rng.random() < 0.3 else 0
        series, other = look(top, counts)
        grown = sum(
            value - (seen.get(name, 0) if value >= seen.get(name, 0) else 0) for name, value in series.items()
        )
        counted += grown + other - last_other
        # A series that began anew has lost nothing: it stands in `other` up to then.
        assert other >= last_other
        assert all(series[name] >= seen[name] or series[name] == 0 for name in series.keys() & seen.keys())
        seen, last_other = series, other
    assert counted == sum(counts.values())


def test_the_largest_are_found_one_name_per_step() -> None:
    chosen: list[str] = []
    steps = sum(1 for _ in largest(((3.0, "a"), (9.0, "b"), (3.0, "c"), (1.0, "d")), 2, chosen))
    assert (steps, chosen) == (4, ["b", "a"])


def test_counts_that_begin_anew_are_counted_from_zero() -> None:
    top = TopCounts[str](1, 1)
    look(top, {"a": 10, "b": 5})
    assert look(top, {"a": 3, "b": 2}) == ({"a": 3}, 7)
