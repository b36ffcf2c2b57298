"""Ending CUDA clients in order: of departing pods, after `maxWait`, and those that a fault left behind."""
