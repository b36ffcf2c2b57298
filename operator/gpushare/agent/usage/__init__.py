"""Granted against observed: who uses each GPU, what exceeds its grant, and what follows."""
