"""A real, single-node Kubernetes built from source, for tests and the demo: `python3 -m localcluster --help`.

Guarantees: everything runs in private mount, network, PID, UTS and IPC namespaces and ends with their pid 1; what a
cluster has on the machine while it is up is one veth, two routes, one cgroup and one state directory, and `down`
removes them. Builds are verified against go.sum and cached outside of the work tree. Only the standard library is
imported, because this runs before any virtual environment exists.

Not offered: cluster DNS (reach Services by address), more than one node, LoadBalancer Services, persistent volumes,
anything but Linux, and isolation from a hostile workload (privileged pods are root on the machine).
"""
