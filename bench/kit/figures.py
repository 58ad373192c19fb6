"""Measured figures, their references, and the table of them."""

import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_HALT_POLL = Path("/sys/module/haltpoll/parameters/guest_halt_poll_ns")


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table.

    Args:
        name: the measured quantity.
        value: the measured value.
        unit: unit of the value.
        reference: value of the no-op server; None if there is none.
        nats: value of NATS; None if not measured.
        ratio: value by reference, the median over the rounds.
        target: the project's target, as text.
        met: True if the target is met; None without a target.
        row, in_flight: position in the table of docs/performance.md, if any.
    """

    name: str
    value: float
    unit: str
    reference: float | None = None
    ratio: float | None = None
    target: str = ""
    met: bool | None = None
    nats: float | None = None
    row: str = ""
    in_flight: int = 0


def machine() -> dict[str, Any]:
    """Description of the machine.

    `halt_poll_us` is the time that an idle core of this virtual machine polls for work before it
    halts (None: unknown). Waking a halted core takes tens of microseconds, which is most of the
    time of a lone call.
    """
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "load": round(os.getloadavg()[0], 2),
        "halt_poll_us": int(_HALT_POLL.read_text()) // 1000 if _HALT_POLL.exists() else None,
    }


def as_json(figures: Sequence[Figure], client: str) -> str:
    """All figures as JSON."""
    return json.dumps(
        {"machine": machine(), "client": client, "figures": [asdict(f) for f in figures]}, indent=2
    )


def as_table(figures: Sequence[Figure], reference: str = "no-op") -> str:
    """All figures as a table; `reference` names the reference column."""
    lines = [["", "pixy", reference, "ratio", "NATS", "", "target", ""]]
    for figure in figures:
        against = "" if figure.reference is None else _number(figure.reference)
        ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
        verdict = {True: "ok", False: "MISSED", None: ""}[figure.met]
        lines.append(
            [
                figure.name,
                _number(figure.value),
                against,
                ratio,
                "" if figure.nats is None else _number(figure.nats),
                figure.unit,
                figure.target,
                verdict,
            ]
        )
    widths = [max(len(line[column]) for line in lines) for column in range(8)]
    right = {1, 2, 3, 4}
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def as_markdown(figures: Sequence[Figure], reference: str = "grpc.aio, doing nothing") -> str:
    """A table of docs/performance.md, as far as measured. `reference` names the last column; empty:
    there is none.
    """
    rows = {
        figure.row: [other for other in figures if other.row == figure.row]
        for figure in figures
        if figure.row
    }
    if not rows:
        return ""
    levels = " / ".join(str(figure.in_flight) for figure in next(iter(rows.values())))
    lines = [[f"calls per second at {levels} in flight", "pixy", "NATS JetStream", reference]]
    lines.append(["---"] * 4)
    for row, found in rows.items():
        pixy, nats = _thousands(f.value for f in found), _thousands(f.nats for f in found)
        lines.append([row, pixy, nats, _thousands(f.reference for f in found)])
    return "\n".join(f"| {' | '.join(line if reference else line[:-1])} |" for line in lines)


def _thousands(values: Iterable[float | None]) -> str:
    known = [value / 1000 for value in values if value is not None]
    return " / ".join(f"{value:.1f} k" if value < 10 else f"{value:.0f} k" for value in known)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
