"""aiokafka's codec without aiokafka, and with it."""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

_ROUND_TRIP = (
    "from pixy.records import build_batch, read_records; "
    "assert next(read_records(build_batch([(b'k', b'v', (), 1)]))).value == b'v'"
)
_IS_IMPORTED = "import sys; assert 'aiokafka' in sys.modules"
_IS_NOT_IMPORTED = "import sys; assert 'aiokafka' not in sys.modules"
_IMPORT = (
    "from aiokafka import AIOKafkaConsumer; from aiokafka.record.default_records import DefaultRecordBatch"
)
_IS_SHARED = (
    "import pixy.records.compiled as ours, aiokafka.errors as errors; "
    "assert ours.DefaultRecordBatch is DefaultRecordBatch, DefaultRecordBatch; "
    "assert ours.CorruptRecordException is errors.CorruptRecordException"
)


def _run(*lines: str, path: Path | None = None) -> None:
    before = "" if path is None else f"import sys; sys.path.insert(0, {str(path)!r})"
    subprocess.run([sys.executable, "-c", "\n".join((before, *lines))], check=True)


@pytest.mark.slow
def test_the_codec_works_without_an_import_of_aiokafka() -> None:
    _run(_ROUND_TRIP, _IS_NOT_IMPORTED)


@pytest.mark.slow
@pytest.mark.parametrize("lines", [(_ROUND_TRIP, _IMPORT), (_IMPORT, _ROUND_TRIP)], ids=["before", "behind"])
def test_aiokafka_shares_the_compiled_modules_whichever_is_first(lines: tuple[str, str]) -> None:
    _run(*lines, _IS_SHARED)


@pytest.mark.slow
def test_without_compiled_modules_the_ordinary_codec_is_used(tmp_path: Path) -> None:
    spec = find_spec("aiokafka")
    assert spec is not None
    assert spec.origin is not None
    without = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__")
    shutil.copytree(Path(spec.origin).parent, tmp_path / "aiokafka", ignore=without)
    _run(_ROUND_TRIP, _IS_IMPORTED, path=tmp_path)
