"""HTTP as every part serves it, on aiohttp: one way to listen, to limit and to end, and the probes."""
