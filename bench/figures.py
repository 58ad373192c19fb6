"""What was measured, what it is measured against, and the table of it."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Figure", "as_json", "as_table", "machine"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table.

    Args:
        name: what was measured.
        value: how much.
        unit: of what.
        reference: the same of the server that does nothing; None where there is no such thing.
        ratio: value by reference, the median over the rounds.
        target: what the project wants, for people.
        met: whether it is so; None without a target.
    """

    name: str
    value: float
    unit: str
    reference: float | None = None
    ratio: float | None = None
    target: str = ""
    met: bool | None = None


def machine() -> dict[str, Any]:
    """Where this runs."""
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "load": round(os.getloadavg()[0], 2),
    }


def as_json(figures: Sequence[Figure], client: str) -> str:
    """Everything for a program."""
    return json.dumps(
        {"machine": machine(), "client": client, "figures": [asdict(f) for f in figures]}, indent=2
    )


def as_table(figures: Sequence[Figure]) -> str:
    """Everything for a person."""
    lines = [["", "pixy", "no-op", "ratio", "", "target", ""]]
    for figure in figures:
        reference = "" if figure.reference is None else _number(figure.reference)
        ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
        verdict = {True: "ok", False: "MISSED", None: ""}[figure.met]
        lines.append(
            [
                figure.name,
                _number(figure.value),
                reference,
                ratio,
                figure.unit,
                figure.target,
                verdict,
            ]
        )
    widths = [max(len(line[column]) for line in lines) for column in range(7)]
    right = {1, 2, 3}
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
