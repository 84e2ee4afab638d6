"""The structure of pytrees as JSON, without the classes they were made of.

A node has a kind ("dict", "tuple", "list", or the name of a class with fields) and children by
name; a leaf has the name of a column. Nothing in it can run code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

Json = dict[str, Any]
MAX_DEPTH = 64


def encode_name(name: str) -> str:
    """A name that can be part of the path of a column."""
    safe = quote(name, safe=" !#$&'()*+,:;<=>?@[]^_`{|}~-.", errors="surrogatepass")
    return safe.replace(".", "%2E") if set(safe) == {"."} else safe or "%"


def leaf_names(node: Json) -> Iterator[str]:
    """The names of the leaves of a structure."""
    if "leaf" in node:
        yield node["leaf"]
    for _, child in node.get("children", ()):
        yield from leaf_names(child)
