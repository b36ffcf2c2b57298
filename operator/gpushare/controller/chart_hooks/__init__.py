"""What the chart's Helm hooks run: the smoke test of `helm test`, and the deletion of shares at an uninstallation."""
