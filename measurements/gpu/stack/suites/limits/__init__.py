"""Suites of what a container may use, and of what it may not."""
