"""The driver of simulations: steps run on the device, ahead of the host, which serves the loggers.

`simulate.py` is what users call, `programs.py` what is compiled, `dispatch.py` how it is run,
`agreement.py` how several processes stop together, `taking.py` what loggers take out of states
while it runs, and `step_logs.py` what becomes of `log` calls in a step.
"""
