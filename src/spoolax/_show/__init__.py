"""How things are shown to people: numbers, durations and small curves, as text and as HTML."""
