"""Suites of two GPUs of one host."""
