"""Imports point one way, JAX's private parts stay in one folder, and the package is light."""

import ast
import graphlib
import importlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import spoolax
from spoolax import _extras

pytestmark = pytest.mark.once

SOURCE = Path(spoolax.__file__).parent
# A file may import from the folders (and files) above its own, and from its own folder.
ORDER = [
    "errors",
    "_lazy",
    "_extras",
    "_show",
    "_warn",
    "_weak_cache",
    "_threads",
    "_jax",
    "_processes",
    "_packing",
    "_ready",
    "_rows",
    "_logdict",
    "_log",
    "_walk",
    "_listen",
    "_spool",
    "_tap/_reels",
    "_tap",
    "_watch",
    "loggers/_protocol",
    "loggers",
    "loggers/trackers",
    "_simulate",
    "optimizers",
    "storage/_store",
    "storage/hdf5",
    "storage/zarr",
    "storage",
    "_runs",
    "testing",
    "fit/_solver",
    "fit/_data",
    "fit/_model",
    "fit/_program",
    "fit",
    "__init__",
    "view",
    "cli",
    "cli/demos",
    "__main__",
]


def name_of(path):
    return str(path.relative_to(SOURCE).with_suffix(""))


FILES = {name_of(path): path for path in SOURCE.rglob("*.py")}


def room_of(name):
    """The entry of the list that a file belongs to."""
    rooms = [room for room in ORDER if name == room or name.startswith(f"{room}/")]
    assert rooms, f"{name} belongs to no folder in the list"
    return max(rooms, key=len)


def imported(path, nodes):
    """Yield what statements import, as (module, is ours)."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level:
            base = path.parents[node.level - 1]
            module = base / (node.module or "").replace(".", "/")
            for alias in node.names:
                # `from ..folder import file`, or `from .file import name`.
                target = module / alias.name
                target = target if target.with_suffix(".py").exists() or target.is_dir() else module
                yield name_of(target / "__init__.py" if target.is_dir() else target), True
        elif isinstance(node, ast.ImportFrom):
            yield node.module, False
        elif isinstance(node, ast.Import):
            yield from ((alias.name, False) for alias in node.names)


def imports(path):
    """Yield what a file imports when it is loaded."""
    yield from imported(path, ast.parse(path.read_text()).body)


def test_imports_point_up_the_list():
    """From folders above; inside of a folder, there are no cycles."""
    graph = {}
    for name, path in FILES.items():
        for other, ours in imports(path):
            if ours:
                assert ORDER.index(room_of(other)) <= ORDER.index(room_of(name)), (name, other)
                graph.setdefault(name, set()).add(other)
    assert tuple(graphlib.TopologicalSorter(graph).static_order())


def test_every_folder_says_what_it_is_for():
    for folder in {path.parent for path in FILES.values()}:
        tree = ast.parse((folder / "__init__.py").read_text())
        assert ast.get_docstring(tree), folder
        assert len(list(folder.glob("*.py"))) <= 16, (
            f"{folder} has too many files to be seen at once"
        )


def test_one_folder_knows_the_private_parts_of_jax():
    """And only JAX and NumPy are imported at all, besides the standard library."""
    allowed = {"jax", "numpy", *sys.stdlib_module_names}
    for name, path in FILES.items():
        text = path.read_text()
        if room_of(name) != "_jax":
            assert "jax._src" not in text, name
            assert "jax.interpreters" not in text, name
        mine = {"spoolax"} if room_of(name) == "cli/demos" else set()  # As users write programs.
        for other, ours in imports(path):
            assert ours or other.partition(".")[0] in allowed | mine, (name, other)


def test_the_package_is_light():
    """What is optional is not imported before somebody asks for it, nor what few need."""
    absent = ["h5py", "tensorstore", "zarr", "rich", "tqdm", "matplotlib", "pandas", "xarray"]
    absent += [f"spoolax.{name}" for name in ("fit", "loggers", "storage", "testing", "cli")]
    absent += ["jax.extend", "jax._src.pallas", "importlib.metadata"]  # They take long to import.
    code = f"""if True:
        import sys, jax, jax.numpy
        before = set(sys.modules)
        import spoolax
        print([name for name in {absent} if name in sys.modules and name not in before])
        """
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize("package", ["spoolax", "spoolax.loggers", "spoolax.storage"])
def test_lazy_names_are_those_that_type_checkers_see(package):
    module = importlib.import_module(package)
    tree = ast.parse(Path(module.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.asname: "." * node.level + (node.module or "")
        for node in block.body
        for alias in node.names
    }
    (table,) = (node for node in ast.walk(tree) if isinstance(node, ast.Dict))
    lazy = ast.literal_eval(table)
    assert set(lazy) == set(typed)
    for name, where in lazy.items():
        assert where.partition(":")[0] == ("" if typed[name] == "." else typed[name]), name
        assert getattr(module, name) is not None
        assert name in dir(module)
        assert name in module.__all__
    assert not {"TYPE_CHECKING", "lazily"} & set(module.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = module.nonsense


def test_loggers_that_store_are_loggers():
    """They live with storage, and are found where people look for loggers."""
    namespace = {}
    exec("from spoolax.loggers import *", namespace)
    assert namespace["SaveLogger"] is spoolax.storage.SaveLogger
    assert namespace["HDF5StorageWriter"] is spoolax.storage.HDF5StorageWriter


def test_a_missing_package_is_named_with_a_command_that_installs_it(monkeypatch):
    """Whether or not spoolax itself is on an index."""
    (wanted,) = _extras.requirements("console")
    assert wanted.startswith("rich>=")
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setattr(_extras, "_is_installed", lambda requirement: False)
    with pytest.raises(ImportError, match=f'`pip install "{wanted}"`'):
        _extras.load("rich", "ConsoleLogger", "console")
    both = _extras.requirements("wandb")
    with pytest.raises(ImportError, match=" ".join(f'"{one}"' for one in both)):
        _extras.load("no_such_module", "WandbLogger", "wandb")


def test_packages_that_are_there_are_not_asked_for_again(monkeypatch):
    monkeypatch.setattr(_extras, "_is_installed", lambda one: one.startswith("pillow"))
    with pytest.raises(ImportError, match=r'pip install "wandb>=[\d.]+"`'):
        _extras.load("no_such_module", "WandbLogger", "wandb")


def test_from_a_source_tree_the_package_itself_is_named(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    with pytest.raises(ImportError, match='pip install "no_such_module"`'):
        _extras.load("no_such_module.part", "ConsoleLogger", "console")


def test_the_old_name_is_gone():
    """PyPI has another package of that name. Only the changelog speaks of it."""
    old = "chip" + "log"
    root = Path(__file__).parent.parent
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
    )
    files = [root / name for name in listed.stdout.decode().split("\0") if name]
    assert len(files) > 100
    for path in files:
        if path.name != "CHANGELOG.md" and path.exists():
            assert old not in str(path.relative_to(root)).lower()
            assert old.encode() not in path.read_bytes().lower(), path
