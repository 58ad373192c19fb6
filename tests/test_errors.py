"""Every error maps to a status of each API."""

import ast
import inspect
import sys
from copy import copy
from pathlib import Path

import grpc
import pytest

from pixy import errors
from pixy.backend.kafka.errors import BrokerFault
from pixy.errors import (
    ConfigError,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    OffsetOutOfRange,
    PixyError,
    ResourceExhausted,
    StartError,
    Unavailable,
)


def every_class(root: type[PixyError] = PixyError) -> list[type[PixyError]]:
    found = [root]
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            found += every_class(child)
    return found


CLASSES = every_class()
GRPC_STATUSES = {status.value[0]: status for status in grpc.StatusCode}

# org.apache.kafka.common.protocol.Errors: the codes that pixy answers with, by the names that Kafka
# gives them.
KAFKA_CODES = {
    -1: "UNKNOWN_SERVER_ERROR",
    1: "OFFSET_OUT_OF_RANGE",
    2: "CORRUPT_MESSAGE",
    3: "UNKNOWN_TOPIC_OR_PARTITION",
    7: "REQUEST_TIMED_OUT",
    8: "BROKER_NOT_AVAILABLE",
    10: "MESSAGE_TOO_LARGE",
    12: "OFFSET_METADATA_TOO_LARGE",
    17: "INVALID_TOPIC_EXCEPTION",
    19: "NOT_ENOUGH_REPLICAS",
    22: "ILLEGAL_GENERATION",
    23: "INCONSISTENT_GROUP_PROTOCOL",
    24: "INVALID_GROUP_ID",
    25: "UNKNOWN_MEMBER_ID",
    36: "TOPIC_ALREADY_EXISTS",
    42: "INVALID_REQUEST",
    45: "OUT_OF_ORDER_SEQUENCE_NUMBER",
    46: "DUPLICATE_SEQUENCE_NUMBER",
    47: "INVALID_PRODUCER_EPOCH",
    56: "KAFKA_STORAGE_ERROR",
    69: "GROUP_ID_NOT_FOUND",
    87: "INVALID_RECORD",
    89: "THROTTLING_QUOTA_EXCEEDED",
}

RETRIABLE_STATUSES = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
}


def test_all_names_every_class_and_nothing_else() -> None:
    assert sorted(errors.__all__) == sorted(each.__name__ for each in CLASSES)


@pytest.mark.parametrize("error", CLASSES)
def test_every_class_has_a_grpc_error_status(error: type[PixyError]) -> None:
    assert GRPC_STATUSES[error.grpc_status] is not grpc.StatusCode.OK


@pytest.mark.parametrize("error", CLASSES)
def test_every_class_has_an_http_error_status(error: type[PixyError]) -> None:
    assert 400 <= error.http_status <= 599


@pytest.mark.parametrize("error", CLASSES)
def test_every_class_has_a_known_kafka_error_code(error: type[PixyError]) -> None:
    assert error.kafka_code in KAFKA_CODES


@pytest.mark.parametrize("error", CLASSES)
def test_the_http_status_blames_the_side_that_the_grpc_status_blames(error: type[PixyError]) -> None:
    blames_the_caller = GRPC_STATUSES[error.grpc_status] in {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
    assert (error.http_status < 500) is blames_the_caller


@pytest.mark.parametrize("error", CLASSES)
def test_an_error_is_retriable_exactly_where_waiting_can_help(error: type[PixyError]) -> None:
    # kafka-pixy answers NOT_FOUND for "poll again".
    can_help = GRPC_STATUSES[error.grpc_status] in RETRIABLE_STATUSES or error is errors.LongPollTimeout
    if error is errors.ServiceDisabled:
        can_help = False  # kafka-pixy's status, but retrying a disabled feature does not help
    assert error.retriable is can_help


@pytest.mark.parametrize("error", [each for each in CLASSES if issubclass(each, InvalidArgument)])
def test_bad_input_is_invalid_argument_and_never_retried(error: type[PixyError]) -> None:
    assert (error.grpc_status, error.retriable) == (grpc.StatusCode.INVALID_ARGUMENT.value[0], False)


@pytest.mark.parametrize(
    ("family", "status"),
    [
        (NotFound, grpc.StatusCode.NOT_FOUND),
        (FailedPrecondition, grpc.StatusCode.FAILED_PRECONDITION),
        (ResourceExhausted, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (Unavailable, grpc.StatusCode.UNAVAILABLE),
        (Internal, grpc.StatusCode.INTERNAL),
        (OffsetOutOfRange, grpc.StatusCode.OUT_OF_RANGE),
    ],
)
def test_a_family_shares_its_grpc_status(family: type[PixyError], status: grpc.StatusCode) -> None:
    assert {each.grpc_status for each in every_class(family)} == {status.value[0]}


def test_statuses_known_to_kafka_pixys_clients_are_kept() -> None:
    # kafkapixy.proto: Produce, ConsumeNAck
    assert (errors.LongPollTimeout.grpc_status, errors.LongPollTimeout.http_status) == (5, 408)
    assert (errors.TooManyRequests.grpc_status, errors.TooManyRequests.http_status) == (8, 429)
    assert (errors.ShuttingDown.grpc_status, errors.ShuttingDown.http_status) == (14, 503)
    assert str(errors.ShuttingDown()) == "service is shutting down"
    assert str(errors.ServiceDisabled()) == "service is disabled by configuration"


def test_offset_out_of_range_carries_the_range() -> None:
    error = OffsetOutOfRange("offset 5 of t-0 is below 10", begin=10, end=20)
    assert (str(error), error.begin, error.end) == ("offset 5 of t-0 is below 10", 10, 20)


def test_every_fault_at_start_is_a_start_error() -> None:
    assert issubclass(ConfigError, StartError)
    assert issubclass(errors.DataDirectoryError, StartError)


SOURCES = [
    path
    for path in Path(errors.__file__).parent.rglob("*.py")
    if "spark" not in path.parts and "proto" not in path.parts
]


def raised_without(path: Path, names: set[str]) -> list[str]:
    """Places that make an error of a limit and do not say which limit."""
    tree = ast.parse(path.read_text())
    named = {
        call.func.value
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "at_limit"
    }
    return [
        f"{path.name}:{call.lineno}"
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in names
        and call not in named
    ]


@pytest.mark.slow
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_every_error_of_a_limit_names_the_limit_for_the_log(path: Path) -> None:
    assert raised_without(path, {"ResourceExhausted", "TooManyRequests"}) == []


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if "rpc" in path.parts], ids=lambda path: path.name
)
def test_every_limit_of_the_server_is_named_for_the_log(path: Path) -> None:
    for call in ast.walk(ast.parse(path.read_text())):
        if isinstance(call, ast.Call) and ast.unparse(call).startswith("GrpcError(Status.RESOURCE_EXHAUSTED"):
            assert "limit" in {keyword.arg for keyword in call.keywords}, f"{path.name}:{call.lineno}"


def test_an_error_keeps_its_limit_when_it_is_copied() -> None:
    error = copy(ResourceExhausted("full").at_limit("staging.max_bytes"))
    assert (str(error), error.limit) == ("full", "staging.max_bytes")


def test_every_error_can_be_copied_whatever_its_arguments_are() -> None:
    """Errors that are kept are answered as copies."""
    values = {int: 1, bool: True, str: "why"}
    found = {
        error for module in sorted(sys.modules) if module.startswith("pixy") for error in errors_of(module)
    }
    assert {BrokerFault, OffsetOutOfRange, PixyError} < found
    for error_class in found:
        arguments: list[object] = ["why"]
        if error_class.__init__ is not Exception.__init__:
            parameters = inspect.signature(error_class).parameters.values()
            arguments = [values[each.annotation] for each in parameters]
        error = error_class(*arguments).at_limit("limit")
        other = copy(error)
        assert other is not error
        assert (type(other), str(other), other.args) == (error_class, str(error), error.args)
        assert other.__dict__ == error.__dict__


def errors_of(module: str) -> list[type[PixyError]]:
    each = vars(sys.modules[module]).values()
    return [value for value in each if isinstance(value, type) and issubclass(value, PixyError)]
