"""Options from environment variables such as `PIXY_PROXIES__default__PRODUCER__COMPRESSION`.

A name begins with `PIXY_`, `__` separates sections, and case does not matter. The name of a cluster
may contain `__` itself, so it is matched against the existing names. The environment changes
clusters and adds none; otherwise a misspelt name would create a new and empty one.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pixy.config.build import nearest
from pixy.config.options import Config, ProxyConfig, leaves
from pixy.config.secret_file import read_bounded
from pixy.config.tree import Branch, Place, Problem, from_yaml, lay_over, plain_scalar

PREFIX = "PIXY_"
_NOT_OPTIONS = {"PIXY_CONFIG", "PIXY_ADDRESS", "PIXY_CONTEXT", "PIXY_CONTEXTS", "PIXY_REQUIRE_ALL"}
"""Variables of the commands and of the test suite."""

# Kubernetes sets such variables in every pod for each service of its namespace: a service named
# `pixy` must not stop the daemon.
_SERVICE_LINK = re.compile(r"PIXY_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")

_PROXIES = "proxies"


class EnvironmentRead(NamedTuple):
    """Problems found, and the files of secrets: their variables and paths."""

    problems: list[Problem]
    secret_files: list[tuple[str, str]]


def lay_environment_over(
    root: Branch, environment: Mapping[str, str], clusters: Iterable[str]
) -> EnvironmentRead:
    """Overlays the variables on a tree.

    Args:
        root: the tree; changed.
        environment: all variables; unrelated ones are ignored.
        clusters: the names of the clusters.
    """
    reader = _EnvironmentReader(root, tuple(clusters))
    for name, text in sorted(environment.items()):
        upper = name.upper()
        if upper.startswith(PREFIX) and upper not in _NOT_OPTIONS and not _SERVICE_LINK.fullmatch(upper):
            reader.read(name, text)
    return EnvironmentRead(reader.problems, reader.secret_files)


class _EnvironmentReader:
    def __init__(self, root: Branch, clusters: tuple[str, ...]) -> None:
        self.problems: list[Problem] = []
        self.secret_files: list[tuple[str, str]] = []
        self._root = root
        self._clusters = clusters
        self._secrets = {leaf.path for leaf in leaves(ProxyConfig) if leaf.option.secret}
        self._set: dict[tuple[str, ...], str] = {}

    def read(self, name: str, text: str) -> None:
        place = Place(name)
        path = self._path(name[len(PREFIX) :], place)
        if path is None:
            return
        if self._is_secret_file(path):
            path = (*path[:-1], path[-1].removesuffix("_file"))
            self.secret_files.append((name, text))
            try:
                text = read_bounded(text).decode().rstrip("\r\n")
            except (OSError, UnicodeDecodeError) as error:
                # Not the path: it may be the secret itself, under the wrong name.
                self.problems.append(Problem(place, f"names a file that cannot be read: {_reason(error)}"))
                return
        if path in self._set:
            self.problems.append(Problem(place, f"sets the same option as {self._set[path]}"))
            return
        self._set[path] = name
        if path == ("logging",):
            node, problems = from_yaml(text, name, numbered=False)
            self.problems.extend(problems)
            if node is not None:
                lay_over(self._root, path, node)
        else:
            lay_over(self._root, path, plain_scalar(text, place))

    def _path(self, rest: str, place: Place) -> tuple[str, ...] | None:
        if not rest.lower().startswith(f"{_PROXIES}__"):
            return tuple(rest.lower().split("__"))
        below = rest[len(_PROXIES) + 2 :]
        cluster = self._cluster(below)
        if cluster is None:
            name = below.split("__")[0]
            message = f'there is no cluster "{name}"; {nearest(name, self._clusters)}'
            self.problems.append(Problem(place, message))
            return None
        return (_PROXIES, cluster, *below[len(cluster) + 2 :].lower().split("__"))

    def _cluster(self, below: str) -> str | None:
        """The longest cluster name that is a prefix; an exact match wins over one that differs in
        case.
        """
        exact = [name for name in self._clusters if below.startswith(f"{name}__")]
        loose = [name for name in self._clusters if below.lower().startswith(f"{name}__".lower())]
        return max(exact or loose, key=len, default=None)

    def _is_secret_file(self, path: tuple[str, ...]) -> bool:
        below = ".".join(path[2:]) if path[0] == _PROXIES else ".".join(path)
        return below.endswith("_file") and below.removesuffix("_file") in self._secrets


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else "not a text in UTF-8"


assert not any(leaf.option.secret for leaf in leaves(Config)), (
    "only clusters have secrets that a file may hold"
)
