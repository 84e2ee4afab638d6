"""Compiled programs as bytes."""

from __future__ import annotations

from typing import Any

import jax


def dump_program(compiled: Any) -> bytes:
    """A compiled program as bytes."""
    from jax.experimental import serialize_executable

    content: bytes = serialize_executable.serialize(compiled)[0]
    return content


def load_program(content: bytes, lowered: Any, device: Any) -> Any:
    """Load a compiled program: that of a function which has been lowered."""
    from jax.experimental import serialize_executable

    given = jax.tree.structure(lowered.args_info)
    return serialize_executable.deserialize_and_load(
        content, given, lowered.out_tree, backend=device.client, execution_devices=[device]
    )
