"""The exposition, judged by the parsers of Prometheus' client and by promtool."""

import gzip
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from pixy.metrics import Exposition, Format, Histogram, Registry, Sample, accepts_gzip, accepts_openmetrics
from pixy.metrics.families import FAMILIES, Kind
from tests.conftest import require

AWKWARD = 'a "b" \\ c\nd\u202e,{}=\ud7ff'
PARSERS: Mapping[Format, Any] = {Format.PROMETHEUS: parse_prometheus, Format.OPENMETRICS: parse_openmetrics}


def everything() -> Registry:
    """Samples of every family."""
    registry = Registry()
    histogram = Histogram((0.005, 1.0))
    for seconds in (0.001, 0.5, 20.0):
        histogram.observe(seconds)
    for name, family in FAMILIES.items():
        values = [tuple(f"{label}{at}" for label in family.labels) for at in range(2 if family.labels else 1)]
        if family.labels:
            values.append((AWKWARD,) * len(family.labels))
        value: float | Histogram = histogram if family.kind is Kind.HISTOGRAM else 5
        registry.add(name, lambda values=values, value=value: [Sample(each, value) for each in values])  # type: ignore[misc]
    return registry


def text_of(registry: Registry, format: Format) -> str:
    return b"".join(Exposition(registry, format).pieces()).decode()


def parsed(registry: Registry, format: Format) -> dict[str, Metric]:
    parse: Callable[[str], Iterable[Metric]] = PARSERS[format]
    families = parse(text_of(registry, format))
    return {family.name: family for family in families}


@pytest.mark.parametrize("format", list(Format))
def test_every_family_is_read_back_with_type_help_labels_and_values(format: Format) -> None:
    found = parsed(everything(), format)
    assert found.keys() == {name.removesuffix("_total") for name in FAMILIES}
    for name, family in FAMILIES.items():
        metric = found[name.removesuffix("_total")]
        assert (metric.type, metric.documentation) == (family.kind.value, family.help)
        for sample in metric.samples:
            assert [*sample.labels][: len(family.labels)] == [*family.labels]
            if family.kind is not Kind.HISTOGRAM:
                assert (sample.name, sample.value) == (name, 5)
        if family.labels:
            assert AWKWARD in {sample.labels[family.labels[0]] for sample in metric.samples}


@pytest.mark.parametrize("format", list(Format))
def test_buckets_are_cumulative(format: Format) -> None:
    metric = parsed(everything(), format)["pixy_loop_lag_seconds"]
    assert [
        (sample.name.removeprefix("pixy_loop_lag_seconds"), sample.labels.get("le"), sample.value)
        for sample in metric.samples
    ] == [
        ("_bucket", "0.005", 1),
        ("_bucket", "1.0", 2),
        ("_bucket", "+Inf", 3),
        ("_sum", None, 20.501),
        ("_count", None, 3),
    ]


def test_openmetrics_has_units_and_an_end() -> None:
    text = text_of(everything(), Format.OPENMETRICS)
    assert "# UNIT pixy_produced_bytes bytes\n" in text
    assert text.endswith("# EOF\n")


def test_a_family_without_samples_is_left_out() -> None:
    registry = Registry()
    registry.add("pixy_connections", list)
    assert text_of(registry, Format.PROMETHEUS) == ""


@pytest.mark.parametrize("format", list(Format))
def test_compressed_pieces_are_the_same_text(format: Format) -> None:
    packed = b"".join(Exposition(everything(), format, gzip=True).pieces())
    assert gzip.decompress(packed).decode() == text_of(everything(), format)


@pytest.mark.parametrize("format", list(Format))
def test_no_piece_of_a_large_exposition_is_much_work(format: Format) -> None:
    """A piece has about 200 lines: their text takes a quarter of a millisecond."""
    registry = Registry()
    labels = [("default", f"topic-{at // 100}", str(at % 100)) for at in range(10_000)]
    registry.add("kafka_topic_partition_current_offset", lambda: (Sample(each, 1) for each in labels))
    pieces = list(Exposition(registry, format).pieces())
    assert max(piece.count(b"\n") for piece in pieces) < 300
    assert sum(piece.count(b"\n") for piece in pieces) > 10_000


def test_promtool_has_nothing_to_say() -> None:
    promtool = require("promtool", "apt-get install prometheus")
    text = text_of(everything(), Format.PROMETHEUS)
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_names_end_with_their_unit_and_counters_with_total() -> None:
    for name, family in FAMILIES.items():
        assert re.fullmatch(r"(pixy|kafka|process)_[a-z_]+", name)
        assert (family.kind is Kind.COUNTER) == name.endswith("_total")
        assert name.removesuffix("_total").endswith(family.unit)
        assert not re.search(r"_(ms|millis|kb|mib)(_|$)", name)


PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "text/plain;version=0.0.4;escaping=allow-utf-8;q=0.4,*/*;q=0.1"
)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text; version=1.0.0, text/plain", True),
        ("text/plain;q=0.9, application/openmetrics-text;q=0.5", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=nonsense", False),
        (PROMETHEUS_3, True),
    ],
)
def test_accept_decides_the_format(accept: str, expected: bool) -> None:
    assert accepts_openmetrics(accept) is expected


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", False),
        ("gzip", True),
        ("deflate, GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("*", True),
        ("*, gzip;q=0", False),
    ],
)
def test_accept_encoding_allows_gzip(header: str, expected: bool) -> None:
    assert accepts_gzip(header) is expected
