"""The attach broker: the one socket of an MPS daemon that client containers reach."""
