"""`pixy contexts`: named connections in a file, and the one that commands use.

The file is TOML, `contexts.toml` in the folder `pixy` of the user's configuration, or the file that
PIXY_CONTEXTS names:

    current = "prod"

    [contexts.prod]
    address = "node1,node2,node3"
    tls_ca_path = "/etc/pixy/ca.pem"
"""

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from pixy.cli.addresses import grpc_targets
from pixy.cli.output import print_json, print_line, print_table
from pixy.errors import PixyError

CONTEXT_OPTIONS = {
    "address": "address",
    "cluster": "cluster",
    "ca_path": "tls_ca_path",
    "certificate_path": "tls_certificate_path",
    "key_path": "tls_key_path",
}
"""Options of a connection that a context may have, and their names in the file."""


class ContextError(PixyError):
    """There is no such context, or the file cannot be used."""


@dataclass(slots=True)
class _Contexts:
    """Contents of the file."""

    current: str = ""
    by_name: dict[str, dict[str, str]] = field(default_factory=dict)

    def named(self, name: str) -> dict[str, str]:
        if name not in self.by_name:
            known = ", ".join(sorted(self.by_name)) or "none"
            raise ContextError(f"there is no context {name} in {_path()}, which has: {known}")
        return self.by_name[name]


def _path() -> Path:
    named = os.environ.get("PIXY_CONTEXTS")
    if named:
        return Path(named)
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config")
    try:
        folder = folder.expanduser()
    except RuntimeError:
        folder = Path("/.config")  # the user has no home, as many in containers
    return folder / "pixy" / "contexts.toml"


def _load() -> _Contexts:
    path = _path()
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return _Contexts()
    except (OSError, ValueError) as error:
        raise ContextError(f"cannot read the contexts of {path}: {error}") from error
    current, by_name = content.pop("current", ""), content.pop("contexts", {})
    known = set(CONTEXT_OPTIONS.values())
    tables = isinstance(by_name, dict) and all(isinstance(each, dict) for each in by_name.values())
    if content or not isinstance(current, str) or not tables:
        raise ContextError(f"{path} must have `current`, a text, and tables [contexts.NAME]; nothing else")
    for name, values in by_name.items():
        for option, value in values.items():
            if option not in known or not isinstance(value, str):
                raise ContextError(
                    f"{path}: contexts.{name}.{option} is not known; allowed are the texts {', '.join(sorted(known))}"
                )
    return _Contexts(current, by_name)


def _save(contexts: _Contexts) -> None:
    lines = [f"current = {_quoted(contexts.current)}"] if contexts.current else []
    for name, values in sorted(contexts.by_name.items()):
        lines += ["", f"[contexts.{_quoted(name)}]"]
        lines += [f"{option} = {_quoted(value)}" for option, value in values.items()]
    path = _path()
    new = path.with_name(f"{path.name}.new")
    try:
        content = ("\n".join(lines).lstrip() + "\n").encode()
    except UnicodeEncodeError as error:
        raise ContextError(f"{error.object[error.start]!a} is not UTF-8, and cannot be kept") from error
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(content)
        new.replace(path)
    except OSError as error:
        raise ContextError(f"cannot write {path}: {error.strerror}") from error


def _quoted(text: str) -> str:
    """A text as TOML has it: as JSON, but without surrogates, and with DEL escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def context_values(name: str | None) -> tuple[str, Mapping[str, Any]]:
    """The name of a context, and its values of connection options by those of `CONTEXT_OPTIONS`.

    Args:
        name: None for the context in use, which may be none: its name is empty.

    Raises:
        ContextError: there is no such context, or the file cannot be used.
    """
    contexts = _load()
    chosen = name or contexts.current
    if not chosen:
        return "", {}
    values = contexts.named(chosen)
    return chosen, {
        option: Path(values[written]).expanduser() if written.endswith("_path") else values[written]
        for option, written in CONTEXT_OPTIONS.items()
        if written in values
    }


@click.group()
def contexts() -> None:
    """Keep addresses and TLS files of clusters under names.

    A client command takes what it is not told by a flag or a variable from the context that is in
    use, or that --context or PIXY_CONTEXT names. They are in contexts.toml in ~/.config/pixy, or in
    the file that PIXY_CONTEXTS names.
    """


_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@contexts.command("list")
@_json
def list_(as_json: bool) -> None:
    """List the contexts; * is the one in use. With --json an object of objects."""
    known = _load()
    if as_json:
        print_json(known.by_name)
        return
    rows = [
        ["*" if name == known.current else "", name, values.get("address", "-"), values.get("cluster", "")]
        for name, values in sorted(known.by_name.items())
    ]
    print_table(["", "NAME", "ADDRESS", "CLUSTER"], rows)


@contexts.command()
@click.argument("name")
@click.option("--address", metavar="HOST[:PORT],...", help="Address of the daemon, or of several nodes.")
@click.option("--cluster", help="Cluster name.")
@click.option("--tls-ca-path", type=click.Path(dir_okay=False), help="Trusted CA certificate, PEM.")
@click.option("--tls-certificate-path", type=click.Path(dir_okay=False), help="Certificate, PEM.")
@click.option("--tls-key-path", type=click.Path(dir_okay=False), help="Key of that certificate, PEM.")
def create(name: str, **options: str | None) -> None:
    """Create the context NAME, or replace it. The first one is in use at once.

    The files must be there; nothing connects to the addresses.
    """
    known = _load()
    values = {
        option: str(Path(value).expanduser().absolute()) if option.endswith("_path") else value
        for option, value in options.items()
        if value
    }
    if not values:
        raise click.UsageError("nothing to keep: give --address, --cluster or TLS files")
    _check(values)
    known.by_name[name] = values
    known.current = known.current or name
    _save(known)
    print_line(f"created context {name}{', in use' if known.current == name else ''}")


def _check(values: Mapping[str, str]) -> None:
    """Refuse what no command could connect with."""
    if "address" in values:
        grpc_targets(values["address"])
    if ("tls_certificate_path" in values) != ("tls_key_path" in values):
        raise click.UsageError("--tls-certificate-path and --tls-key-path go together")
    for option in CONTEXT_OPTIONS.values():
        if option.endswith("_path") and option in values:
            try:
                Path(values[option]).open("rb").close()
            except OSError as error:
                raise ContextError(f"cannot read {values[option]}: {error.strerror}") from error


@contexts.command()
@click.argument("name")
def use(name: str) -> None:
    """Use the context NAME from now on."""
    known = _load()
    known.named(name)
    known.current = name
    _save(known)
    print_line(f"using context {name}")


@contexts.command()
@click.argument("name", required=False)
@_json
def show(name: str | None, as_json: bool) -> None:
    """Show the options of the context NAME, by default the one in use."""
    known = _load()
    chosen = name or known.current
    if not chosen:
        raise ContextError("no context is in use")
    values = known.named(chosen)
    if as_json:
        print_json({"name": chosen, **values})
    else:
        print_table(["OPTION", "VALUE"], [["name", chosen], *values.items()])


@contexts.command()
@click.argument("name")
def delete(name: str) -> None:
    """Delete the context NAME."""
    known = _load()
    known.named(name)
    del known.by_name[name]
    if known.current == name:
        known.current = ""
    _save(known)
    print_line(f"deleted context {name}")
