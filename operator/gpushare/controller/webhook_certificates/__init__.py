"""The TLS certificates of our webhooks, where cert-manager does not make them."""
