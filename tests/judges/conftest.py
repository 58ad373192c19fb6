"""Daemons for the judges.

The tests of a module share one of each kind; no judge may affect the next.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.daemon import Daemon
from tests.judges.daemons import Certificate, judged_daemon, make_certificate

__all__: list[str] = []


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """Certificate of the servers with TLS."""
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def plain_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon in plaintext."""
    with judged_daemon(tmp_path_factory.mktemp("plain") / "daemon") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def tls_daemon(tmp_path_factory: pytest.TempPathFactory, certificate: Certificate) -> Iterator[Daemon]:
    """A daemon with TLS."""
    folder: Path = tmp_path_factory.mktemp("tls") / "daemon"
    with judged_daemon(folder, certificate=certificate) as daemon:
        yield daemon
