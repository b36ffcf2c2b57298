"""A private MPS daemon for the time in which a benchmark measures MPS."""
