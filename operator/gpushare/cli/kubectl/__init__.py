"""`kubectl gpushare`: what shares, GPUs and their users look like from outside. It reads, and changes nothing."""
