"""The only jaxpr walker: it evaluates a program anew, and hands what it logs to a `Meaning`.

`spool`, `tap` and `watch` are meanings. `_listen` and they may import it.
"""
