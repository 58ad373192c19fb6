"""What was acknowledged survives whatever happens to the process and the machine: five hundred seeds of it."""

from collections import Counter

import pytest

from pixy.records import OffsetCommit, TopicPartition
from tests.sim.disk import Operation
from tests.sim.model import Found, Model, Sent
from tests.sim.storage_simulation import Simulation, SimulationFailure, run_seed

SEEDS = range(1, 501)
PARTITION = TopicPartition("topic", 0)


def test_nothing_is_lost_invented_or_changed() -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        counts += run_seed(seed).counts
    # All that can happen has happened.
    for what in (
        "batches",
        "clean stops",
        "commits",
        "ends at an operation",
        "ends during a start",
        "failed calls",
        "failed reads",
        "flipped bits answered when read",
        "flipped bits harmless",
        "flipped bits refused at start",
        "full disks",
        "losses of power",
        "refused starts",
        "topics",
    ):
        assert counts[what] >= 10, what


def test_the_journal_rotates_and_loses_its_oldest_files_and_checkpoints_are_replaced() -> None:
    kinds: Counter[tuple[str, str]] = Counter()

    def note(operation: Operation) -> None:
        kinds[operation.what, operation.path.suffix] += 1

    for seed in range(1, 41):
        simulation = Simulation(seed)
        simulation.disk.before = note
        simulation.run()
    for kind in (
        ("create", ".journal"),
        ("create", ".log"),
        ("rename", ".checkpoint"),
        ("truncate", ".journal"),
        ("truncate", ".log"),
        ("unlink", ".checkpoint"),
        ("unlink", ".journal"),
        ("unlink", ".log"),
        ("unlink", ".part"),
    ):
        assert kinds[kind] > 0, kind


def test_one_seed_is_one_run() -> None:
    def operations(seed: int) -> list[Operation]:
        found: list[Operation] = []
        simulation = Simulation(seed)
        simulation.disk.before = found.append
        simulation.run()
        return found

    assert operations(7) == operations(7)
    assert operations(7) != operations(8)


def test_a_failure_tells_its_seed() -> None:
    with pytest.raises(SimulationFailure, match=r"^seed 1, life \d: "):
        run_seed(1, ignored=["storage/journal.py:Journal._write write_durably"])


# --- the model ----------------------------------------------------------------------------------------------------


RECORDS = [Sent(None, b"%d" % number, number) for number in range(6)]
TOPIC = {"topic": (b"id", 1)}


def model() -> Model:
    """Three batches of two records were sent and one was acknowledged; of two commits the first."""
    made = Model()
    made.send_topic("topic", 1)
    made.topic_created("topic", b"id", 1)
    for at in range(0, 6, 2):
        made.send(PARTITION, RECORDS[at : at + 2])
    made.acknowledge(PARTITION, 0)
    for offset in (3, 4):
        made.send_commit("g", PARTITION, OffsetCommit(offset))
    made.commit_acknowledged("g", PARTITION, OffsetCommit(3))
    return made


def found(records: list[Sent], committed: int = 3) -> Found:
    return Found(TOPIC, {PARTITION: records}, {("g", PARTITION): OffsetCommit(committed)})


@pytest.mark.parametrize("committed", [3, 4])
@pytest.mark.parametrize("count", [2, 4, 6])
def test_what_is_not_acknowledged_may_be_there_batch_by_batch(count: int, committed: int) -> None:
    made = model()
    made.check(found(RECORDS[:count], committed), made.promised())
    made.adopt(found(RECORDS[:count], committed))
    with pytest.raises(AssertionError):
        made.check(found(RECORDS[: count - 2], committed), made.promised())


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (found([]), "2 records were acknowledged, 0 are there, the first wrong one is 0"),
        (found(RECORDS[:3]), "no whole batches"),
        (found([*RECORDS[:2], *RECORDS[4:]]), "the first wrong one is 2"),
        (found([*RECORDS, RECORDS[0]]), "the first wrong one is 6"),
        (found([RECORDS[0], RECORDS[1]._replace(value=b"?")]), "the first wrong one is 1"),
        (found(RECORDS, 5), "offset=5.* not in"),
        (found(RECORDS)._replace(committed={}), "None not in"),
        (found(RECORDS)._replace(topics={}), "topic topic: None"),
        (found(RECORDS)._replace(topics={"topic": (b"other", 1)}), "created as"),
        (found(RECORDS)._replace(topics={**TOPIC, "more": (b"more", 1)}), "more was never created"),
    ],
)
def test_anything_else_is_noticed(wrong: Found, why: str) -> None:
    made = model()
    with pytest.raises(AssertionError, match=why):
        made.check(wrong, made.promised())


def test_answers_out_of_order_are_noticed() -> None:
    with pytest.raises(AssertionError, match=r"batch 2 of .* is answered, 1 is due"):
        model().acknowledge(PARTITION, 2)
