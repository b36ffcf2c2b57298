"""Jacobi's method on a 2-D Poisson problem, split over processes that exchange edge rows."""
