"""One cluster on this machine: its configuration, its network, its processes, and how it is started and ended."""
