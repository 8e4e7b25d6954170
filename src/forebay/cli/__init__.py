"""The command line: one file per command, plain functions; `main.py` declares the options.

Enters: arguments. Leaves: exit codes (0 done, 1 failed, 2 invalid configuration or usage, 3 cannot listen)
and words for people on standard output, faults on standard error.
"""
