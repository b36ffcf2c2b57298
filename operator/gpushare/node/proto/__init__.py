"""The kubelet's gRPC interfaces, generated from its own definitions; `python -m gpushare.node.proto.generate` renews them."""
