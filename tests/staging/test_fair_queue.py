"""Turns of addresses and sinks in a queue, against a plain model."""

from random import Random

from pixy.staging.fair_queue import FairQueue, Lane


def served(queue: FairQueue[str], lanes: dict[str, Lane]) -> list[str]:
    """Serve all items with one turn each."""
    order = []
    while (item := queue.first()) is not None:
        order.append(item)
        queue.served(lanes[item])
        queue.remove(lanes[item], item)
    return order


def test_an_address_is_served_once_for_each_other_address_however_many_sinks_it_has() -> None:
    queue, lanes = FairQueue[str](), {}
    for number in range(4):
        lanes[f"many{number}"] = Lane("10.0.0.1", f"sink{number}")
    lanes |= {f"few{number}": Lane("10.0.0.2", "sink0") for number in range(2)}
    for item, lane in lanes.items():
        queue.add(lane, item)
    assert served(queue, lanes) == ["many0", "few0", "many1", "few1", "many2", "many3"]


def test_a_sink_is_served_once_for_each_other_sink_of_its_address_however_much_it_has() -> None:
    queue = FairQueue[str]()
    lanes = {f"a{number}": Lane("", "a") for number in range(3)} | {"b0": Lane("", "b")}
    for item, lane in lanes.items():
        queue.add(lane, item)
    assert served(queue, lanes) == ["a0", "b0", "a1", "a2"]


def test_an_item_keeps_its_place_for_as_many_turns_as_it_needs() -> None:
    queue, lane, other = FairQueue[str](), Lane("", "a"), Lane("", "b")
    for item in ("long", "behind"):
        queue.add(lane, item)
    for _ in range(3):
        queue.add(other, "other")
        assert queue.first() == "long"
        queue.served(lane)
        assert queue.first() == "other"
        queue.served(other)
        queue.remove(other, "other")
    queue.remove(lane, "long")
    assert queue.first() == "behind"


def test_whoever_comes_during_a_turn_is_next() -> None:
    queue, busy = FairQueue[str](), Lane("10.0.0.1", "a")
    queue.add(busy, "busy")
    assert queue.first() == "busy"
    queue.add(Lane("10.0.0.2", "a"), "other")
    queue.add(Lane("10.0.0.1", "b"), "other sink")
    queue.served(busy)
    assert queue.first() == "other"
    queue.served(Lane("10.0.0.2", "a"))
    assert queue.first() == "other sink"


def test_whoever_comes_waits_for_one_turn_of_each_address_and_items_of_a_lane_stay_in_order() -> None:
    for seed in range(50):
        rng = Random(seed)
        queue = FairQueue[int]()
        # Items by lane in their order, and the turns since each address was served or came.
        waiting: dict[Lane, list[int]] = {}
        turns: dict[str, int] = {}
        for number in range(200):
            lane = Lane(f"address{rng.randrange(4)}", f"sink{rng.randrange(3)}")
            if rng.random() < 0.5:
                queue.add(lane, number)
                waiting.setdefault(lane, []).append(number)
                turns.setdefault(lane.address, 0)
            elif waiting and rng.random() < 0.3:  # dropped, wherever it is
                lane = rng.choice(list(waiting))
                queue.remove(lane, waiting[lane].pop(rng.randrange(len(waiting[lane]))))
            elif (item := queue.first()) is not None:
                (lane,) = [lane for lane, items in waiting.items() if items[0] == item]
                queue.served(lane)
                assert turns[lane.address] <= 3
                turns = {address: turn + 1 for address, turn in turns.items()} | {lane.address: 0}
                if rng.random() < 0.7:
                    queue.remove(lane, item)
                    waiting[lane].pop(0)
            waiting = {lane: items for lane, items in waiting.items() if items}
            turns = {address: turns[address] for address, _ in waiting}
            assert sorted(queue) == sorted(item for items in waiting.values() for item in items)
        assert (queue.first() is None) is not bool(waiting)
