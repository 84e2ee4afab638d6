"""What programs hand over: rows of reels, filled on devices and taken apart on the host.

The rest of `_tap` imports it; it knows nothing of runs and sinks.
"""
