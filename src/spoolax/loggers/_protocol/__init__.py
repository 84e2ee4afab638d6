"""What a logger is, and what every logger can do because of it.

Loggers and storage import it; it knows none of them.
"""
