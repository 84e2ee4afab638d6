"""How numbers are stored: as HDF5 knows them, or else as their bits.

HDF5 has no bfloat16, no 8-bit floats and no 4-bit integers; those are stored as unsigned integers
of the same bits, and an attribute says what they are. Keys of `jax.random` are stored as their
words.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._jax.arrays import is_key, key_impl
from ..errors import StorageError

DTYPE = "spoolax_dtype"  # The attribute of a dataset whose numbers are not what they look like.
KEY = "spoolax_key"  # That of a dataset of keys: the implementation.


class Stored(NamedTuple):
    """What a leaf is, and how it is stored."""

    dtype: np.dtype[Any]  # In the file.
    shape: tuple[int, ...]
    real: str  # The name of its own type.
    key: str  # The implementation, if it is a key.


def stored_as(leaf: Any) -> Stored:
    """Say how an array is stored, given it or its type."""
    dtype, shape = leaf.dtype, tuple(leaf.shape)
    if is_key(leaf):
        data = jax.eval_shape(jax.random.key_data, leaf)
        return Stored(np.dtype(np.uint32), data.shape, "uint32", key_impl(dtype))
    dtype = np.dtype(dtype)
    if dtype.kind not in "biufcV" or not _is_known(dtype):
        raise StorageError(
            f"Arrays of {dtype.name} cannot be stored: only numbers can. Leave them out of the "
            "view, or put them into `attributes`."
        )
    return Stored(_in_file(dtype), shape, dtype.name, "")


def _is_known(dtype: np.dtype[Any]) -> bool:
    """Whether there is a way back from its name."""
    try:
        return dtype_of(dtype.name) == dtype.newbyteorder("=")
    except StorageError:
        return False


def stored_of(real: str, shape: tuple[int, ...], key: str) -> Stored:
    """Say how it is stored, given what the file says that it is."""
    return Stored(_in_file(dtype_of(real)), shape, real, key)


def _in_file(dtype: np.dtype[Any]) -> np.dtype[Any]:
    native = dtype.kind in "biufc" and dtype.name in _NATIVE
    return dtype if native else np.dtype(f"u{dtype.itemsize}")


_NATIVE = {
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *(f"float{bits}" for bits in (16, 32, 64)),
    *(f"complex{bits}" for bits in (64, 128)),
}


def to_file(array: np.ndarray[Any, Any], stored: Stored) -> np.ndarray[Any, Any]:
    """The numbers of an array as they go into the file."""
    array = np.ascontiguousarray(array)
    return array if array.dtype == stored.dtype else array.view(stored.dtype)


def dtype_of(real: str) -> np.dtype[Any]:
    """The type with a name."""
    try:
        return np.dtype(real) if real in _NATIVE else jnp.dtype(real)
    except TypeError as error:
        raise StorageError(
            f"The file has numbers of a type that is not known: {real!r}."
        ) from error


def from_file(array: Any, real: str, key: str) -> Any:
    """The array of numbers that come out of a file."""
    if key:
        return jax.random.wrap_key_data(np.asarray(array), impl=key)
    dtype, array = dtype_of(real), np.asarray(array)
    if array.dtype == dtype:
        return array
    if array.dtype.itemsize != dtype.itemsize:
        raise StorageError(f"The file has numbers that are no {real}.")
    return array.view(dtype)
