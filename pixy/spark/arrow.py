"""Arrow arrays over numpy memory. `pyarrow.array` would do, but imports pandas on its first call,
which takes a quarter of a second.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def column(arrow_type: pa.DataType, numbers: npt.NDArray[Any]) -> pa.Array:
    """A column without nulls over memory in Arrow's layout."""
    return pa.Array.from_buffers(
        arrow_type, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))]
    )


def int32_column(numbers: npt.NDArray[np.int32]) -> pa.Array:
    """A column of 32-bit integers."""
    return column(pa.int32(), numbers)


def int64_column(numbers: npt.NDArray[np.int64]) -> pa.Array:
    """A column of 64-bit integers."""
    return column(pa.int64(), numbers)


def string_column(text: str, count: int) -> pa.Array:
    """A column with the same text `count` times."""
    return pa.repeat(pa.scalar(text, pa.string()), count)


def binary_array(offsets: npt.NDArray[np.int32], content: bytes | npt.NDArray[np.uint8]) -> pa.Array:
    """A binary column without nulls: entry i is `content` from `offsets[i]` to `offsets[i + 1]`."""
    return pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    )


def null_flags(values: pa.Array) -> npt.NDArray[np.bool_]:
    """Null flags of a column's entries."""
    if values.null_count == 0:
        return np.zeros(len(values), np.bool_)
    validity = np.frombuffer(values.buffers()[0], np.uint8)
    present = np.unpackbits(validity, bitorder="little")[values.offset : values.offset + len(values)]
    return np.equal(present, 0)
