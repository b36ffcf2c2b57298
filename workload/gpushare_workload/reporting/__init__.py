"""One page from the files that benchmarks and `mix` leave behind. Needs matplotlib (the extra `report`)."""
