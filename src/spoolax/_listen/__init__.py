"""What a listener asks for: its options, what they select, windows, and programs compiled once.

`spool`, `tap` and `watch` have it in common, and loggers and fits pass it on. Here is also how
calls of several devices are put together (`gathering`, `in_pieces`).
"""
