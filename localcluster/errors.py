"""The one exception that `python3 -m localcluster` turns into a line on stderr and exit code 1."""


class LocalClusterError(Exception):
    """An error that the user can solve. The text says what is wrong, where, and what to do."""
