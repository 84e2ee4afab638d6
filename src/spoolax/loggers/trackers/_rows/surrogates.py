"""Text that can be encoded: surrogates, which Python allows and UTF-8 does not, are escaped."""

from __future__ import annotations


def escape_surrogates(text: str) -> str:
    r"""Return the text with its surrogates spelled out, as in `\ud800`."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
