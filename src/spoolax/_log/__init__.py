"""What a `log` call leaves in a program: a primitive with all its rules, and its entries.

The walker and the listeners give it a meaning. Everything from `_walk` on may import it.
"""
