"""The one exception that `python3 -m localcluster` turns into a line on stderr and exit code 1."""


class LocalClusterError(Exception):
    """Something the user can act on; the text says what is wrong, where, and what to do."""
