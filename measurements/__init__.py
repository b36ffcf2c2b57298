"""What is measured of gpushare, and how. A package: among a machine's own there may be another of this name."""
