"""Blocking calls with a time limit, and the loops that the agent runs."""
