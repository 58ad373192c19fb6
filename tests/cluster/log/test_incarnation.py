"""The incarnation of a node: raised by each start, before anything else is written."""

from pixy.cluster.log.incarnation import Incarnation
from pixy.storage import RecordKind
from tests.cluster.held_journal import HeldJournal


def test_each_start_raises_it() -> None:
    assert [Incarnation(HeldJournal().as_journal(), before).number for before in (0, 1, 41)] == [1, 2, 42]


def test_it_is_written_at_once() -> None:
    journal = HeldJournal()
    incarnation = Incarnation(journal.as_journal(), 6)
    assert journal.kinds == [[RecordKind.INCARNATION]]
    assert journal.units[0][0][3] == 7
    assert incarnation.file == 0
    journal.make_durable()
    assert incarnation.file == 4


def test_it_is_the_same_when_it_is_written_again() -> None:
    journal = HeldJournal()
    Incarnation(journal.as_journal(), 6).write()
    assert journal.units[0] == journal.units[1]
