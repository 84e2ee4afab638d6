"""Small JAX programs to look at, as anybody would write them, inside of `spoolax.run`."""
