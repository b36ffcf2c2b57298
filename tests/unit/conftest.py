"""Properties are judged by what holds, not by how long an example takes: that says more of the machine's other work."""

from hypothesis import settings

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
