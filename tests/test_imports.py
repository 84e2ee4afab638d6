"""Imports point one way, and private parts of JAX stay in one file."""

import ast
import subprocess
import sys
from pathlib import Path

import chiplog

SOURCE = Path(chiplog.__file__).parent
# A file may import those before it.
ORDER = [
    "errors",
    "_extras",
    "_per_function",
    "_jax_compat",
    "_reduce",
    "_tables",
    "_show",
    "_series",
    "_logdict",
    "_around",
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
    "loggers/_frequency",
    "loggers/_runs",
    "loggers/_entries",
    "loggers/_lifecycle",
    "loggers/_listening",
    "loggers/_logger",
    "loggers/_every",
    "loggers/_record",
    "loggers/_view",
    "loggers/_writing",
    "loggers/_null",
    "loggers/_composite",
    "loggers/_section",
    "loggers/_paths",
    "loggers/_json",
    "loggers/_history",
    "loggers/_check",
    "loggers/_bar",
    "loggers/_print",
    "loggers/_console",
    "loggers/_jsonl",
    "loggers/_ring",
    "loggers/_python",
    "loggers/_plot",
    "loggers/_profile",
    "loggers/_webhook",
    "loggers/_rows",
    "loggers/_config",
    "loggers/_spill",
    "loggers/_channel",
    "loggers/_names",
    "loggers/_words",
    "loggers/_outbox",
    "loggers/_tracker",
    "loggers/_wandb",
    "loggers/_tensorboard",
    "loggers/_mlflow",
    "loggers/_trackio",
    "loggers/_replay",
    "loggers/_tqdm",
    "loggers/_progress",
    "loggers/_iteration",
    "loggers/__init__",
    "_simulate",
    "testing",
    "storage/_tree",
    "storage/_dtypes",
    "storage/_h5py",
    "storage/_superblock",
    "storage/_file",
    "storage/_schema",
    "storage/_column",
    "storage/_table",
    "storage/_lock",
    "storage/_meta",
    "storage/_careful",
    "storage/_group",
    "storage/_reader",
    "storage/_heal",
    "storage/_book",
    "storage/_store",
    "storage/_h5md",
    "storage/_writer",
    "storage/_logs",
    "storage/_save",
    "storage/__init__",
    "fit/_triangular",
    "fit/_trust",
    "fit/_bounds",
    "fit/_loss",
    "fit/_descent",
    "fit/_solve",
    "fit/_problem",
    "fit/_parameters",
    "fit/_identity",
    "fit/_model",
    "fit/_pointwise",
    "fit/_cache",
    "fit/_verbose",
    "fit/_listen",
    "fit/_program",
    "fit/_data",
    "fit/_arguments",
    "fit/_mesh",
    "fit/_blocks",
    "fit/_streamed",
    "fit/_result",
    "fit/_curve_fit",
    "fit/_least_squares",
    "fit/_lanes",
    "fit/_batch",
    "fit/_expression",
    "fit/_file",
    "fit/__init__",
    "__init__",
]


def name_of(path):
    return str(path.relative_to(SOURCE).with_suffix(""))


def imports(path):
    """Yield what a file imports when it is loaded, as (module, is ours)."""
    tree = ast.parse(path.read_text())
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level:
            base = path.parents[node.level - 1]
            for name in [node.module] if node.module else [a.name for a in node.names]:
                target = base / name.replace(".", "/")
                yield name_of(target / "__init__.py" if target.is_dir() else target), True
        elif isinstance(node, ast.ImportFrom):
            yield node.module, False
        elif isinstance(node, ast.Import):
            yield from ((alias.name, False) for alias in node.names)


def test_imports_point_down_the_list():
    """Every file is in the list, and imports only from before it."""
    files = {name_of(path): path for path in SOURCE.rglob("*.py")}
    assert set(files) == set(ORDER)
    for name, path in files.items():
        for other, ours in imports(path):
            if ours:
                assert ORDER.index(other) < ORDER.index(name), (name, other)


def test_only_one_file_knows_the_private_parts_of_jax():
    """And only JAX and NumPy are imported at all, besides the standard library."""
    allowed = {"jax", "numpy", *sys.stdlib_module_names}
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        if path.stem != "_jax_compat":
            assert "jax._src" not in text, path.name
            assert "jax.interpreters" not in text, path.name
        for name, ours in imports(path):
            assert ours or name.partition(".")[0] in allowed, (path.name, name)


def test_the_package_is_light():
    """What is optional is not imported before somebody asks for it."""
    optional = ["h5py", "rich", "tqdm", "matplotlib", "pandas", "xarray"]
    code = f"import sys, chiplog; print([m for m in {optional} if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
