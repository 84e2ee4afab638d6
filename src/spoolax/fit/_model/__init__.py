"""What is fitted: the user's model and its parameters, and the problem they make with data.

It knows nothing about compiling and running. Only `spoolax.fit` imports it.
"""
