"""How the page reads the cluster: the objects it follows, the agents it asks, the threads that do so."""
