"""Pages of memory that clients with a class share with their broker (native/pages.h)."""
