"""The Kubernetes API of gpushare: names, models, reasons, quantities. Knows no I/O; everything may import it."""
