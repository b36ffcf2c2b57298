"""Suites of what ends, fails or changes while clients run."""
