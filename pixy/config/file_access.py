"""Warnings about files and directories that other users of the machine can get at.

The rule for files is PostgreSQL's for its key: nobody but the owner if they belong to the user of
the daemon; if they belong to another user, such as root, the group may read them. Directories of
data are for the daemon's user alone, as etcd warns. Modes are reported and never changed: whoever
has opened a directory to a group for its backups has done so on purpose.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from stat import S_IMODE, S_ISREG

from pixy.config.options import Config, ProxyConfig, leaves

_FOR_OWNER_ALONE = 0o077
_FOR_GROUP_TO_READ = 0o027


def private_files(config: Config) -> Iterator[tuple[str, str]]:
    """Options that name a file with a key or a token, and the file."""
    for leaf in leaves(Config):
        yield from _private_file(config, leaf.path, "") if leaf.option.private_file else ()
    for name, proxy in config.proxies.items():
        for leaf in leaves(ProxyConfig):
            if leaf.option.private_file:
                yield from _private_file(proxy, leaf.path, f"proxies.{name}.")


def _private_file(section: object, path: str, prefix: str) -> Iterator[tuple[str, str]]:
    for name in path.split("."):
        section = getattr(section, name)
    if section:
        yield f"{prefix}{path}", str(section)


def find_open_files(named: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Warnings about files with secrets, given by their options or variables and their paths."""
    for name, path in named:
        try:
            status = os.stat(path)
        except OSError:
            continue  # whoever reads it says so
        is_own = status.st_uid == os.geteuid()
        if S_ISREG(status.st_mode) and status.st_mode & (_FOR_OWNER_ALONE if is_own else _FOR_GROUP_TO_READ):
            yield (
                f"{name}: {path} has a secret and mode {S_IMODE(status.st_mode):04o}, open to other users of this machine: "
                f"chmod {'go=' if is_own else 'g-w,o='} {path}"
            )


def find_open_directories(config: Config) -> Iterator[str]:
    """Warnings about the clusters' directories, which earlier releases made for everybody."""
    data = Path(config.data_dir)
    for name in config.proxies:
        modes = [_mode(path) for path in (data, data / name)]
        if all(mode & _FOR_OWNER_ALONE for mode in modes):
            path = data / name
            yield (
                f"data_dir: other users of this machine can enter {path}, with mode {modes[1]:04o}, where messages and "
                f"secrets of nodes are: chmod -R go= {path}"
            )


def _mode(path: Path) -> int:
    try:
        return S_IMODE(os.stat(path).st_mode)
    except OSError:
        return 0
