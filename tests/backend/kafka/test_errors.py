"""Kafka's error codes: errors for clients, and retriable ones."""

import pytest

from pixy.backend.kafka.errors import BrokerFault, code_name, error_for_code, is_retriable, is_stale
from pixy.errors import (
    Internal,
    InvalidArgument,
    MessageTooLarge,
    PixyError,
    TopicExists,
    Unavailable,
    UnknownPartition,
)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (3, UnknownPartition),
        (6, Unavailable),
        (10, MessageTooLarge),
        (19, Unavailable),
        (36, TopicExists),
        (40, InvalidArgument),
        (100, UnknownPartition),
        (29, Internal),
        (-1, Internal),
        (31_000, Internal),
    ],
)
def test_each_code_maps_to_an_error_with_its_name(code: int, kind: type[PixyError]) -> None:
    error = error_for_code(code, "cannot write to orders-0")
    assert type(error) is kind
    assert str(error).startswith(f"cannot write to orders-0: Kafka answered with error {code}, ")


def test_the_text_of_the_broker_comes_before_the_name_of_the_code() -> None:
    assert str(error_for_code(40, "cannot", "retention.ms is wrong")).endswith(
        "error 40, retention.ms is wrong"
    )
    assert str(error_for_code(6, "cannot")).endswith(code_name(6))
    assert "max_message_bytes" in str(error_for_code(10, "cannot"))


def test_transient_errors_are_retried_and_rejections_are_not() -> None:
    assert [code for code in (3, 5, 6, 7, 14, 15, 16, 19, 20, 56) if not is_retriable(code)] == []
    assert [code for code in (-1, 2, 10, 17, 29, 36, 37, 40, 42, 45, 87) if is_retriable(code)] == []


def test_moved_leaders_and_coordinators_are_asked_for_anew() -> None:
    assert [code for code in (3, 5, 6, 15, 16, 74, 100) if not is_stale(code)] == []
    assert not is_stale(7)
    assert not is_stale(19)


def test_a_broker_that_cannot_be_asked_is_unavailable() -> None:
    fault = BrokerFault("broker 1 has not answered", sent=True)
    assert (fault.grpc_status, fault.retriable, fault.sent) == (Unavailable.grpc_status, True, True)
