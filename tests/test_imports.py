"""Imports point one way, and private parts of JAX stay in one file."""

import ast
from pathlib import Path

import chiplog

SOURCE = Path(chiplog.__file__).parent
# A file may import those before it.
ORDER = [
    "errors",
    "_jax_compat",
    "_reduce",
    "_tables",
    "_show",
    "_series",
    "_logdict",
    "_entry",
    "_log",
    "_log_grad",
    "_interpret",
    "_control_rules",
    "_call_rules",
    "_guard",
    "_buffer",
    "_plan",
    "_fold",
    "_assemble",
    "_program",
    "_spool",
    "_host",
    "_reel",
    "_windows",
    "_deliver",
    "_stream",
    "_tap",
    "_outline",
    "_nan",
    "_watch",
    "__init__",
]


def imports(path):
    """Yield what a file imports when it is loaded, as (module, is ours)."""
    tree = ast.parse(path.read_text())
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level:
            for name in [node.module] if node.module else [a.name for a in node.names]:
                yield name.split(".")[0], True
        elif isinstance(node, ast.ImportFrom):
            yield f"{node.module}.{node.names[0].name}", False
        elif isinstance(node, ast.Import):
            yield from ((alias.name, False) for alias in node.names)


def test_imports_point_down_the_list():
    """Every file is in the list, and imports only from before it."""
    assert {path.stem for path in SOURCE.glob("*.py")} == set(ORDER)
    for path in SOURCE.glob("*.py"):
        for name, ours in imports(path):
            if ours:
                assert ORDER.index(name) < ORDER.index(path.stem), (path.name, name)


def test_only_one_file_knows_the_private_parts_of_jax():
    """And only JAX and NumPy are imported at all."""
    for path in SOURCE.glob("*.py"):
        text = path.read_text()
        if path.stem != "_jax_compat":
            assert "jax._src" not in text, path.name
            assert "jax.interpreters" not in text, path.name
        for name, ours in imports(path):
            allowed = ("jax", "numpy", "__future__", "collections", "typing")
            assert (
                ours or name.split(".")[0] in allowed or "." not in name or name.startswith(allowed)
            ), (path.name, name)
