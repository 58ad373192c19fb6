# ruff: noqa: E501 - a row of a Markdown table is one line
"""Generator of the reference pages: `python -m docs.generate` writes them, `--check` compares them.

    cli.md            from the commands of `pixy.cli` (click)
    configuration.md  from the option table, `pixy.config.options`
    api.md            from the comments of the proto files, and `pixy.api.grpc.maxima`
    metrics.md        from the table of metrics, `pixy.metrics.families`
    openapi.json      from `pixy.api.http.v1.openapi`
    images/*.svg      from `docs.diagrams`

A page is written as a whole, and never edited by hand. `tests/test_documentation.py` fails when a
page and its source disagree.
"""

import argparse
import inspect
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from docs.diagrams import IMAGES
from pixy.api.grpc.maxima import LARGE_FIELDS, REPEATED_MAX
from pixy.api.http.v1 import openapi_document
from pixy.cli import main as pixy_command
from pixy.config.options import Config, Option, ProxyConfig, Section, ValueType, members, values_of
from pixy.config.values import format_value
from pixy.consume.core import METADATA_BYTES_MAX
from pixy.metrics import BYTE_BOUNDS, LONG_BOUNDS, TIME_BOUNDS
from pixy.metrics.families import GROUPS
from pixy.rpc.field_limits import FIELD_BYTES_MAX

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["PAGES", "main"]

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
WIDTH = 100

NOTE = "<!-- Generated from {source} by `make reference`. Do not edit. -->\n"


def paragraphs(text: str) -> str:
    """Paragraphs of a comment, filled to the width of prose.

    A block of indented lines becomes a block of code.
    """
    blocks = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        lines = [line for line in block.splitlines() if line.strip() != "\b"]
        if all(line.startswith("  ") for line in lines):
            blocks.append("\n".join(["```text", *lines, "```"]))
        else:
            blocks += map(_literal, _filled(lines))
    return "\n\n".join(blocks)


def _filled(lines: Sequence[str]) -> Iterator[str]:
    """A paragraph; indented lines in it, a name and its meaning each, become a list."""
    for listed, group in groupby(lines, key=lambda line: line.startswith("  ")):
        if not listed:
            yield "\n".join(wrap(" ".join(line.strip() for line in group), WIDTH, break_on_hyphens=False))
            continue
        items: list[str] = []
        for line in group:
            head = re.match(r" {2}(\w+) {2,}(\S.*)", line)
            if head:
                items.append(f"- `{head[1]}`: {head[2]}")
            else:
                items[-1] += f" {line.strip()}"
        yield "\n".join(
            "\n".join(wrap(item, WIDTH, subsequent_indent="  ", break_on_hyphens=False)) for item in items
        )


def _literal(text: str) -> str:
    """Text in which `<name>` outside of code is a placeholder and not a tag of HTML."""
    spans = text.split("`")
    spans[::2] = [re.sub(r"<(?=[a-z])", "&lt;", span) for span in spans[::2]]
    return "`".join(spans)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[_literal(cell.replace("\n", " ").replace("|", "\\|")) for cell in row] for row in rows]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in cells)])


# --- the commands ---------------------------------------------------------------------------------


_CLI = """\
# Command line

One program, `pixy`: `pixy serve` is the daemon, `pixy config` and `pixy storage` work without one,
and every other command is a client of a running daemon.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | failed; one line on standard error says why |
| 2 | wrong usage, or a configuration that cannot be used |
| 3 | `consume` found fewer messages than asked for |
| 130 | interrupted |

Results go to standard output, progress and errors to standard error. With `--json` the output is
meant for programs and keeps its names between releases.
"""


def cli_page() -> str:
    """`docs/cli.md`: usage, help text and options of every command."""
    commands = list(_commands(pixy_command, "pixy"))
    shared = _shared_options([command for _, command in commands])
    parts = [NOTE.format(source="`pixy/cli`"), _CLI, "## Options of every client command\n"]
    parts.append(
        "\n".join(wrap("Commands that talk to a daemon take these options beside their own.", WIDTH)) + "\n"
    )
    parts.append(_table(["option", "meaning"], shared) + "\n")
    for path, command in commands:
        parts += _command_part(path, command, shared)
    return "\n".join(parts)


def _commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name in command.list_commands(click.Context(command)):
        child = command.get_command(click.Context(command), name)
        assert child is not None
        yield from _commands(child, f"{path} {name}")


def _options(command: click.Command) -> list[tuple[str, str]]:
    context = click.Context(command)
    records = (
        option.get_help_record(context)
        for option in command.get_params(context)
        if isinstance(option, click.Option) and "--help" not in option.opts
    )
    return [(f"`{name}`", re.sub(r" {2,}", " ", meaning)) for name, meaning in filter(None, records)]


def _shared_options(commands: Sequence[click.Command]) -> list[tuple[str, str]]:
    """The options that all commands with a connection have, in their order."""
    clients = [options for options in map(_options, commands) if _is_client(options)]
    return [option for option in clients[0] if all(option in other for other in clients)]


def _is_client(options: Sequence[tuple[str, str]]) -> bool:
    """True for options of a command that talks to a daemon; `contexts create` only keeps some."""
    return any("--context" in name for name, _ in options)


def _command_part(path: str, command: click.Command, shared: Sequence[tuple[str, str]]) -> list[str]:
    usage = command.collect_usage_pieces(click.Context(command))
    options = _options(command)
    is_client = _is_client(options)
    own = [option for option in options if not is_client or option not in shared]
    parts = [
        f"## {path}\n",
        f"```text\n{' '.join([path, *usage])}\n```\n",
        paragraphs(command.help or "") + "\n",
    ]
    if own:
        parts.append(_table(["option", "meaning"], own) + "\n")
    if is_client:
        parts.append("Takes the [options of every client command](#options-of-every-client-command).\n")
    return parts


# --- the options ----------------------------------------------------------------------------------


_CONFIGURATION = """\
# Configuration

`config.yaml` in the repository is a file with every option at its default. An option is taken from
the first of these that has it:

1. a flag of `pixy serve`;
2. an environment variable: `PIXY_`, then the path of the option with `__` between its parts, in
   letters of either case. `PIXY_GRPC__KEEPALIVE=30s`, or
   `PIXY_PROXIES__default__PRODUCER__COMPRESSION=zstd` for the cluster `default`. A secret may be
   read from a file: `..._PASSWORD_FILE=/run/secrets/kafka`;
3. the file that `--config` or `PIXY_CONFIG` names;
4. its default.

`pixy config check FILE` reports every mistake with its line and the nearest option.
`pixy config print FILE` prints the effective configuration with secrets masked. An unknown option
is an error, and so is a value out of bounds.

Durations are written like `500ms`, `5m` or `1h30m`. Sizes are bytes, or like `64MiB`. "Clusters"
names the kinds of cluster on which an option has an effect; an empty cell means all of them.
"""

_TYPES = {
    ValueType.INTEGER: "number",
    ValueType.BOOLEAN: "true, false",
    ValueType.TEXT: "text",
    ValueType.TEXTS: "list of texts",
    ValueType.SECONDS: "duration",
    ValueType.BYTES: "bytes",
}


def configuration_page() -> str:
    """`docs/configuration.md`: every option with its default, what is allowed, and its effect."""
    parts = [NOTE.format(source="`pixy/config/options`"), _CONFIGURATION]
    parts += _section_parts(Config(), "", "Options of the daemon itself.", ("embedded", "kafka"))
    return "\n".join(parts)


def _section_parts(
    section: "DataclassInstance", path: str, doc: str, effect: tuple[str, ...]
) -> Iterator[str]:
    heading = f"`{path}`" if path else "Top level"
    rows, below = [], []
    table = members(type(section))
    for name, value in values_of(section).items():
        member = table[name]
        if isinstance(member, Option):
            kinds = tuple(kind for kind in member.effect if kind in effect)
            rows.append([f"`{name}`", _default(member, value), _allowed(member), _kinds(kinds), member.doc])
        else:
            below.append((name, member, value))
    yield f"## {heading}\n"
    yield paragraphs(doc) + "\n"
    if rows:
        yield _table(["option", "default", "allowed", "clusters", "meaning"], rows) + "\n"
    for name, member, value in below:
        kinds = tuple(kind for kind in member.effect if kind in effect)
        yield from _section_parts(*_item(path, name, member, value), member.doc, kinds)


def _item(path: str, name: str, member: Section, value: Any) -> "tuple[DataclassInstance, str]":
    below = f"{path}.{name}" if path else name
    if member.form == "map":
        return ProxyConfig(), f"{below}.<cluster>"
    if member.form == "list":
        return value[0], f"{below}[]"
    return value, below


def _default(option: Option, value: object) -> str:
    plain = format_value(option, value)
    if isinstance(plain, bool):
        return f"`{str(plain).lower()}`"
    if isinstance(plain, list):
        return ", ".join(f"`{each}`" for each in plain) or "none"
    return "empty" if plain == "" else f"`{plain}`"


def _allowed(option: Option) -> str:
    if option.choices:
        return ", ".join(f"`{choice}`" for choice in option.choices)
    bounds = []
    if option.above is not None:
        bounds.append(f"above {format_value(option, option.above)}")
    if option.minimum:
        bounds.append(f"from {format_value(option, option.minimum)}")
    if option.maximum is not None and option.type is not ValueType.SECONDS:
        bounds.append(f"to {format_value(option, option.maximum)}")
    return " ".join([_TYPES[option.type], *bounds])


def _kinds(kinds: tuple[str, ...]) -> str:
    if len(kinds) > 1:
        return ""
    return kinds[0] if kinds else "no effect"


# --- the services ---------------------------------------------------------------------------------


_API = """\
# API

Four gRPC services on one address, beside health checking (`grpc.health.v1.Health`) and reflection
(`v1` and `v1alpha`). The proto files are in `pixy/proto`, in the wheel too: `kafkapixy.proto`,
`pixy_topics.proto`, `pixy_log.proto` and `pixy_cluster.proto`. Python stubs are in `pixy.proto`;
stubs for other languages are generated from the files with protoc.

| service | purpose |
|---|---|
| [`KafkaPixy`](#service-kafkapixy) | messages, acks and offsets; kafka-pixy's API |
| [`pixy.topics.v1.Topics`](#service-topics) | create, change, delete and describe topics |
| [`pixy.log.v1.Log`](#service-log) | whole record batches and staged writes, see [The log in bulk](log.md) |
| [`pixy.cluster.v1.Cluster`](#service-cluster) | nodes and raft groups of an embedded cluster, see [Clusters](cluster.md) |

## Statuses that any call may have

Each method below lists its own statuses. Beside them any call may end with one of these:

| status | when | retry |
|---|---|---|
| CANCELLED (1) | the client has cancelled the call | |
| INVALID_ARGUMENT (3) | `cluster` names no configured cluster, a topic's name is not allowed, or a value is out of range | no |
| DEADLINE_EXCEEDED (4) | the client's deadline passed; or a request was not complete within `grpc.request_timeout`; or a record in front of Kafka, or with several nodes, was not acknowledged within `producer.timeout`. A write may have happened | yes, a write may then be there twice |
| RESOURCE_EXHAUSTED (8) | a request larger than `grpc.max_message_bytes`; a connection that holds more than 16 MiB of incomplete requests, or than `grpc.max_message_bytes` if that is more; an answer larger than `grpc.output_buffer_bytes`; a bound that the method names | not the same request if it is too large; else later |
| UNIMPLEMENTED (12) | unknown service, method or `grpc-encoding`; not exactly one message in a unary request | no |
| INTERNAL (13) | a request that is cut off or cannot be parsed; a fault of the daemon. The answer to a fault has an id under which the log has the traceback | no |
| UNAVAILABLE (14) | the daemon is starting or stopping, the disk is full, or no broker, or no majority of the nodes, can be reached. Clients report the same status when they cannot connect | yes |

A stream that is reset with REFUSED_STREAM was not started and may be tried again; gRPC clients do
so by themselves.
"""

_LARGE = " and ".join(
    f"{', '.join(f'`{field}`' for field in sorted(fields))} of `{service}.{method}`"
    for service, methods in LARGE_FIELDS.items()
    for method, fields in methods.items()
)

_MAXIMUM_BYTES = "\n".join(
    wrap(
        f"A field has at most {FIELD_BYTES_MAX} bytes, whether it is a text, an element or unknown, but"
        f" {_LARGE}. A request in which no field is repeated or large has so many as a whole. Names have"
        " 249.",
        WIDTH,
        break_on_hyphens=False,
    )
)

_MAXIMA = f"""\
## Largest requests

A request has at most `grpc.max_message_bytes`, and each field that it repeats at most so many
elements. One with more is refused as a whole with INVALID_ARGUMENT before it is read, and the
description names the field, the number and the maximum. So is a request with more than a thousand
fields that the server does not know. `producer.max_headers` and the like apply besides; metadata of
an offset has at most {METADATA_BYTES_MAX} bytes, and that of all offsets in a request 1 MiB.

{_MAXIMUM_BYTES}
"""

_STATUS = re.compile(r"^\s+([A-Z_]+) \((\d+)\)\s+(.*)$")


class _Proto:
    """A proto file with the comments of its elements."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self.file = file
        self._comments: Mapping[tuple[int, ...], str] = {
            tuple(location.path): location.leading_comments or "".join(location.leading_detached_comments)
            for location in file.source_code_info.location
        }

    def comment(self, *path: int) -> str:
        """The comment before an element, without the space behind its slashes."""
        lines = self._comments.get(path, "").splitlines()
        return "\n".join(line.removeprefix(" ") for line in lines)

    def head(self) -> str:
        """The comment at the top of the file, which stands before `syntax`."""
        return self.comment(12)


def _protos() -> list[_Proto]:
    """The proto files of the services, parsed by protoc."""
    names = ["kafkapixy.proto", "pixy_topics.proto", "pixy_log.proto", "pixy_cluster.proto"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set"
        command = [sys.executable, "-m", "grpc_tools.protoc", "-I", ".", "-I", "pixy/proto"]
        command += ["--include_source_info", f"--descriptor_set_out={out}", *names]
        subprocess.run(command, cwd=ROOT, check=True)
        return [_Proto(file) for file in FileDescriptorSet.FromString(out.read_bytes()).file]


def api_page() -> str:
    """`docs/api.md`: every method with its statuses, every message with its fields."""
    parts = [NOTE.format(source="the proto files"), _API, _maxima_part()]
    for proto in _protos():
        parts += _service_parts(proto)
    return "\n".join(parts)


def _maxima_part() -> str:
    rows = [
        [f"`{service}.{method}`", f"`{field}`", str(maximum)]
        for service, methods in REPEATED_MAX.items()
        for method, fields in methods.items()
        for field, maximum in fields.items()
    ]
    return f"{_MAXIMA}\n{_table(['method', 'field', 'maximum'], rows)}\n"


def _service_parts(proto: _Proto) -> Iterator[str]:
    (service,) = proto.file.service
    package = f"{proto.file.package}." if proto.file.package else ""
    yield f"## Service {service.name}\n"
    yield f"`{package}{service.name}`\n"
    yield paragraphs(proto.head()) + "\n"
    for number, method in enumerate(service.method):
        asked, answered = (name.rpartition(".")[2] for name in (method.input_type, method.output_type))
        yield f"### {service.name}.{method.name}\n"
        yield f"Takes [`{asked}`](#message-{asked.lower()}),"
        yield f"returns {'a stream of ' if method.server_streaming else ''}[`{answered}`](#message-{answered.lower()}).\n"
        text, statuses = _split_statuses(proto.comment(6, 0, 2, number))
        yield paragraphs(text) + "\n"
        if statuses:
            yield _table(["status", "when"], statuses) + "\n"
    for number, message in enumerate(proto.file.message_type):
        yield f"### Message {message.name}\n"
        if comment := proto.comment(4, number):
            yield paragraphs(comment) + "\n"
        rows = [
            [str(field.number), f"`{field.name}`", _type(proto, field), proto.comment(4, number, 2, at)]
            for at, field in enumerate(message.field)
        ]
        yield (_table(["number", "field", "type", "meaning"], rows) if rows else "No fields.") + "\n"
    for number, enum in enumerate(proto.file.enum_type):
        yield f"### Message {enum.name}\n"
        rows = [
            [str(value.number), f"`{value.name}`", proto.comment(5, number, 2, at)]
            for at, value in enumerate(enum.value)
        ]
        yield _table(["number", "value", "meaning"], rows) + "\n"


def _split_statuses(comment: str) -> tuple[str, list[list[str]]]:
    """The text of a method, and the rows of its statuses."""
    text, _, listed = comment.partition("Status codes:\n")
    rows: list[list[str]] = []
    for line in listed.splitlines():
        match = _STATUS.match(line)
        if match:
            rows.append([f"{match[1]} ({match[2]})", match[3]])
        elif line.strip():
            rows[-1][1] += f" {line.strip()}"
    return text, [[status, when.rstrip(";.")] for status, when in rows]


def _type(proto: _Proto, field: FieldDescriptorProto) -> str:
    repeated = field.label == FieldDescriptorProto.LABEL_REPEATED
    name = field.type_name.rpartition(".")[2]
    if not name:
        plain = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
        return f"repeated {plain}" if repeated else plain
    for message in proto.file.message_type:
        for nested in message.nested_type:
            if nested.name == name and nested.options.map_entry:
                key, value = (_type(proto, each) for each in nested.field)
                return f"map from {key} to {value}"
    return f"{'repeated ' if repeated else ''}[`{name}`](#message-{name.lower()})"


# --- the metrics ----------------------------------------------------------------------------------


_BUCKETS = "\n".join(
    wrap(
        "Counters begin at 0 with the process. A metric without anything to count has no line. Bounds of "
        f"buckets, in seconds: {', '.join(f'{each:g}' for each in TIME_BOUNDS)}; of the ack latency "
        f"{', '.join(f'{each:g}' for each in LONG_BOUNDS)}; in bytes "
        f"{', '.join(f'{each:.0f}' for each in BYTE_BOUNDS)}.",
        WIDTH,
        break_on_hyphens=False,
    )
)

_METRICS = f"""\
# Metrics

`GET /metrics` of the management listener (`management_addr`, by default
http://127.0.0.1:19093/metrics) answers in Prometheus' text format, or in OpenMetrics for a client
that prefers it (`Accept`); compressed if the client allows it (`Accept-Encoding: gzip`).

```yaml
scrape_configs:
  - job_name: pixy
    static_configs:
      - targets: [127.0.0.1:19093]
```

{_BUCKETS}

`deploy/grafana.json` is a dashboard, and `deploy/alerts.yaml` has alert rules: see
[Operations](operations.md#metrics-and-alerts).

## Topics and groups

Clients choose the names of topics and consumer groups. So only the `management.max_topics` topics
and the `management.max_groups` pairs of group and topic with most to count have series of their
own; all others together have the value `other`. A name without series that counts twice as much as
one that has them takes its place. Its series begins at 0 then, and what it has counted before stays
in `other`: sums over all topics stay true. Partitions have at most `management.max_partitions`
series of each metric.
"""


def metrics_page() -> str:
    """`docs/metrics.md`: every metric with its type, labels and meaning."""
    parts = [NOTE.format(source="`pixy/metrics/families.py`"), _METRICS]
    for title, text, families in GROUPS:
        parts += [f"## {title}\n", paragraphs(text) + "\n"]
        rows = [
            [f"`{each.name}`", each.kind.value, " ".join(f"`{label}`" for label in each.labels), each.help]
            for each in families
        ]
        parts.append(_table(["metric", "type", "labels", "meaning"], rows) + "\n")
    return "\n".join(parts)


# --- all of them ----------------------------------------------------------------------------------


PAGES: Mapping[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "configuration.md": configuration_page,
    "api.md": api_page,
    "metrics.md": metrics_page,
    "openapi.json": lambda: json.dumps(openapi_document(), indent=2) + "\n",
    **{f"images/{name}.svg": image for name, image in IMAGES.items()},
}
"""Text of each generated file, by its path below `docs`."""


def main() -> int:
    """Write the files, or with `--check` say which are out of date; returns the exit status."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m docs.generate", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 if a file is out of date"
    )
    check = parser.parse_args().check
    stale = []
    for name, page in PAGES.items():
        path, text = DOCS / name, page()
        if path.exists() and path.read_text() == text:
            continue
        stale.append(f"docs/{name}")
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    if stale:
        print(f"{'out of date, run make reference' if check else 'written'}: {', '.join(stale)}")
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.exit(main())
