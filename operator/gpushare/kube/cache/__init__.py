"""What is kept of the objects of a kind: stores, and the reflectors that fill them, as in client-go's tools/cache."""
