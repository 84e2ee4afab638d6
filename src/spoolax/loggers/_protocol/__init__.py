"""What all loggers share: the protocol, its life cycle, runs, steps, frequencies, records, views.

Loggers and storage import it; it imports none of them.
"""
