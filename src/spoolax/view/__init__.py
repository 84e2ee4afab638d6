"""The page: a local server that shows runs in a browser, live.

`server.py` has the addresses that the page asks for, `guard.py` who may ask, `catalog.py` which
runs there are, and `page/` what the browser gets. Nothing here writes to a run.
"""
