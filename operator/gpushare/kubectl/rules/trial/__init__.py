"""Does sharing help a given program? What to run, when to stop, what the figures say, and which share to apply.

Pure: `gpushare-workload compare` runs the program on a bare machine, `kubectl gpushare trial` in a cluster. Both ask
here.
"""
