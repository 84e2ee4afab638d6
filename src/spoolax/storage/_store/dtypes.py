"""How numbers are stored: as types that NumPy and all file formats know, or else as their bits.

bfloat16, 8-bit floats and 4-bit integers are stored as unsigned integers with the same bits, and
keys of `jax.random` as the words they consist of. The name of the type is stored beside them.
Only keys need JAX, which is not imported before: reading numbers should not have to wait for it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ...errors import StorageError


class ColumnType(NamedTuple):
    """The type of a column, and how it is stored."""

    dtype: str  # Its name.
    shape: tuple[int, ...]  # Of a row.
    key: str  # The implementation, if the column holds keys.
    stored: np.dtype[Any]  # The type of the numbers in the store.

    @property
    def nbytes(self) -> int:
        """How many bytes a row has."""
        return math.prod(self.shape) * self.stored.itemsize


def column_type(dtype: str, shape: tuple[int, ...], key: str) -> ColumnType:
    """The type of a column, given its parts."""
    return ColumnType(dtype, shape, key, _stored(dtype_named(dtype)))


def column_type_of(row: Any, name: str = "") -> ColumnType:
    """The type of a column whose rows are like this array (or type of an array)."""
    import jax

    from ..._jax.arrays import is_key, key_impl

    dtype, shape = row.dtype, tuple(row.shape)
    if is_key(row):
        words = jax.eval_shape(jax.random.key_data, row)
        return ColumnType("uint32", words.shape, key_impl(dtype), np.dtype(np.uint32))
    dtype = np.dtype(dtype).newbyteorder("=")
    if dtype.kind not in "biufcV" or not _has_name(dtype):
        what = f"{name!r} is of type {dtype.name}, which" if name else f"Arrays of {dtype.name}"
        raise StorageError(
            f"{what} cannot be stored: only numbers can. Leave it out of the view, or put it into "
            "`attributes`."
        )
    return ColumnType(dtype.name, shape, "", _stored(dtype))


def dtype_named(name: str) -> np.dtype[Any]:
    """The dtype with a name."""
    if name in _NATIVE:
        return np.dtype(name)
    import ml_dtypes  # The types that JAX has, and NumPy has not.

    scalar = getattr(ml_dtypes, name, None)
    if not (isinstance(scalar, type) and issubclass(scalar, np.generic)):
        raise StorageError(f"The file has numbers of an unknown type: {name!r}.")
    return np.dtype(scalar)


def to_stored(array: Any, column: ColumnType) -> np.ndarray[Any, Any]:
    """An array as it is stored."""
    numbers: np.ndarray[Any, Any] = np.asarray(array)
    numbers = np.ascontiguousarray(numbers, numbers.dtype.newbyteorder("="))
    assert numbers.dtype == dtype_named(column.dtype), (numbers.dtype, column)
    return numbers if numbers.dtype == column.stored else numbers.view(column.stored)


def from_stored(array: Any, column: ColumnType) -> Any:
    """The array of numbers that were stored."""
    if column.key:
        import jax

        return jax.random.wrap_key_data(np.asarray(array), impl=column.key)
    dtype, array = dtype_named(column.dtype), np.asarray(array)
    if array.dtype == dtype:
        return array
    if array.dtype.itemsize != dtype.itemsize:
        raise StorageError(f"The file has numbers that cannot be {column.dtype}.")
    return array.view(dtype)


def _has_name(dtype: np.dtype[Any]) -> bool:
    """Whether its name leads back to it."""
    try:
        return dtype_named(dtype.name) == dtype
    except StorageError:
        return False


def _stored(dtype: np.dtype[Any]) -> np.dtype[Any]:
    native = dtype.kind in "biufc" and dtype.name in _NATIVE
    return dtype if native else np.dtype(f"u{dtype.itemsize}")


_NATIVE = {
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *(f"float{bits}" for bits in (16, 32, 64)),
    *(f"complex{bits}" for bits in (64, 128)),
}
