import pytest

from pixy.aio.retries import Attempts, Backoff
from pixy.errors import DeadlineExceeded


def test_pauses_double_up_to_the_maximum_and_reset_after_a_success() -> None:
    backoff = Backoff(0.1, 0.5)
    assert [backoff.grow() for _ in range(4)] == [0.1, 0.2, 0.4, 0.5]
    backoff.reset()
    assert backoff.grow() == 0.1


def test_an_error_may_have_a_maximum_pause_of_its_own() -> None:
    backoff = Backoff(0.4, 5.0)
    assert [backoff.grow(longest=1.0) for _ in range(3)] == [0.4, 0.8, 1.0]


async def test_attempts_go_on_while_there_is_patience_for_another_pause() -> None:
    attempts = Attempts(600.0, Backoff(0.001, 0.001))
    for _ in range(3):
        await attempts.again(DeadlineExceeded("late"))


async def test_the_last_failure_ends_the_attempts_when_the_patience_is_used_up() -> None:
    with pytest.raises(DeadlineExceeded, match="late"):
        await Attempts(600.0, Backoff(601.0, 601.0)).again(DeadlineExceeded("late"))
