"""The Kubernetes API as plain dicts: requests with time limits, server-side apply, list-and-watch, a Lease."""
