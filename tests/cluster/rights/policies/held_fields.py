"""Which fields of an MPS pod the policy `gpushare-operator-daemonsets` holds, and why it leaves the others free.

Each of HELD has a mutation in test_policies_of_the_operator.py that the policy refuses.
"""

HELD = {
    "PodSpec": {
        "automountServiceAccountToken", "containers", "dnsConfig", "hostAliases", "hostIPC", "hostNetwork",
        "imagePullSecrets", "initContainers", "nodeName", "priorityClassName", "resourceClaims", "runtimeClassName",
        "schedulerName", "securityContext", "serviceAccountName", "shareProcessNamespace", "volumes",
    },
    "PodSecurityContext": {
        "appArmorProfile", "fsGroup", "seLinuxOptions", "seccompProfile", "sysctls", "windowsOptions",
    },
    "Container": {
        "args", "command", "env", "envFrom", "image", "lifecycle", "livenessProbe", "name", "ports", "readinessProbe",
        "resources", "securityContext", "startupProbe", "stdin", "terminationMessagePath", "tty", "volumeDevices",
        "volumeMounts", "workingDir",
    },
    "SecurityContext": {
        "allowPrivilegeEscalation", "appArmorProfile", "capabilities", "privileged", "procMount",
        "readOnlyRootFilesystem", "seLinuxOptions", "seccompProfile", "windowsOptions",
    },
    "VolumeMount": {"mountPath", "mountPropagation", "name", "subPath", "subPathExpr"},
    "ResourceRequirements": {"claims", "limits", "requests"},
}  # fmt: skip

_ROOT = "it is root of its container already, without capabilities of the node"
_PLACE = "the operator labels Nodes for shares, so it chooses nodes anyway"
_END = "the operator may delete MPS pods, so it may end them in every other way too"
_LESS = "it takes something away"
FREE = {
    "PodSpec": {
        "activeDeadlineSeconds": _END,
        "affinity": _PLACE,
        "dnsPolicy": "an MPS pod resolves no names",
        "enableServiceLinks": "nothing reads the variables of Services",
        "ephemeralContainers": "the API refuses them in a template",
        "evictionResponders": _END,
        "hostPID": "an MPS pod has it",
        "hostUsers": _LESS,
        "hostname": "nobody asks for it",
        "hostnameOverride": "nobody asks for it",
        "nodeSelector": _PLACE,
        "os": "the kubelet refuses another one than its own",
        "overhead": "it comes with a RuntimeClass",
        "preemptionPolicy": _PLACE,
        "priority": "the API server computes it of the class",
        "readinessGates": _LESS,
        "resources": "amounts, as of the containers",
        "restartPolicy": "the API lets a DaemonSet have one alone",
        "schedulingGates": _LESS,
        "schedulingGroup": _PLACE,
        "serviceAccount": "the API server keeps it equal to serviceAccountName",
        "setHostnameAsFQDN": "nobody asks for it",
        "subdomain": "nobody asks for it",
        "terminationGracePeriodSeconds": _END,
        "tolerations": _PLACE,
        "topologySpreadConstraints": _PLACE,
        "workloadRef": _PLACE,
    },
    "PodSecurityContext": {
        "fsGroupChangePolicy": "there is no fsGroup",
        "runAsGroup": _ROOT,
        "runAsNonRoot": _LESS,
        "runAsUser": _ROOT,
        "seLinuxChangePolicy": "no volume is relabelled: one is a hostPath, one an emptyDir",
        "supplementalGroups": _ROOT,
        "supplementalGroupsPolicy": _ROOT,
    },
    "Container": {
        "imagePullPolicy": "the image is the chart's either way",
        "resizePolicy": _END,
        "restartPolicy": _END,
        "restartPolicyRules": _END,
        "stdinOnce": "there is no stdin",
        "terminationMessagePolicy": "a part of its own log",
    },
    "SecurityContext": {"runAsGroup": _ROOT, "runAsNonRoot": _LESS, "runAsUser": _ROOT},
    "VolumeMount": {"bindMountOptions": _LESS, "readOnly": _LESS, "recursiveReadOnly": _LESS},
    "ResourceRequirements": {},
}
