"""Messages by another implementation, kio, whose schemas are made of Kafka's: the same bytes, and
fields of the same names in the same order.
"""

import dataclasses
from importlib import import_module
from io import BytesIO
from random import Random
from typing import Any

import pytest
from kio.serial import entity_reader, entity_writer

from pixy.kafka_messages import MESSAGE_APIS
from pixy.kafka_messages.compiler import module_name
from pixy.kafka_messages.schema import ApiSchema, SchemaField
from tests.kafka_messages.random_messages import CASE_NAMES, CASES, RandomMessages

pytestmark = pytest.mark.slow

_MESSAGES_PER_CASE = 15


def kio_class(api: ApiSchema, version: int, side: str) -> Any:
    module = import_module(f"kio.schema.{module_name(api.name)}.v{version}.{side}")
    return getattr(module, f"{api.name}{side.capitalize()}")


def names_of(fields: tuple[SchemaField, ...], version: int) -> list[str]:
    return [field.name.removesuffix("_ms") for field in fields if version in field.versions]


@pytest.mark.parametrize(("api", "version", "side"), CASES, ids=CASE_NAMES)
def test_both_read_and_write_the_same_bytes(api: ApiSchema, version: int, side: str) -> None:
    theirs = kio_class(api, version, side)
    read, write = entity_reader(theirs), entity_writer(theirs)
    messages = RandomMessages(Random(version), is_kafkas=True)
    ours = MESSAGE_APIS[api.key]
    for _ in range(_MESSAGES_PER_CASE):
        message = messages.message(api, version, side)
        if side == "request":
            begin = 14 + (version >= ours.flexible)
            encoded = b"".join(ours.write_request(version, message, "", 7))
        else:
            begin = 4 + ours.body_of_response(version)
            encoded = b"".join(ours.write_response(version, message, 7))
        entity, size = read(encoded[begin:], 0)
        assert size == len(encoded) - begin
        written = BytesIO()
        write(written, entity)
        assert written.getvalue() == encoded[begin:]
        parse = ours.parse_request if side == "request" else ours.parse_response
        assert parse(version, encoded, begin) == message


@pytest.mark.parametrize(("api", "version", "side"), CASES, ids=CASE_NAMES)
def test_fields_have_kafkas_names_and_order(api: ApiSchema, version: int, side: str) -> None:
    theirs = kio_class(api, version, side)
    fields = api.request if side == "request" else api.response
    expected = [field.name.removesuffix("_ms") for field in dataclasses.fields(theirs)]
    assert names_of(fields, version) == expected
