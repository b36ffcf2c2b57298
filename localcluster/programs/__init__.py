"""Kubernetes, containerd, Helm and the other programs, built from pinned Go sources and cached.

Each directory here with a go.mod is one component.
"""
