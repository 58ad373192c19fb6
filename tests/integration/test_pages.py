"""Every block of the pages for users does what the page says: commands end well and print what is
shown, programs run, and files are configurations. A block or command that no test can run is in the
table with the reason.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pixy.config import load_config
from tests.conftest import require
from tests.fakes.waiting import until_blocking
from tests.integration.conftest import MakeDaemon
from tests.integration.daemon import Daemon
from tests.integration.pages import ROOT, Block, Command, Terminal, blocks_of
from tests.integration.test_cluster_example import free_port, is_alive, running
from tests.judges.daemons import make_certificate
from tests.judges.toolbox import grpcurl

PAGES = [
    "README.md",
    *(
        f"docs/{name}.md"
        for name in (
            "quickstart",
            "http",
            "kafka",
            "cluster",
            "spark",
            "operations",
            "backends",
            "migrating-from-kafka-pixy",
        )
    ),
]
SERVES = ("pixy serve", "make run", "make cluster")
WITH_TLS = ("openssl", "grpc_addr: 10.0.0.1", "$ pixy contexts create billing", "from pathlib")
OF_CLUSTERS = ("$ pixy cluster status", "$ pixy contexts create three")
ADDRESS = "127.0.0.1:19091"
NODES = (1, 2, 3)

WHEEL = "tests/spark/test_wheel.py installs the wheel"
SPARK = "tests/spark/test_pages.py runs it in a session"
NO_TOOL = "not a tool of this project; tests/judges has clients in other languages, and reflection"
WITH_KAFKA = "needs brokers: test_kafka_mirror runs it"
NO_SYSTEMD = "there is no systemd"
NO_SSH = "there are no other machines; test_cluster_rolling_restart.py restarts three nodes in this way"


@dataclass(frozen=True)
class Row:
    """A block.

    Attributes:
        first: begin of its first line.
        not_run: reasons by the begins of the commands that are not run; an empty begin means all.
        before: commands that make what the block speaks of.
        replaced: what the page has, and what the test has in its place.
    """

    first: str
    not_run: Mapping[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    replaced: Mapping[str, str] = field(default_factory=dict)


ROWS: dict[str, list[Row]] = {
    "README.md": [
        Row("pip install", {"pip install": WHEEL}),
        Row(
            "make run",
            {"make test": "it is the tests themselves"},
            replaced={"make run": f"make --no-print-directory -C {ROOT} run"},
        ),
        Row("$ pixy produce greetings"),
        Row("import grpc"),
        Row("make cluster"),
        Row("$ pixy cluster status"),
        Row("import os, sys", {"": SPARK}),
        Row("$ seq 1 1000 | kcat", {"seq 3 |": "it reads until Ctrl-C: test_kafka_go_clients.py runs it"}),
    ],
    "docs/quickstart.md": [
        Row("$ pixy produce greetings"),
        Row("$ seq 1 1000", {"pixy top": "it is live; tests/cli/test_top.py runs it"}),
        Row("$ pixy contexts create prod"),
        Row("protos=", {"protoc": NO_TOOL}),
        Row("import grpc"),
        Row("grpcurl", {"": "the test of grpcurl runs it, where it can be built"}),
        Row("$ pixy topics create"),
        Row("env PIXY_CLUSTER__SECRET_FILE="),
        Row("$ pixy contexts create three"),
    ],
    "docs/http.md": [
        Row('$ curl "localhost'),
        Row("$ curl localhost:19092/v1"),
        Row("curl -N", before=('curl localhost:19092/v1/topics/orders/records --json \'{"value": "3"}\'',)),
    ],
    "docs/kafka.md": [
        Row("$ seq 1 1000 | kcat"),
        Row("$ openssl rand"),
        Row("sasl:"),
        Row("security.protocol=", {"": "test_kafka_logins.py has Java's tools log in with such a file"}),
        Row("$ kcat -G", {"kcat": "reads until Ctrl-C, and kcat ends with 1 then"}),
    ],
    "docs/cluster.md": [
        Row("peer_addr:"),
        Row("pixy serve --peer-addr"),
        Row("for host in", {"": NO_SSH}),
        Row("systemctl stop", {"systemctl": NO_SYSTEMD}),
    ],
    "docs/spark.md": [
        Row("pip install", {"": WHEEL}),
        Row("import os, sys", {"": SPARK}),
        Row("def write(", {"": SPARK}),
    ],
    "docs/operations.md": [
        Row("pixy serve --config", replaced={"/etc/pixy/config.yaml": str(ROOT / "config.yaml")}),
        Row("openssl req -x509"),
        Row("openssl req -newkey"),
        Row("openssl req -newkey"),
        Row("grpc_addr: 10.0.0.1:19091"),
        Row("$ pixy contexts create billing"),
        Row("from pathlib import Path"),
        Row("pixy backup create", replaced={"/backup/": "backup/", "/var/lib/pixy": "restored"}),
        Row("systemctl stop", {"systemctl": NO_SYSTEMD}, before=("mkdir -p backup",)),
        Row("pixy mirror", {"pixy mirror": "runs for ever: test_mirror has it"}),
        Row("default_cluster"),
        *[Row("pixy mirror", {"pixy mirror": WITH_KAFKA})] * 3,
        Row(
            "pixy offsets set orders",
            before=(
                "pixy topics create orders --partitions 2",
                "seq 9 | pixy produce orders",
                "pixy consume orders -g billing -n 9",
            ),
        ),
    ],
    "docs/backends.md": [Row("proxies:")],
    "docs/migrating-from-kafka-pixy.md": [],
}


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_is_in_the_table(page: str) -> None:
    rows, blocks = ROWS[page], blocks_of(page)
    assert [
        (row.first, block.first.startswith(row.first)) for row, block in zip(rows, blocks, strict=True)
    ] == [(row.first, True) for row in rows]
    for row, block in zip(rows, blocks, strict=True):
        lines = (
            [command.line for command in block.commands()] if block.language in ("sh", "console") else [""]
        )
        assert [begin for begin in row.not_run if not any(line.startswith(begin) for line in lines)] == []


class Pages:
    """Runs blocks of one page against a daemon of their own."""

    def __init__(self, folder: Path, make_daemon: MakeDaemon) -> None:
        self._folder = folder
        self._make_daemon = make_daemon
        self._daemon = make_daemon(dict.fromkeys(("tcp_addr", "kafka_addr"), "127.0.0.1:0"))
        shutil.copy(make_certificate(folder).path, folder / "ca.pem")
        # Starts of further nodes of the next cluster.
        self._joins: list[Command] = []
        self._tls: TlsPages | None = None

    def close(self) -> None:
        """End what blocks have started for later ones."""
        if self._tls is not None:
            self._tls.close()

    def run(self, block: Block, row: Row) -> None:
        """Run a block; the test fails if it is not as the page says."""
        if "" in row.not_run:
            return
        if block.first.startswith(WITH_TLS):
            self._tls = self._tls or TlsPages(self._folder / "tls")
            self._tls.run(block)
        elif block.language == "yaml":
            self._load(block)
        elif block.first.startswith((*SERVES, "pip install")):
            self._serve(block, row)
        elif block.first.startswith("env PIXY_CLUSTER__SECRET_FILE="):
            self._joins = block.commands()
        elif block.first.startswith(OF_CLUSTERS):
            self._command_cluster(block)
        elif block.first.startswith("$ pixy contexts create prod"):
            self._use_context(block)
        elif "pixy cluster recover" in block.text:
            self._recover(block, row)
        elif block.first.startswith("systemctl stop"):
            self._back_up(block, row)
        else:
            self._command(block, row)

    def _secret(self) -> str:
        """File with a secret of nodes."""
        secret = self._folder / "peers.secret"
        secret.write_text("0123456789abcdef" * 2)
        secret.chmod(0o600)
        return str(secret)

    def _load(self, block: Block) -> None:
        path = self._folder / "page.yaml"
        path.write_text(block.text.replace("/etc/pixy/peers.secret", self._secret()))
        assert load_config(path, {}, {}).proxies

    def _serve(self, block: Block, row: Row) -> None:
        """Daemons on free ports of loopback; of those of three machines the first runs already."""
        replaced = {**row.replaced, "10.0.0.": "127.0.0.", "19094": str(free_port())}
        arguments = f"ARGS='--port {free_port()} --folder {self._folder}/three'"
        replaced |= {"make cluster": f"make --no-print-directory -C {ROOT} cluster {arguments}"}
        variables = {"PIXY_GRPC_ADDR": "127.0.0.1:0", "PIXY_TCP_ADDR": "", "PIXY_KAFKA_ADDR": ""}
        if "10.0.0." in block.text:
            variables["PIXY_CLUSTER__SECRET_FILE"] = self._secret()
        with self._terminal(replaced, variables) as user:
            if "10.0.0." in block.text:
                first = "pixy serve --peer-addr 10.0.0.1:19094 --join 10.0.0.1:19094"
                user.serve(first, PIXY_DATA_DIR=str(self._folder / "first"))
            for number, command in enumerate(block.commands()):
                if command.line.startswith(SERVES):
                    user.serve(command.line, PIXY_DATA_DIR=str(self._folder / f"data-{number}"))
                else:
                    assert command.line.startswith(tuple(row.not_run)), command.line

    def _command(self, block: Block, row: Row) -> None:
        """Commands, or a program, with a daemon; without one where the page stops it."""
        replaced = {**row.replaced}
        if "systemctl" not in row.not_run:
            if not self._daemon.running:
                self._daemon.start()
            addresses = self._daemon.addresses
            replaced |= {ADDRESS: self._daemon.address, "localhost:19092": addresses["http"]}
            replaced["localhost:19095"] = addresses["kafka"]
            if "kcat" in block.text:
                require("kcat", "apt-get install kcat")
        with self._terminal(replaced) as user:
            if block.language == "python":
                user.run_program(block.text)
                return
            for line in row.before:
                user.run(Command(line, ""))
            for command in block.commands():
                if command.line.startswith("curl -N"):
                    user.run_until(command.line, '"value":"3"')
                elif not command.line.startswith(tuple(row.not_run)):
                    user.run(command)

    def _command_cluster(self, block: Block) -> None:
        with running(self._folder / "cluster") as (script, nodes):
            arguments: Any = script.args
            first = int(arguments[arguments.index("--port") + 1])
            ports = (19091, 19094, 19191, 19291, 19391, 19394)
            replaced = {f"127.0.0.1:{port}": f"127.0.0.1:{first + port - ports[0]}" for port in ports}
            replaced |= {"4711": str(nodes[0]), "pixy-data": str(self._folder / "cluster")}
            has_context = block.first.startswith("$ pixy contexts")
            variables = {} if has_context else {"PIXY_ADDRESS": f"127.0.0.1:{first}"}
            with self._terminal(replaced, variables) as user:
                for command in self._joins:
                    user.serve(command.line)
                for command in block.commands():
                    user.run(command)

    def _use_context(self, block: Block) -> None:
        """Of three nodes the first is away."""
        paths = (str(self._folder / name) for name in ("certificate.pem", "key.pem"))
        tls = dict(zip(("certificate_path", "key_path"), paths, strict=True))
        daemon = self._make_daemon({"tls": tls})
        daemon.start()
        replaced = {"node1,node2,node3": f"127.0.0.1:1,{daemon.address}"}
        with self._terminal(replaced, {}) as user:
            for command in block.commands():
                user.run(command)
        daemon.stop()

    def _recover(self, block: Block, row: Row) -> None:
        """The first node of three goes on alone, and then serves."""
        with running(self._folder / "lost") as (_, nodes):
            pass
        until_blocking(lambda: not any(map(is_alive, nodes)), lambda: "a node outlives its script")
        data = str(self._folder / "lost" / "cluster-1")
        address = f"127.0.0.1:{free_port()}"
        with self._terminal({"/var/lib/pixy": data}, {"PIXY_ADDRESS": address}) as user:
            for command in block.commands():
                if not command.line.startswith(tuple(row.not_run)):
                    user.run(command)
            others = "--tcp-addr '' --kafka-addr '' --management-addr ''"
            user.serve(f"pixy serve --data-dir {data} --grpc-addr {address} {others}")
            user.run(Command("pixy cluster status | tail -1", "no problems\n"))

    def _back_up(self, block: Block, row: Row) -> None:
        if not self._daemon.running:
            self._daemon.start()
        self._daemon.stop()
        data = str(self._daemon.data.parent)
        replaced = {"/var/lib/pixy": data, "/backup/": f"{self._folder}/backup/"}
        self._command(block, Row(row.first, row.not_run, row.before, replaced))

    @contextmanager
    def _terminal(
        self, replaced: Mapping[str, str], variables: Mapping[str, str] | None = None
    ) -> Iterator[Terminal]:
        if variables is None:
            variables = {"PIXY_ADDRESS": self._daemon.config["grpc_addr"]}
        user = Terminal(self._folder, replaced, variables)
        try:
            yield user
        finally:
            user.close()


class TlsPages:
    """Runs the blocks that make certificates, and three nodes and clients that use them."""

    def __init__(self, folder: Path) -> None:
        require("openssl", "apt-get install openssl")
        self._folder = folder
        first = free_port()
        self._ports = {f":1909{port}": f":{first + port}" for port in (1, 2, 4)}
        self._user = Terminal(folder, {"10.0.0.": "127.0.0.", **self._ports}, {})

    def close(self) -> None:
        """End the nodes."""
        self._user.close()

    def run(self, block: Block) -> None:
        """Run a block; those of the first node are repeated for the others."""
        if "node1" in block.text:
            for node in NODES:
                user = Terminal(self._folder, {"node1": f"node{node}", "10.0.0.1": f"127.0.0.{node}"}, {})
                for command in block.commands():
                    user.run(command)
                own = self._folder / f"node{node}"
                own.mkdir()
                for name in ("server.pem", "server.key", "peer.pem", "peer.key"):
                    (self._folder / name).rename(own / name)
                for name in ("ca.pem", "peers-ca.pem"):
                    shutil.copy(self._folder / name, own)
        elif block.language == "yaml":
            self._serve(block)
        elif block.language == "python":
            self._user.run_program(block.text)
        else:
            for command in block.commands():
                self._user.run(command)
                if command.line.startswith("curl"):
                    with pytest.raises(AssertionError, match=r"ended with (35|52|55|56):"):
                        self._user.run(Command(command.line.partition(" --cert ")[0], ""))

    def _serve(self, block: Block) -> None:
        commands = []
        for node in NODES:
            own = self._folder / f"node{node}"
            text = block.text.replace("addr: 10.0.0.1", f"addr: 127.0.0.{node}")
            text = self._user.written(text.replace("/etc/pixy/tls", str(own)))
            (own / "config.yaml").write_text(f"{text}management_addr: ''\ndata_dir: {own}/data\n")
            self._user.run(Command(f"pixy config check {own}/config.yaml", ""))
            commands.append(f"pixy serve --config {own}/config.yaml")
        self._user.serve(*commands)
        connection = "--address 10.0.0.1:19091 --tls-ca-path ca.pem --tls-certificate-path billing.pem"
        status = f"pixy cluster status {connection} --tls-key-path billing.key"
        self._user.run(Command(f"until {status} | grep 'no problems'; do sleep 0.2; done", ""))


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize("page", [page for page in PAGES if ROWS[page]])
def test_the_blocks_of_a_page_do_what_it_says(page: str, tmp_path: Path, make_daemon: MakeDaemon) -> None:
    with closing(Pages(tmp_path, make_daemon)) as pages:
        for block, row in zip(blocks_of(page), ROWS[page], strict=True):
            pages.run(block, row)


@pytest.mark.long
@pytest.mark.process
def test_grpcurl_calls_a_daemon_as_the_quickstart_says(tmp_path: Path, daemon: Daemon) -> None:
    path = f"{grpcurl()}{os.pathsep}{os.environ['PATH']}"
    (block,) = [each for each in blocks_of("docs/quickstart.md") if each.first.startswith("grpcurl")]
    with closing(Terminal(tmp_path, {ADDRESS: daemon.address}, {"PATH": path})) as user:
        for command in block.commands():
            user.run(command)
