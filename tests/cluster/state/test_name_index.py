"""The index of names by a key."""

from pixy.cluster.state.name_index import NameIndex


def test_names_are_found_by_their_key_in_the_order_in_which_they_came() -> None:
    index: NameIndex[int] = NameIndex()
    for key, name in ((1, "b"), (2, "a"), (1, "a"), (1, "b")):
        index.add(key, name)
    assert (list(index.names(1)), list(index.names(2)), list(index.names(3))) == (["b", "a"], ["a"], [])
    assert (list(index), index.keys(), bool(index)) == ([1, 2], {1, 2}, True)


def test_a_key_without_names_goes() -> None:
    index: NameIndex[int] = NameIndex()
    index.add(1, "a")
    index.add(1, "b")
    index.discard(1, "x")
    index.discard(2, "a")
    index.discard(1, "a")
    assert (index.pop_name(1), bool(index)) == ("b", False)
    index.add(1, "a")
    assert (list(index.pop(1)), list(index.pop(1)), bool(index)) == (["a"], [], False)


def test_a_name_gets_other_keys() -> None:
    index: NameIndex[int] = NameIndex()
    index.replace("a", [], [1, 2])
    index.replace("b", [], [2])
    index.replace("a", [1, 2], [2, 3])
    assert {key: list(index.names(key)) for key in index} == {2: ["a", "b"], 3: ["a"]}


def test_a_copy_does_not_change() -> None:
    index: NameIndex[int] = NameIndex()
    index.add(1, "a")
    copy = index.copy()
    index.add(1, "b")
    index.add(2, "a")
    assert {key: list(copy.names(key)) for key in copy} == {1: ["a"]}
