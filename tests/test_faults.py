"""pixy/faults.py: faults are found in the log by the id in their error, without flooding it."""

import pytest
from structlog.testing import capture_logs

from pixy.faults import FaultLog, fault_id, internal_error
from tests.fakes.clock import FakeClock


def raised(error: Exception) -> Exception:
    """The error with the traceback of a raise here."""
    try:
        raise error
    except type(error) as caught:
        return caught


def raised_elsewhere(error: Exception) -> Exception:
    try:
        raise error
    except type(error) as caught:
        return caught


def test_the_id_depends_on_the_place_and_the_class() -> None:
    first = fault_id(raised(KeyError("a")))
    assert len(first) == 8
    assert fault_id(raised(KeyError("b"))) == first
    assert fault_id(raised(ValueError("a"))) != first
    assert fault_id(raised_elsewhere(KeyError("a"))) != first


def test_an_exception_without_a_traceback_has_an_id_too() -> None:
    assert len(fault_id(KeyError())) == 8


def test_a_caller_gets_the_id_and_nothing_else() -> None:
    fault = raised(KeyError("secret"))
    assert str(internal_error(fault)) == (
        f"internal error, id {fault_id(fault)}: the daemon's log has the details"
    )


def test_a_fault_is_counted_each_time_and_logged_once_a_minute_with_its_count() -> None:
    clock = FakeClock()
    faults = FaultLog(clock)
    with capture_logs() as logged:
        for _ in range(1000):
            faults.note(raised(KeyError("a")))
        faults.note(raised_elsewhere(KeyError("a")))
        clock.advance(60)
        faults.note(raised(KeyError("a")))
    assert faults.count == 1002
    assert [entry["times"] for entry in logged] == [1, 1, 1001]
    assert logged[0]["id"] == logged[2]["id"] == fault_id(raised(KeyError("a")))
    assert isinstance(logged[0]["exc_info"], KeyError)


@pytest.mark.slow
@pytest.mark.parametrize("places", [1, 3000])
def test_remembered_faults_are_bounded(places: int) -> None:
    faults = FaultLog(FakeClock())
    with capture_logs() as logged:
        for number in range(places):
            faults.note(raised(type(f"Error{number}", (Exception,), {})()))
    assert len(logged) == places
    assert len(faults._places) == min(places, 1000)
