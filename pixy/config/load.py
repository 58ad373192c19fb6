"""Loads a `Config`: file, environment and flags, overlaid in this order, then checked as a whole.

All problems are reported together, each with its file and line, variable or flag. Only the named
file and the files of secrets are read, and nothing is remembered. Of directories of data it
matters if they are there.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pixy.config import checks, kafka_pixy
from pixy.config.build import Builder
from pixy.config.environment import lay_environment_over
from pixy.config.file_access import find_open_directories, find_open_files, private_files
from pixy.config.options import Config, LoggingConfig, Option, ProxyConfig, leaves, members
from pixy.config.removed_options import drop_removed
from pixy.config.secret_file import is_strong, is_there, read_bounded, read_secret
from pixy.config.tree import (
    Branch,
    BranchEntry,
    Node,
    Place,
    Problem,
    Scalar,
    from_yaml,
    lay_over,
    plain_scalar,
)
from pixy.config.values import parse_value
from pixy.errors import ConfigError

_DEFAULT_CLUSTER = "default"
_FILE_BYTES_MAX = 1 << 20
_FLAG_NAMES = {path: f"--{flag}" for flag, path in kafka_pixy.FLAGS.items()} | {"cluster.join": "--join"}
_LOGGING_FLAGS = {"log_format": "name", "log_level": "severity"}


def load_config(path: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]) -> Config:
    """Loads the configuration of a daemon. Precedence: flag, environment, file, default.

    Args:
        path: the YAML file; None: the file named by `PIXY_CONFIG`, or none.
        environment: all environment variables.
        flags: values by dotted option name; None counts as not given. `proxy.<option>` sets an
            option of the default cluster; `log_format` and `log_level` set the format and severity
            of the logs. Error texts name the flag `tls.key_path` as `--tls-key-path`.

    Raises:
        ConfigError: one line per problem: its place, the problem, the allowed values.
    """
    if path is None and environment.get("PIXY_CONFIG"):
        path = Path(environment["PIXY_CONFIG"])
    root, problems = _read_file(path) if path is not None else (Branch(Place("defaults")), [])
    given = {name: value for name, value in flags.items() if value is not None}
    in_file = dict(_scalars(root, ""))
    from_environment = lay_environment_over(root, environment, _cluster_names(root))
    overridden = list(_overridden(in_file, dict(_scalars(root, ""))))
    problems += from_environment.problems
    problems += _lay_flags_over(root, given)
    warnings = drop_removed(root)
    warnings += kafka_pixy.adapt(root, problems)
    builder = Builder()
    config = builder.build(Config, root)
    problems += builder.problems
    config = replace(config, logging=_logging(config.logging, given, problems))
    problems += checks.find_problems(config, builder.places, is_new=_is_new(config))
    problems += _secret_problems(config, builder.places)
    if problems:
        raise _error(problems)
    warnings += kafka_pixy.warnings(config, builder.places)
    warnings += overridden
    warnings += checks.find_warnings(config)
    warnings += _secret_warnings(config)
    named = [*from_environment.secret_files, *private_files(config)]
    if path is not None and _has_secret(config, builder.places, str(path)):
        named.append(("configuration file", str(path)))
    warnings += [*find_open_files(named), *find_open_directories(config)]
    return replace(config, warnings=tuple(warnings))


def _read_file(path: Path) -> tuple[Branch, list[Problem]]:
    source = str(path)
    try:
        content = read_bounded(source, _FILE_BYTES_MAX)
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror or error}") from error
    node, problems = from_yaml(content, source)
    if isinstance(node, Branch):
        return node, problems
    if node is not None and not (isinstance(node, Scalar) and node.type == "null"):
        problems.append(
            Problem(node.place, "the file must consist of options, such as grpc_addr: 127.0.0.1:19091")
        )
    if problems:
        raise _error(problems)
    return Branch(Place(source)), []


def _scalars(branch: Branch, path: str) -> Iterator[tuple[str, Scalar]]:
    """The single values of a tree, by dotted path."""
    for name, (_, node) in branch.entries.items():
        if isinstance(node, Branch):
            yield from _scalars(node, f"{path}{name}.")
        elif isinstance(node, Scalar):
            yield f"{path}{name}", node


def _overridden(in_file: Mapping[str, Scalar], effective: Mapping[str, Scalar]) -> Iterator[str]:
    """Warnings about options of the file that a variable sets to something else."""
    for path, scalar in in_file.items():
        other = effective.get(path, scalar)
        if other.place != scalar.place and other.text != scalar.text:
            yield f"{scalar.place}: {path} has no effect: the environment variable {other.place} sets it to another value"


def _cluster_names(root: Branch) -> tuple[str, ...]:
    entry = root.entries.get("proxies")
    if entry is not None and isinstance(entry.node, Branch):
        return tuple(entry.node.entries)
    return (_DEFAULT_CLUSTER,)


def _lay_flags_over(root: Branch, flags: Mapping[str, Any]) -> list[Problem]:
    problems: list[Problem] = []
    # The default cluster itself can be set by a flag, which therefore goes first.
    for path, value in sorted(flags.items(), key=lambda flag: flag[0].startswith("proxy.")):
        if path in _LOGGING_FLAGS:
            continue
        place = Place(_FLAG_NAMES.get(path, _flag_name(path)))
        names = tuple(path.split("."))
        if names[0] == "proxy":
            names = ("proxies", _default_cluster(root), *names[1:])
        if path == "logging":
            node, unreadable = from_yaml(value, place.source, numbered=False)
            problems += unreadable
            if node is not None:
                lay_over(root, names, node)
            continue
        lay_over(root, names, _flag_node(value, place))
        if names[2:3] == ("kafka",):  # brokers imply a Kafka cluster, whatever the file says
            lay_over(root, (*names[:2], "kind"), Scalar("kafka", "text", place))
    return problems


def _flag_node(value: object, place: Place) -> Node:
    if isinstance(value, bool):
        return Scalar(str(value).lower(), "boolean", place)
    return plain_scalar(str(value), place)


def _flag_name(path: str) -> str:
    return "--" + path.removeprefix("proxy.").replace("_", "-").replace(".", "-")


def _default_cluster(root: Branch) -> str:
    chosen = root.entries.get("default_cluster", BranchEntry(root.place, root)).node
    if isinstance(chosen, Scalar) and chosen.type != "null" and chosen.text in _cluster_names(root):
        return chosen.text
    return next(iter(_cluster_names(root)), _DEFAULT_CLUSTER)


def _logging(
    entries: tuple[LoggingConfig, ...], flags: Mapping[str, Any], problems: list[Problem]
) -> tuple[LoggingConfig, ...]:
    """Log outputs after `--log-format` (one log in that format) and `--log-level` (for all)."""
    chosen = {}
    for flag, name in _LOGGING_FLAGS.items():
        if flag in flags:
            option, place = members(LoggingConfig)[name], Place(_flag_name(flag))
            assert isinstance(option, Option)
            try:
                chosen[name] = str(parse_value(option, plain_scalar(str(flags[flag]), place)))
            except ValueError as error:
                problems.append(Problem(place, str(error)))
    if "name" in chosen:
        entries = entries[:1]
    return tuple(replace(entry, **chosen) for entry in entries)


def _has_secret(config: Config, places: Mapping[str, Place], source: str) -> bool:
    """True if a file sets an option that is a secret."""
    secrets = [leaf.path for leaf in leaves(ProxyConfig) if leaf.option.secret]
    set_at = [places.get(f"proxies.{name}.{path}") for name in config.proxies for path in secrets]
    return any(place is not None and place.source == source for place in set_at)


def _is_new(config: Config) -> bool:
    """True if the node of an embedded cluster has no identity yet."""
    clusters = [name for name, proxy in config.proxies.items() if proxy.kind == "embedded"]
    # A directory that the user of `pixy config check` cannot read counts as new.
    files = [os.path.join(config.data_dir, name, "identity") for name in clusters]
    return not files or not all(map(os.path.isfile, files))


def _secret_problems(config: Config, places: Mapping[str, Place]) -> list[Problem]:
    first, second = config.cluster.secret_file, config.cluster.second_secret_file
    named = {"cluster.secret_file": first}
    if second and is_there(second):
        named["cluster.second_secret_file"] = second
    problems = []
    for option, path in named.items():
        try:
            if path:
                read_secret(path)
        except ValueError as error:
            problems.append(Problem(places[option], f"{option} {error}"))
    if second and not first:
        option = "cluster.second_secret_file"
        problems.append(Problem(places[option], f"{option} needs cluster.secret_file, which is empty"))
    return problems


def _secret_warnings(config: Config) -> Iterator[str]:
    path = config.cluster.secret_file
    if path and not is_strong(read_secret(path)):
        yield (
            f"cluster.secret_file {path} has a secret that may be guessed: whoever is dialled by a node can try as many as "
            f"a computer can. 32 or more hexadecimal or base64 characters are safe: openssl rand -hex 32 > {path}"
        )


def _error(problems: list[Problem]) -> ConfigError:
    """One error with all problems: those of the file by line, then those of variables and flags."""
    ordered = sorted(problems, key=lambda problem: (problem.place.line == 0, problem.place.line))
    return ConfigError("\n".join(dict.fromkeys(map(str, ordered))))
