"""Random programs: one little language, run by JAX with spoolax and by plain Python without it.

`grammar` says what programs and options there are, `with_jax` and `with_python` run a program,
`expected` says what options make of entries, and `observed` reads what spoolax returned.
"""
