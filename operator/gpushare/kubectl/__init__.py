"""`kubectl gpushare`: shows shares, GPUs and their clients. It changes nothing, but for `trial`."""
