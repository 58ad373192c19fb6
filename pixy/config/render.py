"""Renders the commented `config.yaml`, and a configuration as plain values.

Options without effect on an embedded cluster have a `#` directly before their name in
`config.yaml`, and are omitted from a printed effective configuration.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import yaml

from pixy.config.options import Config, Option, Section, members, values_of
from pixy.config.values import format_value

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_WIDTH = 100
_HEAD = """\
# pixy's configuration: every option with its default.
#
# Precedence: flag of pixy serve, environment variable, this file, default. The environment variable
# for the compression of the cluster `default` is PIXY_PROXIES__default__PRODUCER__COMPRESSION.
# Durations are written as 500ms, 5m or 1h30m; sizes in bytes, or as 64MiB.
# pixy config check FILE reports mistakes.
#
# Options with a # directly before their name have no effect on embedded clusters.
"""


def render_default_config() -> str:
    """Text of `config.yaml`: every option of the table with its comment and default."""
    return _HEAD + "".join(_render(Config(), 0, active=True))


def config_values(config: Config) -> dict[str, Any]:
    """The effective configuration as values of a file; secrets are masked."""
    kinds = {proxy.kind for proxy in config.proxies.values()}
    return _values(config, kinds)


def render_config(config: Config) -> str:
    """The effective configuration as YAML; secrets are masked."""
    return yaml.safe_dump(config_values(config), sort_keys=False, allow_unicode=True)


def _values(section: "DataclassInstance", kinds: set[str]) -> dict[str, Any]:
    written: dict[str, Any] = {}
    table = members(type(section))
    for name, value in values_of(section).items():
        member = table[name]
        if not kinds.intersection(member.effect):
            continue
        if isinstance(member, Option):
            written[name] = format_value(member, value)
        elif member.form == "map":
            written[name] = {key: _values(item, {item.kind}) for key, item in value.items()}
        elif member.form == "list":
            written[name] = [_values(item, kinds) for item in value]
        else:
            written[name] = _values(value, kinds)
    return written


def _render(section: "DataclassInstance", depth: int, *, active: bool) -> list[str]:
    """Lines of a section; an inactive one has a # before each name."""
    lines: list[str] = []
    table = members(type(section))
    for name, value in values_of(section).items():
        member = table[name]
        live = active and "embedded" in member.effect
        indent = "  " * depth
        if lines or not depth:
            lines.append("\n")
        lines += [f"{indent}# {line}\n" for line in _wrapped(member.doc, len(indent) + 2)]
        mark = "" if live else "#"
        if isinstance(member, Option):
            lines.append(f"{indent}{mark}{name}: {_written(member, value)}\n")
        else:
            lines.append(f"{indent}{mark}{name}:\n")
            lines += _render_section(member, value, depth + 1, active=live)
    return lines


def _render_section(member: Section, value: Any, depth: int, *, active: bool) -> list[str]:
    if member.form == "one":
        return _render(value, depth, active=active)
    if member.form == "map":
        lines = []
        for name, item in value.items():
            lines += [f"{'  ' * depth}{name}:\n", *_render(item, depth + 1, active=active)]
        return lines
    lines = []
    for item in value:
        first, *others = _render_item(item, depth + 1)
        lines += [f"{'  ' * depth}- {first.lstrip()}", *others]
    return lines


def _render_item(item: "DataclassInstance", depth: int) -> list[str]:
    """Lines of one list item, without blank lines."""
    return [line for line in _render(item, depth, active=True) if line.strip()]


def _wrapped(text: str, indent: int) -> list[str]:
    return wrap(text, _WIDTH - indent, break_on_hyphens=False)


def _written(option: Option, value: object) -> str:
    plain = format_value(option, value)
    if isinstance(plain, str):
        return plain if plain and yaml.safe_load(plain) == plain else json.dumps(plain)
    return json.dumps(plain)


def changed_options(before: Config, after: Config) -> list[str]:
    """Dotted names of the options in which two configurations differ."""
    return list(_changed(before, after, ""))


def _changed(before: Any, after: Any, path: str) -> Iterator[str]:
    if is_dataclass(before) and type(before) is type(after):
        names: Iterable[str] = (each.name for each in fields(before) if "pixy" in each.metadata)
        for name in names:
            yield from _changed(
                getattr(before, name), getattr(after, name), f"{path}.{name}" if path else name
            )
    elif isinstance(before, Mapping) and isinstance(after, Mapping) and before.keys() == after.keys():
        for name in before:
            yield from _changed(before[name], after[name], f"{path}.{name}")
    elif before != after:
        yield path
