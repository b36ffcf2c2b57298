"""What keeps clients of one GPU apart, and what does not: limits, hogs, faults, departures."""
