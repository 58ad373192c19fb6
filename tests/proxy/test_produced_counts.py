"""Counts of durable records by topic."""

from pixy.errors import Unavailable
from pixy.proxy import produced_counts
from pixy.proxy.produced_counts import ProducedCounts
from tests.proxy.producing import TOPIC, append, make


async def test_messages_are_counted_when_they_are_durable_with_their_bytes() -> None:
    accumulators, _, answers = await make()
    for value in (b"abc", b"de"):
        append(accumulators, value, answers)
    assert accumulators.produced.by_topic == {}
    await answers.wait(2)
    assert accumulators.produced.by_topic == {TOPIC: [2, 7]}
    assert sum(accumulators.sent_bytes.counts) == 1


async def test_refused_messages_are_not_counted() -> None:
    accumulators, backend, answers = await make()
    backend.fail_appends(Unavailable("no disk"), 1)
    append(accumulators, b"abc", answers)
    await answers.wait(1)
    assert isinstance(answers.all[0][2], Unavailable)
    assert accumulators.produced.by_topic == {}


def test_topics_beyond_the_limit_are_counted_together() -> None:
    counts = ProducedCounts()
    for at in range(produced_counts._TOPICS_MAX + 2):
        counts.add(f"t{at}", 1, 10)
    assert (len(counts.by_topic), counts.beyond) == (produced_counts._TOPICS_MAX, [2, 20])
    counts.forget("t0")
    assert counts.beyond == [3, 30]
