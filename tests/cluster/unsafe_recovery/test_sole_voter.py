import pytest

from pixy.cluster.unsafe_recovery.sole_voter import changes_to_sole_voter, configuration_after
from pixy.raft import ConfChange, ConfChangeError, ConfChangeSingle, ConfChangeType, ConfChangeV2, ConfState

ADD, ADD_LEARNER, REMOVE = (
    ConfChangeType.ADD_NODE,
    ConfChangeType.ADD_LEARNER_NODE,
    ConfChangeType.REMOVE_NODE,
)


@pytest.mark.parametrize(
    ("conf", "count"),
    [
        (ConfState((1,)), 0),
        (ConfState((1, 2, 3)), 2),
        (ConfState((1, 2, 3), (4, 5)), 4),
        (ConfState((2, 3, 4), (1,)), 4),
        (ConfState((2, 3)), 3),
        (ConfState((1, 2, 4), (), (1, 2, 3), (3,), True), 4),
        (ConfState((2, 3, 4), (), (1, 2, 3), (1,), True), 5),
    ],
)
def test_the_changes_lead_to_one_voter(conf: ConfState, count: int) -> None:
    changes = changes_to_sole_voter(conf, 1)
    assert len(changes) == count
    assert configuration_after(conf, changes) == ConfState((1,))
    assert not any(change.enters_joint() for change in changes)


def test_changes_of_both_encodings_count() -> None:
    changes = (
        ConfChange(ADD_LEARNER, 4),
        ConfChangeV2((ConfChangeSingle(ADD, 4), ConfChangeSingle(REMOVE, 3))),
        ConfChangeV2(),
    )
    assert configuration_after(ConfState((1, 2, 3)), changes[:2]).voters_outgoing == (1, 2, 3)
    assert configuration_after(ConfState((1, 2, 3)), changes) == ConfState((1, 2, 4))


def test_an_invalid_change_is_an_error() -> None:
    with pytest.raises(ConfChangeError):
        configuration_after(ConfState((1,)), [ConfChangeV2()])
