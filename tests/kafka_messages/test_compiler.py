import pytest

from pixy.kafka_messages.compiler import GENERATED, generate, module_name
from pixy.kafka_messages.schema import SCHEMAS, read_schemas

ONE = """\
Thing 7 versions 1-3 flexible 3+
  request
    name string?2+
    parts [Part] 2+ = null
      number int32 = -1
    note string 3+ tag 0
  response
    error_code int16
"""


def test_the_generated_files_are_those_of_the_schemas() -> None:
    files = {path.name: path.read_text() for path in GENERATED.glob("*.py")}
    assert files == generate(read_schemas(SCHEMAS.read_text())), "run make messages"


def test_versions_of_equal_bytes_share_a_function() -> None:
    text = generate(read_schemas(ONE))["thing.py"]
    assert "PARSE_REQUEST = {1: parse_request_1, 2: parse_request_2, 3: parse_request_3}" in text
    assert "WRITE_RESPONSE = {1: write_response_1, 2: write_response_1, 3: write_response_3}" in text


def test_ranges_defaults_and_tags_of_a_schema() -> None:
    (api,) = read_schemas(ONE)
    name, parts, note = api.request
    assert (name.versions, name.null_versions, name.default) == (range(1, 4), range(2, 4), "None")
    assert (parts.versions, parts.default, parts.fields[0].default) == (range(2, 4), "None", "-1")
    assert (parts.fields[0].versions, note.tag) == (range(2, 4), 0)


@pytest.mark.parametrize("line", ["Thing", "Thing 1 versions 0-1\n  request\n    a b c d\n  response\n"])
def test_a_line_that_is_no_schema_is_named(line: str) -> None:
    with pytest.raises(ValueError, match=r"no (API: Thing|field: a b c d)"):
        read_schemas(line)


def test_modules_are_called_as_their_apis() -> None:
    assert module_name("InitProducerId") == "init_producer_id"
