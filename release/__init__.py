"""Makes a release: `make release` (docs/releasing.md)."""
