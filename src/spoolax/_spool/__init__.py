"""`spool`: collect what a function logs, and return it with the output. Fits may import it."""
