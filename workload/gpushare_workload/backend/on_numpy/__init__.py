"""The backend on the CPU, or as a client of the simulated GPU. `backend` is the entry, `tasks` holds the work."""
