"""What spoolax costs, next to what a user would write instead. Run with `make bench`."""
