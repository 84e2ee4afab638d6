"""What a store is: tables of rows that survive a crash, whatever they are kept in.

`contract.py` says what a backend has to do; the rest is what all backends share. Backends and
`storage` import it; it knows none of them.
"""
