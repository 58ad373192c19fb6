"""The table as text: the commented `config.yaml`, and a configuration as plain values.

What has no effect on an embedded cluster stands in `config.yaml` with a `#` right before its name, and is left out where
an effective configuration is printed.
"""

import json
from typing import TYPE_CHECKING, Any

import yaml

from pixy.config.options import Config, Option, Section, members, values_of
from pixy.config.values import format_value

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["config_values", "render_config", "render_default_config"]

_HEAD = """\
# pixy's configuration: every option, with its default.
#
# An option is taken from a flag of pixy serve, else from an environment variable, else from this file, else it has
# its default. The variable for the compression of the cluster `default` is
# PIXY_PROXIES__default__PRODUCER__COMPRESSION.
# Durations are written like 500ms, 5m or 1h30m; sizes are bytes, or like 64MiB. pixy config check FILE finds mistakes.
#
# Options with a # right before their name have no effect on embedded clusters.
"""


def render_default_config() -> str:
    """The text of `config.yaml`: every option of the table with its comment and default."""
    return _HEAD + "".join(_render(Config(), 0, active=True))


def config_values(config: Config) -> dict[str, Any]:
    """The effective configuration as it would be written in a file; secrets are masked."""
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
    """The lines of a section; an inactive one has a # before each name."""
    lines: list[str] = []
    table = members(type(section))
    for name, value in values_of(section).items():
        member = table[name]
        live = active and "embedded" in member.effect
        indent = "  " * depth
        if lines or not depth:
            lines.append("\n")
        lines += [f"{indent}# {line}\n" for line in member.doc.splitlines()]
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
    """The lines of one item of a list: no blank lines, so that it reads as one."""
    return [line for line in _render(item, depth, active=True) if line.strip()]


def _written(option: Option, value: object) -> str:
    plain = format_value(option, value)
    if isinstance(plain, str):
        return plain if plain and yaml.safe_load(plain) == plain else json.dumps(plain)
    return json.dumps(plain)
