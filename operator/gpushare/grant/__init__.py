"""Grants: what one client container may use of one GPU. Pure: no I/O, no clock; the same for every delivery."""
