"""A real, single-node Kubernetes built from source, for tests and the demo: `python3 -m localcluster --help`.

Guarantees: everything runs in private mount, network, PID, UTS and IPC namespaces and ends with their pid 1. Outside of
them a running cluster has one veth, two routes, one cgroup and one state directory, and `down` removes them. Builds are
verified against go.sum and cached outside of the work tree. Except for the demo only the standard library is imported,
because this runs before there is a virtual environment.

Not offered: cluster DNS (reach Services by address), more than one node, LoadBalancer Services, persistent volumes,
anything but Linux, and isolation from a hostile workload (privileged pods are root on the machine).
"""
