"""One page from the files of benchmarks and of `mix`. Needs matplotlib (the extra `report`)."""
