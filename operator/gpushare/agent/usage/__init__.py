"""Granted against observed: who uses each shared GPU, what exceeds its grant, and what is done about it."""
