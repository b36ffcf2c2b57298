"""One page from the files of benchmarks, of `mix` and of `overlap`. Needs matplotlib (the extra `report`)."""
