"""A node with an agent, as the agent's own tests have it."""

from tests.unit.agent.conftest import node, nvml

__all__ = ("node", "nvml")
