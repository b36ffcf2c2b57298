"""What each share is told: which of its GPUs it has, which it does not and why, and its conditions."""
