"""What the history of a share says about its spec: which changes it supports, with which figures, and how surely.

Pure: `kubectl gpushare recommend` reads the history, from Prometheus or by a short watch, and prints what is said here.
"""
