"""`python -m spoolax` is the command `spoolax`."""

from .cli.app import main

if __name__ == "__main__":
    main()
