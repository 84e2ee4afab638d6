"""The driver of simulations: steps run on the device, ahead of the host, which serves the loggers.

`simulate.py` is what users call, `dispatch.py` what is compiled and how it is run, and
`step_logs.py` what becomes of `log` calls in a step.
"""
