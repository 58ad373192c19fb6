"""aiokafka's compiled record codec, without its client.

Importing any module of aiokafka imports its whole client, because `aiokafka/__init__.py` does: 60
modules and 4 MB that a daemon without a Kafka cluster never uses. The codec needs four modules:
itself, `cutil`, `codec` and `errors`. They are imported under their real names, below packages
whose `__init__` is not executed and which are removed from `sys.modules` again. So `aiokafka`
itself is not imported, and a later import of it, for a Kafka cluster, shares the four: compiled
modules cannot be loaded twice. They are then not attributes of their packages; use `from
aiokafka.errors import ...`.

Without compiled modules (a build from source without a compiler) the ordinary import is used, and
the codec is far slower.

Alternatives considered: a codec in pure Python, which takes 0.35 us to build a record and 0.7 us to
read one instead of 0.2 us (records of 100 bytes without headers, no error handling); compiled code
of our own, which needs a compiler or wheels for each platform.
"""

import gzip
import struct
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any

import cramjam

_PACKAGES = ("aiokafka", "aiokafka.record", "aiokafka.record._crecords")


@contextmanager
def _packages_not_run() -> Iterator[None]:
    """Allow imports of aiokafka's modules without executing the `__init__` of their packages."""
    path = None
    try:
        for name in _PACKAGES:
            spec = PathFinder.find_spec(name, path)
            if spec is None:
                raise ImportError(f"no package {name}", name=name)
            path = spec.submodule_search_locations
            sys.modules[name] = module_from_spec(spec)
        yield
    finally:
        for name in _PACKAGES:
            sys.modules.pop(name, None)


def _load() -> tuple[Any, Any, Any]:
    """Modules with the record batches, the compression codecs and the errors."""
    if "aiokafka" not in sys.modules:
        try:
            with _packages_not_run():
                batches = import_module("aiokafka.record._crecords.default_records")
                return batches, import_module("aiokafka.codec"), import_module("aiokafka.errors")
        except ImportError:
            pass  # not compiled; or not installed, which the next import reports
    batches = import_module("aiokafka.record.default_records")
    return batches, import_module("aiokafka.codec"), import_module("aiokafka.errors")


_batches, _codec, _errors = _load()

DefaultRecordBatch = _batches.DefaultRecordBatch
DefaultRecordBatchBuilder = _batches.DefaultRecordBatchBuilder
CorruptRecordException = _errors.CorruptRecordException
gzip_encode = _codec.gzip_encode
lz4_encode = _codec.lz4_encode
snappy_encode = _codec.snappy_encode
zstd_encode = _codec.zstd_encode

UNREADABLE = (
    CorruptRecordException,
    cramjam.DecompressionError,
    gzip.BadGzipFile,  # not a gzip file, wrong checksum
    EOFError,  # gzip
    zlib.error,
    struct.error,  # snappy: truncated block length
    ValueError,  # includes a header name that is not UTF-8
    OverflowError,  # a length beyond any memory
    IndexError,  # the codec without compiled modules
)
"""Exceptions of the codec, and of the libraries below it, for invalid bytes. The codec raises
`MemoryError` for a length beyond any memory, and also if there is too little of it.
"""
