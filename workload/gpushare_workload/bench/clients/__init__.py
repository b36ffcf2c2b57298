"""The processes that a benchmark measures, and the parent's side of them."""
