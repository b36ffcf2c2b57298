"""Kubernetes, containerd, Helm and the other programs, built from pinned Go sources and cached.

Each directory here with a go.mod is one component. Kubernetes has a go1.x.mod besides for each further release.
"""
