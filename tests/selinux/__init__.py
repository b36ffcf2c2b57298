"""The rules of an SELinux policy, tried in a kernel: see docs/node-images.md."""
