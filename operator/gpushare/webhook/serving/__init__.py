"""The admission webhook as a server: reads reviews within bounds, gathers their data, answers them over TLS."""
