"""What browsers get, and the server on this machine."""
