"""Granted against observed: who uses each shared GPU, and what exceeds its grant."""
