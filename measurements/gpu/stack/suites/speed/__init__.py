"""Suites of how fast a share and its clients are."""
