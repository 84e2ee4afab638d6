"""The command `spoolax`: one file a command, which parses, calls the public API, and prints.

Nothing that takes long to import is imported before a command needs it; JAX, only where something
is computed.
"""
