"""`kubectl gpushare`: shows shares, GPUs and their clients. Only `trial` makes anything: Jobs, which it deletes."""
