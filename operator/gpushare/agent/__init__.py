"""The node agent: `run` starts it, `agent` lists its loops, `state` owns its state, `tick` decides and applies."""
