"""Blocking calls with a time limit, and periodic loops."""
