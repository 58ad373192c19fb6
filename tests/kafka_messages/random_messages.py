"""Random messages of every API, by the schemas."""

from collections.abc import Sequence
from importlib import import_module
from random import Random
from typing import Any

from pixy.kafka_messages.compiler import module_name
from pixy.kafka_messages.schema import SCHEMAS, ApiSchema, SchemaField, read_schemas

API_SCHEMAS = read_schemas(SCHEMAS.read_text())
SIDES = ("request", "response")
CASES = [(api, version, side) for api in API_SCHEMAS for version in api.versions for side in SIDES]
CASE_NAMES = [f"{api.name}-{version}-{side}" for api, version, side in CASES]

_BITS = {"int8": 7, "int16": 15, "uint16": 16, "int32": 31, "int64": 63}
_TEXTS = ("", "a", "topic", "Grüße", "x" * 126, "y" * 127, "z" * 300)
_ERROR_CODES = 90


class RandomMessages:
    """Random messages.

    Args:
        rng: of all choices.
        is_kafkas: values of fields with a meaning have one: error codes and times.
    """

    def __init__(self, rng: Random, *, is_kafkas: bool = False) -> None:
        self._rng = rng
        self._is_kafkas = is_kafkas

    def message(self, api: ApiSchema, version: int, side: str) -> Any:
        """A message of an API."""
        module = import_module(f"pixy.kafka_messages.generated.{module_name(api.name)}")
        fields = api.request if side == "request" else api.response
        return self._struct(module, f"{api.name}{side.capitalize()}", fields, version)

    def _struct(self, module: Any, name: str, fields: Sequence[SchemaField], version: int) -> Any:
        values = {
            field.name: self._field(module, field, version) for field in fields if version in field.versions
        }
        return getattr(module, name)(**values)

    def _field(self, module: Any, field: SchemaField, version: int) -> Any:
        rng = self._rng
        if version in field.null_versions and rng.random() < 0.3:
            return None
        if field.tag is not None and rng.random() < 0.5:
            return () if field.is_array else eval(field.default)  # the tests' own notation
        if field.is_array:
            items = [self._one(module, field, version) for _ in range(rng.randrange(4))]
            return items or ([] if field.tag is None else ())
        one = self._one(module, field, version)
        is_default = field.tag is not None and field.fields and one == type(one)()
        return None if is_default else one

    def _one(self, module: Any, field: SchemaField, version: int) -> Any:
        if field.fields:
            return self._struct(module, field.type, field.fields, version)
        if field.type in _BITS:
            return self._number(field)
        rng = self._rng
        if field.type == "string":
            return rng.choice(_TEXTS)
        if field.type == "bool":
            return rng.random() < 0.5
        content = rng.randbytes(16 if field.type == "uuid" else rng.choice((0, 1, 200)))
        return memoryview(content) if field.type == "records" else content

    def _number(self, field: SchemaField) -> int:
        rng = self._rng
        if self._is_kafkas and field.name.endswith("error_code"):
            return rng.randrange(_ERROR_CODES)
        if self._is_kafkas and field.name.endswith("_ms"):
            return rng.randrange(1 << 30)
        bits = _BITS[field.type]
        least = 0 if field.type == "uint16" else -(1 << bits)
        return rng.choice((least, -1 if least else 0, 0, 1, (1 << bits) - 1, rng.randrange(1 << bits)))
