"""What a listener asks for: its options, what they select, windows, and programs compiled once.

`spool`, `tap` and `watch` have it in common, and loggers and fits pass it on.
"""
