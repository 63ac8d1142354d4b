"""Values of both charts by which they fit other people's clusters."""

from __future__ import annotations

UID = 1000660000  # as OpenShift gives them
TEAM = {"example.com/team": "quotas"}
FITTED: dict[str, object] = {
    "commonLabels": TEAM,
    "podLabels": {"example.com/mesh": "off"},
    "podAnnotations": {"example.com/scan": "off"},
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "example.com/quotas", "operator": "Exists"}],
    "affinity": {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 1,
                    "podAffinityTerm": {
                        "topologyKey": "kubernetes.io/hostname",
                        "labelSelector": {"matchLabels": TEAM},
                    },
                }
            ]
        }
    },
    "priorityClassName": "system-node-critical",
    "dnsPolicy": "Default",
    "securityContext": {"privileged": False},
    "podSecurityContext": {"runAsUser": UID, "runAsGroup": 0, "fsGroup": UID},
    "healthPort": 10251,
    "livenessProbe": {"initialDelaySeconds": 1, "failureThreshold": 30},
    "readinessProbe": {"successThreshold": 2},
    "updateStrategy": {"rollingUpdate": {"maxSurge": 2, "maxUnavailable": 0}},
    "extraArgs": ["--log-level=info"],
    "extraEnv": [{"name": "SCRATCH", "value": "/scratch"}],
    "extraObjects": [
        "apiVersion: v1\nkind: ConfigMap\n"
        "metadata: {name: '{{ .Chart.Name }}-extra', namespace: '{{ .Release.Namespace }}'}"
    ],
    "extraVolumes": [{"name": "scratch", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    "serviceIPFamilyPolicy": "SingleStack",
    "serviceIPFamilies": ["IPv4"],
    "networkPolicy": {"enabled": True},
    "startCheck": {"timeoutSeconds": 200},
    "jobs": {"resources": {"limits": {"cpu": "1"}}},
    "flowControl": {"nominalConcurrencyShares": 20},
}
"""What other people's clusters ask for, all at once."""
