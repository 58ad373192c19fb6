"""Description of `/v1` as OpenAPI 3.1, for generators of clients.

`docs/openapi.json` has it, and the daemon serves it at `/v1/openapi.json`.
"""

from typing import Any

from pixy import __version__

_JSON = "application/json"


def openapi_document() -> dict[str, Any]:
    """The whole document."""
    operations = {f"/v1/topics/{{topic}}/{name}": of for name, of in _operations().items()}
    clusters = {
        path.replace("/v1/", "/v1/clusters/{cluster}/"): {
            method: {
                **operation,
                "operationId": f"{operation['operationId']}InCluster",
                "parameters": [_parameter("cluster", "path", {"type": "string"}), *operation["parameters"]],
            }
            for method, operation in methods.items()
        }
        for path, methods in operations.items()
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "pixy",
            "version": __version__,
            "summary": "Messages of a partitioned log, with an acknowledgement for each",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:19092"}],
        "paths": {**operations, **clusters},
        "components": {"schemas": _schemas()},
    }


def _operations() -> dict[str, dict[str, Any]]:
    group = _parameter(
        "group", "query", {"type": "string", "minLength": 1, "maxLength": 255}, is_required=True
    )
    encoding = _parameter("encoding", "query", {"enum": ["text", "base64"], "default": "text"})
    lines = {"application/x-ndjson": {"schema": {"type": "string"}}}
    return {
        "records": {
            "post": {
                **_operation("produce", "Produce records; each is answered"),
                "parameters": [
                    _topic(),
                    _parameter("sync", "query", {"type": "boolean", "default": True}),
                    _parameter("key", "query", {"type": "string"}),
                ],
                "requestBody": {
                    "required": True,
                    "content": {
                        _JSON: {"schema": {"oneOf": [_ref("Record"), _list_of("Record")]}},
                        **lines,
                        "text/plain": {"schema": {"type": "string"}},
                        "application/octet-stream": {"schema": {}},
                    },
                },
                "responses": _responses("Produced", {"oneOf": [_ref("Produced"), _ref("ProducedRecords")]}),
            },
            "get": {
                **_operation("consume", "Messages of a consumer group: some, or a stream of lines"),
                "parameters": [
                    _topic(),
                    group,
                    _parameter("max_records", "query", _number(1, 1000, 100)),
                    _parameter("max_bytes", "query", _number(1, 4 << 20, 1 << 20)),
                    _parameter("wait_ms", "query", _number(0, 300_000, None)),
                    _parameter("ack", "query", {"enum": ["none", "auto"], "default": "none"}),
                    encoding,
                ],
                "responses": _responses("Messages", _ref("Records"), lines),
            },
        },
        "acks": {
            "post": {
                **_operation("ack", "Acknowledge messages"),
                "parameters": [_topic(), group],
                "requestBody": {
                    "required": True,
                    "content": {_JSON: {"schema": {"oneOf": [_ref("Place"), _list_of("Place")]}}},
                },
                "responses": _responses("What was acked, and what was refused", _ref("Acked")),
            }
        },
        "peek": {
            "get": {
                **_operation("peek", "Stored records, without a consumer group"),
                "parameters": [
                    _topic(),
                    _parameter("partition", "query", _number(0, (1 << 31) - 1, None)),
                    _parameter("offset", "query", _number(-1000, None, 0)),
                    _parameter("max_records", "query", _number(1, 1000, 10)),
                    encoding,
                ],
                "responses": _responses("Records", _ref("Records")),
            }
        },
    }


def _schemas() -> dict[str, Any]:
    text = {"type": ["string", "null"]}
    encoded = {"type": "string", "contentEncoding": "base64"}
    number = {"type": "integer", "format": "int64", "minimum": 0}
    header = _object({"name": {"type": "string"}, "value": text, "value_base64": encoded}, ["name"])
    record = {
        "key": text,
        "key_base64": encoded,
        "value": text,
        "value_base64": encoded,
        "headers": {"type": "array", "items": _ref("Header")},
        "partition": {"type": "integer", "format": "int32", "minimum": 0},
        "timestamp_ms": number,
    }
    place = {"partition": record["partition"], "offset": number}
    return {
        "Header": header,
        "Record": {**_object(record, []), "additionalProperties": False},
        "StoredRecord": _object(
            {**record, "offset": number}, ["partition", "offset", "timestamp_ms", "headers"]
        ),
        "Records": _object({"records": {"type": "array", "items": _ref("StoredRecord")}}, ["records"]),
        "Place": _object(place, ["partition", "offset"]),
        "Produced": _object({**place, "error": _ref("Problem")}, []),
        "ProducedRecords": _object({"records": {"type": "array", "items": _ref("Produced")}}, ["records"]),
        "Acked": _object(
            {
                "acked": number,
                "refused": {
                    "type": "array",
                    "items": _object({**place, "error": _ref("Problem")}, [*place, "error"]),
                },
            },
            ["acked", "refused"],
        ),
        "Problem": _object(
            {
                "type": {"type": "string"},
                "title": {"type": "string"},
                "status": {"type": "integer"},
                "detail": {"type": "string"},
            },
            ["type", "title", "status", "detail"],
        ),
    }


def _operation(name: str, summary: str) -> dict[str, Any]:
    return {"operationId": name, "summary": summary}


def _topic() -> dict[str, Any]:
    return _parameter("topic", "path", {"type": "string"})


def _parameter(name: str, place: str, schema: dict[str, Any], *, is_required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": place, "required": is_required or place == "path", "schema": schema}


def _number(least: int, most: int | None, default: int | None) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer", "minimum": least}
    if most is not None:
        schema["maximum"] = most
    if default is not None:
        schema["default"] = default
    return schema


def _responses(
    description: str, schema: dict[str, Any], more: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "200": {"description": description, "content": {_JSON: {"schema": schema}, **(more or {})}},
        "default": {
            "description": "A problem (RFC 9457)",
            "content": {"application/problem+json": {"schema": _ref("Problem")}},
        },
    }


def _list_of(name: str) -> dict[str, Any]:
    """One to a thousand of them, as a request may have."""
    return {"type": "array", "items": _ref(name), "minItems": 1, "maxItems": 1000}


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}
