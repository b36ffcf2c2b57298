"""gRPC over unix sockets: grpclib, and what it leaves open for peers that vanish, hang or send too much."""
