"""What `kubectl gpushare` concludes from what it reads. Pure; the workload's `compare` judges by them, too."""
