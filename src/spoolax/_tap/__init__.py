"""`tap`: stream what a function logs, while it runs.

The device side fills reels and hands them to the host; the host side puts them in order and calls
sinks on a thread of its own, and knows nothing of tracing. `_watch`, loggers and fits may import
both.
"""
