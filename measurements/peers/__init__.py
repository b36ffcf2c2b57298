"""gpushare beside other ways to share a GPU: the same pods and the same tests, in turns, on one cluster."""
