"""The kubelet's gRPC interfaces, generated from its own definitions; `python -m gpushare.agent.proto.generate` renews
them.
"""
