"""What was logged, as the user gets it: `LogDict`, its series, tables, text and HTML.

It knows nothing of how entries are collected. Everything from `_log` on may import it.
"""
