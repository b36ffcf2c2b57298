"""What a command prints: tables and lines for people, JSON, YAML and names for programs."""
