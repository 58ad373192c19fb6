"""tests/lowest.py: selection of the lowest versions."""

import pytest

from tests.lowest import lowest


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        ("aiokafka>=0.13,<0.15", "aiokafka==0.13"),
        ("protobuf>=6.31.1,<8", "protobuf==6.31.1"),
        ("grpcio-tools==1.74.0", "grpcio-tools==1.74.0"),
        ("uvloop>=0.21; sys_platform != 'win32'", 'uvloop==0.21; sys_platform != "win32"'),
    ],
)
def test_the_lower_bound_is_the_version(requirement: str, expected: str) -> None:
    assert lowest(requirement) == expected


@pytest.mark.parametrize("requirement", ["click", "click<9"])
def test_a_dependency_without_a_lower_bound_is_rejected(requirement: str) -> None:
    with pytest.raises(ValueError, match="has no lower bound"):
        lowest(requirement)
