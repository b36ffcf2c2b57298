"""Pods as the API shows them: what several parts read off the same fields."""

ENDED_PHASES = ("Succeeded", "Failed")
"""A pod of such a phase has no running container and never will again."""
