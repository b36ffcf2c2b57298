"""Namespaces as our parts keep them: there may be many, each with 256 kB of annotations. Pure."""

from gpushare.kube.resources import Object

_READ = ("name", "uid", "resourceVersion", "deletionTimestamp", "labels")


def kept_namespace(namespace: Object) -> Object:
    """Its name and labels, and whether it is being deleted."""
    return {"metadata": {key: namespace["metadata"][key] for key in _READ if key in namespace["metadata"]}}
