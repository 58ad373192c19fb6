"""A client that is generated from a description in OpenAPI 3.1.

It knows of `/v1` what the description says: methods by `operationId`, their parameters with types
and bounds, and the schemas of bodies and answers, which are checked.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote, urlencode

from tests.fakes.web import WebClient

_TYPES = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict, "null": type(None)}


class ApiError(Exception):
    """An answer with a problem."""


class OpenApiClient:
    """Has a method for each operation of the description."""

    def __init__(self, document: dict[str, Any], client: WebClient) -> None:
        self._document = document
        self._client = client
        self._operations = {
            operation["operationId"]: (method.upper(), path, operation)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
        }

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method, path, operation = self._operations[name]

        async def call(body: Any = None, **given: Any) -> Any:
            target = self._target(path, operation["parameters"], given)
            data, fields = None, ["Accept: application/json"]
            if body is not None:
                self._check(body, operation["requestBody"]["content"]["application/json"]["schema"], name)
                data = json.dumps(body).encode()
                fields.append("Content-Type: application/json")
            answer = await self._client.call(method, target, data, *fields)
            described = operation["responses"].get(str(answer.status), operation["responses"]["default"])
            content = described["content"][answer.fields["content-type"]]
            found = json.loads(answer.body)
            self._check(found, content["schema"], name)
            if answer.status != 200:
                raise ApiError(f"{answer.status}: {found['detail']}")
            return found

        return call

    def _target(self, path: str, parameters: list[dict[str, Any]], given: dict[str, Any]) -> str:
        query = {}
        for parameter in parameters:
            name = parameter["name"]
            if name not in given:
                assert not parameter["required"], f"{name} is missing"
                continue
            self._check(given[name], parameter["schema"], name)
            if parameter["in"] == "path":
                path = path.replace(f"{{{name}}}", quote(given[name], safe=""))
            else:
                query[name] = given[name]
        unknown = given.keys() - {parameter["name"] for parameter in parameters}
        assert not unknown, f"no parameters {unknown}"
        return f"{path}?{urlencode(query)}"

    def _check(self, value: Any, schema: dict[str, Any], where: str) -> None:
        """Check a value against a schema, of the words that descriptions here use."""
        if "$ref" in schema:
            schema = self._document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        if "oneOf" in schema:
            assert any(self._fits(value, each, where) for each in schema["oneOf"]), f"{where}: {value}"
            return
        kinds = schema.get("type", [])
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if kinds and not any(type(value) is _TYPES[kind] for kind in kinds):
            raise TypeError(f"{where} is {value!r}, expected {kinds}")
        if "enum" in schema and value not in schema["enum"]:
            raise TypeError(f"{where} is {value!r}, expected one of {schema['enum']}")
        if type(value) is int and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
            raise TypeError(f"{where} is {value}, out of bounds")
        if type(value) is list:
            size = len(value)
            if not schema.get("minItems", size) <= size <= schema.get("maxItems", size):
                raise TypeError(f"{where} has {size} elements, out of bounds")
            for each in value:
                self._check(each, schema["items"], where)
        if type(value) is dict:
            missing = set(schema["required"]) - value.keys()
            unknown = value.keys() - schema["properties"].keys()
            assert not missing, f"{where}: {missing}"
            assert not unknown, f"{where}: {unknown}"
            for name, each in value.items():
                self._check(each, schema["properties"][name], f"{where}.{name}")

    def _fits(self, value: Any, schema: dict[str, Any], where: str) -> bool:
        try:
            self._check(value, schema, where)
        except (TypeError, AssertionError):
            return False
        return True
