"""A package: among a machine's own there may be another of this name, which Python prefers to a mere folder."""
