"""Places on a GPU that has fewer of them than slots: who has one, who waits, and who is next."""
