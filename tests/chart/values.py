"""Values to render the charts with: each switch at least once, and all of them."""

from __future__ import annotations

MONITORED: dict[str, object] = {
    "metrics": {
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "podMonitor": {"enabled": True},
    },
    "networkPolicy": {"enabled": True, "egressPorts": [443, 6443, 30443], "metricsFrom": [{"namespaceSelector": {}}]},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "grafanaDashboard": {"enabled": True, "labels": {"grafana_dashboard": "quotas"}},
}

PLACED: dict[str, object] = {
    "image": {"repository": "registry.example.com/seedquota", "digest": f"sha256:{'0' * 64}", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "registry"}],
    "replicas": 3,
    "log": {"level": "debug", "format": "text"},
    "priorityClassName": "",
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
    ],
    "podAnnotations": {"example.com/a": "b"},
    "podLabels": {"example.com/c": "d"},
    "extraEnv": [{"name": "AWS_REGION", "value": "eu-central-1"}],
    "extraEnvFrom": [{"secretRef": {"name": "clouds"}}],
    "serviceAccount": {"name": "agent", "annotations": {"example.com/role": "reader"}},
    "resources": {"requests": {"cpu": "1"}},
}

ALONE: dict[str, object] = {
    "replicas": 1,
    "crds": {"install": False},
    "rbac": {"create": False},
    "serviceAccount": {"create": False, "name": "mine"},
    "podDisruptionBudget": {"enabled": False},
    "flowControl": {"enabled": False},
}

FITTED: dict[str, object] = {
    "commonLabels": {"example.com/team": "quotas"},
    "podLabels": {"example.com/mesh": "off"},
    "podSecurityContext": {"runAsUser": 1000660000, "runAsGroup": 0, "fsGroup": 1000660000},
    "securityContext": {"privileged": False},
    "healthPort": 10251,
    "livenessProbe": {"initialDelaySeconds": 5, "failureThreshold": 30},
    "readinessProbe": {"periodSeconds": 3, "successThreshold": 2},
    "updateStrategy": {"rollingUpdate": {"maxSurge": "50%", "maxUnavailable": 1}},
    "extraArgs": ["--log-level=warning"],
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy.example.com:3128"}],
    "extraVolumes": [{"name": "scratch", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    "extraObjects": [
        "apiVersion: v1\nkind: ConfigMap\n"
        "metadata: {name: '{{ .Chart.Name }}-a', namespace: '{{ .Release.Namespace }}'}",
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "{{ .Chart.Name }}-b", "namespace": "{{ .Release.Namespace }}"},
        },
    ],
    "serviceIPFamilyPolicy": "SingleStack",
    "serviceIPFamilies": ["IPv4"],
    "metrics": {
        "serviceMonitor": {
            "enabled": True,
            "interval": "30s",
            "relabelings": [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}],
            "metricRelabelings": [{"regex": "pod", "action": "labeldrop"}],
        },
        "podMonitor": {
            "enabled": True,
            "interval": "1m",
            "relabelings": [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}],
            "metricRelabelings": [{"regex": "pod", "action": "labeldrop"}],
        },
    },
    "networkPolicy": {"enabled": True},
    "startCheck": {"timeoutSeconds": 120},
    "jobs": {"resources": {"limits": {"cpu": "1"}}},
    "flowControl": {"nominalConcurrencyShares": 20, "matchingPrecedence": 500},
}
"""What other people's clusters ask for, but for the network of nodes."""

ON_NODES: dict[str, object] = {"hostNetwork": True, "healthPort": 18081, "startCheck": {"enabled": False}}

OPENSHIFT: dict[str, object] = {"podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}}

BOTH: dict[str, dict[str, object]] = {
    "defaults": {},
    "monitored": MONITORED,
    "placed": PLACED,
    "alone": ALONE,
    "fitted": FITTED,
    "on nodes": ON_NODES,
    "OpenShift": OPENSHIFT,
}

OBJECTS: dict[str, object] = {
    "settings": {"create": True, "spec": {"scaleCheck": "deny", "defaults": {"project": {"quota": {"cpu": "8"}}}}},
    "seeds": [{"name": "eu-1", "existingSecret": "eu-1-kubeconfig"}, {"name": "main", "inCluster": True}],
}

OF_A_MASTER: dict[str, dict[str, object]] = {
    **BOTH,
    "api": {"api": {"enabled": True, "names": ["quotas.example.com"]}, "networkPolicy": {"enabled": True}},
    "page": {
        "api": {
            "enabled": True,
            "service": {"annotations": {"example.com/transport": "of-the-page"}},
            "ingress": {
                "enabled": True,
                "className": "nginx",
                "annotations": {"example.com/backend": "https"},
                "tlsSecret": "of-the-host",
            },
        },
        "page": {
            "url": "https://quota.example.com/seedquota",
            "history": {"sizeLimit": "64Mi"},
            "oidc": {
                "issuerURL": "https://id.example.com",
                "clientID": "kubernetes",
                "clientSecret": {"name": "oidc"},
                "caSecret": "oidc-ca",
                "scopes": ["openid", "groups"],
            },
        },
    },
    "prometheus": {
        "api": {"enabled": True},
        "page": {"history": {"prometheusURL": "http://prometheus-operated.monitoring:9090/"}},
        "prometheusRule": {"matchers": {"cluster": "prod"}},
    },
    "without-page": {"api": {"enabled": True}, "page": {"enabled": False}},
    "fitted": {**FITTED, "api": {"enabled": True, "port": 10250}},
    "objects": OBJECTS,
    "notifications": {"notifications": {"networks": ["10.0.0.0/8", "fd00::/8"]}},
}

REDIS: dict[str, object] = {
    "ledger": {
        "store": "redis",
        "redis": {
            "url": "rediss+sentinel://a.example.com:26379,b.example.com:26379/quotas",
            "username": "quotas",
            "passwordSecret": {"name": "redis", "key": "pass"},
            "caSecret": "redis-ca",
            "clientCertificateSecret": "redis-client",
        },
    },
    "networkPolicy": {"enabled": True},
}

OUTSIDE: dict[str, object] = {
    "webhook": {
        "externalURL": "https://webhook.example.com:8443",
        "timeoutSeconds": 5,
        "breakGlass": {"seed": False, "userClusters": True},
        "service": {"type": "LoadBalancer", "annotations": {"example.com/internal": "true"}, "nodePort": 31443},
        "ingress": {"enabled": True, "className": "nginx", "annotations": {"example.com/ssl-passthrough": "true"}},
        "tlsRoute": {"enabled": True, "parentRefs": [{"name": "public", "namespace": "gateways"}]},
    },
    "tls": {"mode": "certManager", "certManager": {"issuerRef": {"kind": "Issuer", "name": "webhook"}}},
}

OWN_CERTIFICATE: dict[str, object] = {
    "uninstall": {"removeWebhooks": False},
    "tls": {"mode": "existingSecret", "existingSecret": "webhook"},
}

RIGHTS: dict[str, object] = {
    "userClusters": {"namespaces": ["alpha", "beta"], "networks": ["10.0.0.0/8", "fd00::/8"]},
    "ownMachines": {"namespaces": ["own", "beta"]},
    "kubermatic": {"enabled": True},
    "namespaceQuotas": {"enabled": True, "secrets": True},
    "projectOwner": {"enabled": True},
    "master": {
        "decisions": True,
        "subjects": [{"kind": "User", "name": "master", "apiGroup": "rbac.authorization.k8s.io"}],
    },
    "serviceAccount": {"name": "agent"},
}

CLOUDS: dict[str, object] = {
    "providers": {
        "enabled": ["aws", "openstack"],
        "proxy": "http://proxy.example.com:3128",
        "noProxy": "10.0.0.0/8",
        "caBundle": {"existingConfigMap": "clouds", "key": "bundle.pem"},
    },
    "projectLabel": "example.com/project",
    "localCopies": {"enabled": False},
    "exemptNamespaces": ["cni", "cert-manager"],
    "inFlightWindow": "1m10s",
}

OF_A_SEED: dict[str, dict[str, object]] = {
    **BOTH,
    "redis": REDIS,
    "outside": OUTSIDE,
    "own certificate": OWN_CERTIFICATE,
    "rights": RIGHTS,
    "namespaces": {"namespaceQuotas": {"enabled": True}},
    "clouds": CLOUDS,
    "fitted": {**FITTED, "webhook": {"port": 10250, "service": {"port": 8443}}},
    "all": {**MONITORED, **PLACED, **REDIS, **OUTSIDE, **RIGHTS, **CLOUDS},
}
