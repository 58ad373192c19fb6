"""Steps of the tests of both bounds of memory: of fetched batches, and of decompressed ones."""

from collections.abc import Callable

from pixy.backend import OffsetCommit
from tests.consume.fakes import Answers, World


async def consume_all(
    world: World, groups: list[str], count: int, check: Callable[[], None]
) -> dict[str, list[tuple[int, int]]]:
    """Positions of the records that each group gets, one request of each after the other.

    Args:
        count: records to get.
        check: called after each step.
    """
    got: dict[str, list[tuple[int, int]]] = {group: [] for group in groups}
    open_: dict[str, Answers] = {}
    for _ in range(200 * count):
        for group in groups:
            answers = open_.get(group)
            if answers is None or answers.offers or answers.errors:
                for offer in answers.offers if answers is not None else ():
                    got[group].append((offer.partition, offer.record.offset))
                    assert await world.ack(offer.partition, offer.record.offset, group) == [None]
                open_[group] = await world.consume(group=group)
            check()
        if all(len(each) >= count for each in got.values()):
            break
        await world.pass_time(0.05)
    for answers in open_.values():
        for waiter in answers.waiting:
            waiter.cancel()
    return got


async def end_partition(world: World, how: str, groups: list[str], records: int) -> None:
    """End the partition of `t` in groups, or the batch of so many records in it."""
    match how:
        case "reset":
            for group in groups:
                await world.consumers.set_offsets(group, "t", {0: OffsetCommit(records)})
        case "timeout":
            await world.pass_time(100)
            await world.pass_time(100)
        case "revocation":
            for group in groups:
                world.backend.groups.members[group].assign({"t": ()}, again=True)
        case "deletion":
            world.backend.delete("t")
        case "drain":
            world.consumers.stop_offering()
        case "trimmed":
            world.log().move_begin(records)
            world.log().append(b"new")
        case _:
            raise AssertionError(how)
    await world.pass_time(0)
