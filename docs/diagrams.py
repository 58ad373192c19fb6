"""The diagrams of the documentation as SVG.

Colours suit light and dark pages: text is in filled boxes, and lines on the page itself have a grey
that both backgrounds show. Text has the font of the page.
"""

import itertools
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["IMAGES"]

BLUE, GREEN, VIOLET, AMBER, SLATE = "#1f5fa8", "#1f7a4d", "#6b4fa0", "#8a5a00", "#4a5561"
LINE = "#7d8590"

_PROJECT = Path(__file__).parent.parent / "pyproject.toml"

_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{label}"
     font-family="system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif">
<title>{label}</title>
<defs>
<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse">
<path d="M0 0 8 4 0 8z" fill="{line}"/>
</marker>
</defs>
"""


class Box(NamedTuple):
    """A filled box with a title and lines below it; places and sizes in pixels."""

    x: int
    y: int
    width: int
    height: int
    fill: str
    title: str
    lines: tuple[str, ...] = ()

    def svg(self) -> str:
        """The box and its text, centred."""
        middle = self.x + self.width / 2
        top = self.y + self.height / 2 - 9 * len(self.lines) + 5
        rows = [_text(middle, top, self.title, 15, "#ffffff", weight=600)]
        rows += [
            _text(middle, top + 18 * (number + 1), line, 13, "#eef2f6")
            for number, line in enumerate(self.lines)
        ]
        rect = f'<rect x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" rx="8" fill="{self.fill}"/>'
        return "\n".join([rect, *rows])


class Arrow(NamedTuple):
    """A line with a tip through points, and a label beside it."""

    points: tuple[tuple[int, int], ...]
    label: str = ""
    at: tuple[int, int] = (0, 0)
    both: bool = False
    dashed: bool = False

    def svg(self) -> str:
        """The line, and its label in the colour of the line."""
        path = "M" + " L".join(f"{x} {y}" for x, y in self.points)
        start = ' marker-start="url(#tip)"' if self.both else ""
        dash = ' stroke-dasharray="5 4"' if self.dashed else ""
        line = f'<path d="{path}" fill="none" stroke="{LINE}" stroke-width="2"{dash} marker-end="url(#tip)"{start}/>'
        return f"{line}\n{_text(*self.at, self.label, 13, LINE)}" if self.label else line


class Frame(NamedTuple):
    """An outline around boxes with its name at the top left."""

    x: int
    y: int
    width: int
    height: int
    title: str

    def svg(self) -> str:
        """The outline and the name."""
        rect = (
            f'<rect x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" rx="12" fill="none" '
            f'stroke="{LINE}" stroke-width="1.5"/>'
        )
        return f"{rect}\n{_text(self.x + 16, self.y + 24, self.title, 14, LINE, anchor='start', weight=600)}"


def _text(
    x: float, y: float, text: str, size: int, fill: str, *, anchor: str = "middle", weight: int = 400
) -> str:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;")
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" font-weight="{weight}" fill="{fill}" '
        f'text-anchor="{anchor}">{escaped}</text>'
    )


def _image(width: int, height: int, label: str, parts: Iterable[Box | Arrow | Frame]) -> str:
    head = _HEAD.format(width=width, height=height, label=label, line=LINE)
    return head + "\n".join(part.svg() for part in parts) + "\n</svg>\n"


def overview() -> str:
    """Clients, the daemon, and what stands behind it."""
    clients = [
        Box(10, 46, 170, 56, BLUE, "Any language", ("gRPC",)),
        Box(10, 118, 170, 56, BLUE, "kafka-pixy clients", ("unchanged",)),
        Box(10, 190, 170, 56, BLUE, "PySpark", ("batch and stream",)),
        Box(10, 262, 170, 56, BLUE, "pixy", ("the command line",)),
    ]
    daemon: list[Box | Arrow | Frame] = [
        Frame(270, 10, 250, 344, "pixy serve"),
        Box(290, 46, 210, 70, SLATE, "gRPC on HTTP/2", ("own server, fair to all",)),
        Box(290, 134, 210, 90, VIOLET, "Proxies", ("produce · consume · ack", "offsets · topics · bulk")),
        Box(290, 242, 210, 92, VIOLET, "Consumer groups", ("an ack per message", "retries · long polling")),
    ]
    behind = [
        Box(
            610,
            46,
            220,
            120,
            GREEN,
            "Embedded log",
            ("one journal, synced", "before every answer", "Kafka v2 segments"),
        ),
        Box(
            610, 214, 220, 120, AMBER, "Apache Kafka", ("3.1 or newer", "no ZooKeeper", "Kafka's own groups")
        ),
    ]
    arrows = [
        *(Arrow(((180, box.y + 28), (266, 182)), both=True) for box in clients),
        Arrow(((520, 130), (606, 106)), both=True),
        Arrow(((520, 230), (606, 274)), both=True),
    ]
    return _image(
        840,
        364,
        "Clients talk gRPC to pixy, which keeps messages in its own log or in Kafka",
        [*daemon, *clients, *behind, *arrows],
    )


def layers() -> str:
    """Packages from the top to the bottom; each imports only what is below it."""
    rows: list[tuple[str, tuple[tuple[str, str], ...]]] = [
        (SLATE, (("cli", "commands; prints and exits"),)),
        (SLATE, (("daemon", "start, serve, drain, stop"),)),
        (BLUE, (("api/grpc", "one file per service"),)),
        (BLUE, (("rpc", "gRPC server for any service"), ("proxy", "checks, gathers, routes"))),
        (VIOLET, (("serving", "connections"), ("http2", "pure"), ("consume", "offers, acks, offsets"))),
        (
            GREEN,
            (
                ("backend", "one protocol: embedded, Kafka"),
                ("backup", "targets, restore"),
                ("inspect", "check and dump of files"),
            ),
        ),
        (GREEN, (("cluster", "a node: raft groups, state"), ("staging", "records before publication"))),
        (GREEN, (("peers", "links between nodes"), ("storage", "files"), ("raft", "one replica, pure"))),
        (AMBER, (("records · kafka_protocol · config · errors · clock · proto", "used by all"),)),
    ]
    parts: list[Box | Arrow | Frame] = []
    for number, (fill, boxes) in enumerate(rows):
        width = (620 - 12 * (len(boxes) - 1)) // len(boxes)
        parts += [
            Box(10 + at * (width + 12), 10 + 62 * number, width, 52, fill, name, (what,))
            for at, (name, what) in enumerate(boxes)
        ]
    parts.append(
        Box(
            660,
            10,
            170,
            176,
            SLATE,
            "spark",
            ("the connector,", "outside the daemon;", "talks gRPC, imports", "proto, records, errors"),
        )
    )
    return _image(
        840, 572, "The packages of pixy, from the commands at the top to the leaves at the bottom", parts
    )


def packages() -> str:
    """The parts of packages, as their import contracts in `pyproject.toml` have them."""
    contracts = tomllib.loads(_PROJECT.read_text())["tool"]["importlinter"]["contracts"]
    inner = {
        container.removeprefix("pixy."): contract["layers"]
        for contract in contracts
        if contract["type"] == "layers"
        for container in contract["containers"]
        if container != "pixy"
    }
    parts: list[Box | Arrow | Frame] = []
    height, y = 10, 10
    fills = (GREEN, AMBER, VIOLET, BLUE, SLATE)
    for (name, levels), fill in zip(inner.items(), itertools.cycle(fills), strict=False):
        rows = [[each.strip() for each in re.split("[:|]", layer)] for layer in levels]
        frame = Frame(10, y, 820, 42 + 34 * len(rows), name)
        parts.append(frame)
        for number, row in enumerate(rows):
            width = (790 - 8 * (len(row) - 1)) // len(row)
            parts += [
                Box(25 + at * (width + 8), y + 34 + 34 * number, width, 28, fill, each)
                for at, each in enumerate(row)
            ]
        y += frame.height + 12
        height = y - 2
    names = f"{', '.join([*inner][:-1])} and {[*inner][-1]}"
    label = f"The parts of the packages {names}; each imports only those below it"
    return _image(840, height, label, parts)


def message() -> str:
    """The way of one message down into the log and up to a consumer."""
    down = [
        ("rpc", "reads the call"),
        ("api/grpc/kafkapixy", "parses ProdRq"),
        ("proxy/proxy", "checks name and sizes"),
        ("proxy/accumulator", "gathers one record batch"),
        ("multiraft/driver", "appends it to its raft group"),
        ("storage/journal", "one write and sync for all groups"),
        ("storage/log_writer", "segments, behind the answer"),
    ]
    up = [
        ("rpc", "writes the answer, reports delivery"),
        ("api/grpc/kafkapixy", "builds ConsRs"),
        ("consume/dispatcher", "next record to the longest waiter"),
        ("consume/partition", "tracks deadline and ack"),
        ("consume/fetcher", "asks for batches"),
        ("backend/embedded", "wakes the fetch after an append"),
        ("storage/partition_log", "newest batches in memory"),
    ]
    parts: list[Box | Arrow | Frame] = [
        Box(10, 10, 330, 44, BLUE, "Producer"),
        Box(500, 10, 330, 44, BLUE, "Consumer"),
    ]
    for number in range(7):
        top = 86 + 76 * number
        fill = (SLATE, SLATE, VIOLET, VIOLET, VIOLET, GREEN, GREEN)[number]
        parts.append(Box(10, top, 330, 52, fill, down[number][0], (down[number][1],)))
        parts.append(Box(500, top, 330, 52, fill, up[number][0], (up[number][1],)))
        parts.append(Arrow(((175, top - 24 if number else 54), (175, top - 2)), dashed=number == 6))
        parts.append(Arrow(((665, top - 2), (665, top - 22 if number else 58))))
    parts += [
        Arrow(((340, 492), (420, 492), (420, 32), (344, 32)), "answer", (384, 246)),
        Arrow(((340, 508), (460, 508), (460, 568), (496, 568)), "applied", (400, 530)),
    ]
    parts += [Arrow(((500, 24), (470, 24), (470, 492), (496, 492)), "ack", (485, 300))]
    return _image(840, 604, "A message goes down into the journal and comes up to a consumer", parts)


IMAGES: Mapping[str, Callable[[], str]] = {
    "overview": overview,
    "layers": layers,
    "packages": packages,
    "message": message,
}
"""Makers of the images, by file name."""
