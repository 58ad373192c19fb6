"""The data source is found by Spark: light to import, named pixy, and part of the installed
packages.
"""

import subprocess
import sys
import tomllib

import pytest

from pixy.spark import PixyDataSource
from tests.spark.conftest import ROOT

HEAVY = ("grpc", "numpy", "pyarrow", "aiokafka", "google.protobuf", "pixy.proto", "pixy.records")


def imported_by(module: str) -> set[str]:
    code = f"import sys; import {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    return set(done.stdout.split())


@pytest.mark.process
def test_the_module_that_spark_imports_at_every_lookup_is_light() -> None:
    """A data source module that fails to import hides all others."""
    own = imported_by("pyspark_pixy") - imported_by("pyspark.sql.datasource")
    assert own & set(HEAVY) == set()
    assert {"pixy.spark.data_source", "pyspark_pixy"} <= own


def test_the_source_is_called_pixy() -> None:
    import pyspark_pixy

    assert pyspark_pixy.DefaultSource is PixyDataSource
    assert PixyDataSource.name() == "pixy"


def test_the_module_that_spark_looks_for_is_installed_too() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["py-modules"] == ["pyspark_pixy"]
    assert any(
        each.startswith("pyspark>=4.2") for each in project["project"]["optional-dependencies"]["spark"]
    )
