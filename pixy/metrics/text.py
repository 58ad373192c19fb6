"""The exposition of metrics: Prometheus' text format 0.0.4, and OpenMetrics 1.0.

    Prometheus                          OpenMetrics
    # HELP a_total text                 # HELP a text
    # TYPE a_total counter              # TYPE a counter
                                        # UNIT a bytes
    a_total{topic="t"} 5                a_total{topic="t"} 5
                                        # EOF

It is made piece by piece, with other work of the event loop in between: a node with ten thousand
partitions has megabytes of it. A family without samples is left out.
"""

import re
import zlib
from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import accumulate

from pixy.metrics.buckets import Histogram
from pixy.metrics.families import Family, Kind
from pixy.metrics.registry import Sample

_PIECE_BYTES = 16 << 10
_GZIP_LEVEL = 1
_GZIP = 31
"""Window of zlib with the head of gzip."""
_ESCAPED = re.compile(r'[\\"\n]')
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}


class Format(Enum):
    """A format of the exposition."""

    PROMETHEUS = 1
    OPENMETRICS = 2


CONTENT_TYPES = {
    Format.PROMETHEUS: "text/plain; version=0.0.4; charset=utf-8",
    Format.OPENMETRICS: "application/openmetrics-text; version=1.0.0; charset=utf-8",
}


class Exposition:
    """The text of some samples.

    Args:
        families: with their samples.
        format: of the text.
        gzip: compress it.
    """

    def __init__(
        self, families: Iterable[tuple[Family, Iterable[Sample]]], format: Format, *, gzip: bool = False
    ) -> None:
        self._families = families
        self._format = format
        self._gzip = gzip

    def pieces(self) -> Iterator[bytes]:
        """The text; each piece takes a fraction of a millisecond."""
        packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP) if self._gzip else None
        lines: list[str] = []
        size = 0
        for line in self._lines():
            lines.append(line)
            size += len(line)
            if size >= _PIECE_BYTES:
                piece = "".join(lines).encode()
                yield piece if packer is None else packer.compress(piece)
                lines, size = [], 0
        last = "".join(lines).encode()
        yield last if packer is None else packer.compress(last) + packer.flush()

    def _lines(self) -> Iterator[str]:
        is_open = self._format is Format.OPENMETRICS
        for family, samples in self._families:
            left = iter(samples)
            first = next(left, None)
            if first is None:
                continue
            yield _head(family, is_open=is_open)
            names = [f'{label}="' for label in family.labels]
            yield from _sample(family, names, first)
            for sample in left:
                yield from _sample(family, names, sample)
        if is_open:
            yield "# EOF\n"


def _head(family: Family, *, is_open: bool) -> str:
    name = family.name.removesuffix("_total") if is_open else family.name
    unit = (
        f"# UNIT {name} {family.unit}\n"
        if is_open and family.unit and name.endswith(f"_{family.unit}")
        else ""
    )
    text = family.help.replace("\\", "\\\\").replace("\n", "\\n")
    text = text.replace('"', '\\"') if is_open else text
    return f"# HELP {name} {text}\n# TYPE {name} {family.kind.value}\n{unit}"


def _sample(family: Family, names: list[str], sample: Sample) -> Iterator[str]:
    values, value = sample
    labels = ",".join([f'{name}{_escaped(text)}"' for name, text in zip(names, values, strict=True)])
    if family.kind is not Kind.HISTOGRAM:
        yield f"{family.name}{{{labels}}} {value}\n" if labels else f"{family.name} {value}\n"
        return
    assert isinstance(value, Histogram)
    comma, braced = f"{labels}," if labels else "", f"{{{labels}}}" if labels else ""
    # A copy: it is counted on while other pieces are made.
    counts = list(accumulate(value.counts))
    for bound, count in zip(value.bounds, counts, strict=False):
        yield f'{family.name}_bucket{{{comma}le="{float(bound)}"}} {count}\n'
    yield (
        f'{family.name}_bucket{{{comma}le="+Inf"}} {counts[-1]}\n'
        f"{family.name}_sum{braced} {value.sum}\n{family.name}_count{braced} {counts[-1]}\n"
    )


def _escaped(text: str) -> str:
    if _ESCAPED.search(text):
        return _ESCAPED.sub(lambda found: _ESCAPES[found[0]], text)
    return text


# --- what a client accepts ------------------------------------------------------------------------


def accepts_openmetrics(accept: str) -> bool:
    """True if an Accept header (RFC 9110) prefers OpenMetrics to Prometheus' format."""
    weights = dict(_weights(accept))
    wanted = weights.get("application/openmetrics-text", 0.0)
    plain = weights.get("text/plain", weights.get("text/*", weights.get("*/*", 0.0)))
    return wanted > 0 and wanted >= plain


def accepts_gzip(accept_encoding: str) -> bool:
    """True if an Accept-Encoding header (RFC 9110) allows gzip."""
    weights = dict(_weights(accept_encoding))
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def _weights(header: str) -> Iterator[tuple[str, float]]:
    """Names of a list with their weights; a weight that is no number counts as 0."""
    for element in header.split(","):
        name, *parameters = (part.strip().lower() for part in element.split(";"))
        weight = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                found = re.fullmatch(r"[01](?:\.\d{0,3})?", parameter[2:])
                weight = float(found[0]) if found else 0.0
        yield name, weight
