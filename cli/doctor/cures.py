"""What to do about a bad condition, in one line, by kind and reason: the short form of docs/how-to/conditions.md."""

from __future__ import annotations

QUOTA, SEED, USER_CLUSTER = "ResourceQuota", "Seed", "UserCluster"

_SECRET = "repair the network, or the kubeconfig in the Secret that the message names"  # noqa: S105 (no secret)
_ANOTHER = "point the Secret to the right cluster, or accept the other one: docs/how-to"
_ADD = "run `seedquota seed add` with the name of the Seed again"
_ON_SEED = "bind charts/rbac/master-on-seed.yaml on the seed to the user of the kubeconfig"
_OWN_SERVER = "see the log of seedquota-master, which says why its own API server refuses it, and apply its roles"
_AGENT = "see that an agent of that seed runs and leads"
_EXCEEDED = "raise the limit, or remove what is too much"
_WEBHOOK = "see what is said of the UserClusters that the message names, or their condition Enforced"
_UNINSTALLED = "remove the agents, or enforce again with `seedquota uninstall seed --undo`"
_RIGHTS = "apply charts/rbac/user-cluster.yaml in the user cluster"
_REPAIR_WEBHOOK = "repair what the message says of the way to the webhook: --webhook-url, network, Secret"
_TAKEN_OVER = "delete the APIService that hands the Machines to another server: docs/how-to/user-clusters.md"
_PROJECT = "create the Project, or create the UserCluster again with the right project: docs/how-to/projects.md"
_UNADMITTED = "find out who created Machines past the webhook: docs/how-to/break-glass.md"

CURES = {
    QUOTA: {
        "NotSupported": "correct the names in the quota, or do what the message says",
        "ClustersNotCounted": "set spec.namespaceQuotas of the UserClusters that the message names to Enabled",
        "NoClusters": "set spec.namespaceQuotas of a UserCluster or a Seed to Enabled, or correct subject.clusters",
        "Degraded": "as for Enforced, which the message repeats",
        "SubjectNotFound": "create the Project or Organization, or delete the quota",
        "TooManyResources": "limit the resources that the message names in a new quota of the same subject",
        "Learning": "wait; if it stays, repair the seeds that the message names, or declare them lost",
        "NoSeeds": "see the condition Connected of the Seeds: `kubectl describe sqseed`; or correct their labels if "
        "subject.seeds picks none: `kubectl get sqseed --show-labels`",
        "SeedNotSynced": "see the condition Synced of the Seed: `kubectl describe sqseed NAME`",
        "AccountFenced": "wait; if it stays, do what docs/how-to/troubleshooting.md says of what the account waits for",
        "ReplicasBehind": "wait a minute; if it stays, see the log of that seed's agents",
        "WebhookNotServing": "see the condition Enforced of its UserClusters: `seedquota doctor --seed NAME`",
        "SeedUnreachable": "see the condition Connected of the Seed",
        "AgentSilent": _AGENT,
        "SourceUnreachable": "see the condition UsageCurrent of the UserCluster: `seedquota doctor --seed NAME`",
        "ResourceNotListed": "give the right, or repair the CustomResourceDefinition, that the message names",
        "NeverCounted": "correct the name in the quota, or ignore this until the first Machine has such a device",
        "RaisesNothing": "remove the override, or raise it above the limit",
        "Ended": "remove the override that has ended, or give it a later end",
        "NotServed": "correct the name in the quota, or ignore this until a cluster serves such objects",
        "AboveParent": "lower the limit of the project, or raise that of its organization",
        "GuaranteesExceedParent": "guarantee less to projects, or raise the limit of the organization",
        "NotGuaranteed": "remove the guarantee, or the cause that the message names",
        "UsedByOthers": "wait until others delete something, guarantee less, or raise the organization's limit",
        "OvercommitExceeded": "lower limits of projects, or raise the organization's, or overcommit",
        "LimitLowered": _EXCEEDED,
        "AdmittedWithWarning": _EXCEEDED,
        "UsageNotAdmitted": f"{_EXCEEDED}; if the limit is not new, look for break-glass in the audit log",
    },
    SEED: {
        "Unreachable": f"{_SECRET}; do not declare the seed lost for this alone",
        "Unauthorized": f"{_ADD}, which replaces the token; do not declare the seed lost",
        "InvalidKubeconfig": "repair the Secret that the message names",
        "ClusterChanged": f"{_ANOTHER}/seeds.md",
        "DuplicateCluster": "delete one of the two Seeds, or point its Secret to its own cluster",
        "OtherMaster": "stop the other master, as docs/how-to/move-master.md says; this one then begins by itself",
        "Connected": f"{_ADD}, which updates the rights of the master on the seed",
        "CopiesOutstanding": f"{_ADD}, which updates the rights, or apply the CRDs on the seed",
        "VersionSkew": "upgrade the older of master and agents: at most one minor version may lie between them",
        "Fenced": _AGENT,
        "Learning": _AGENT,
        "CanaryAdmitted": _WEBHOOK,
        "APITakenOver": _WEBHOOK,
        "WebhookContested": _WEBHOOK,
        "WebhookMissing": _WEBHOOK,
        "NotServing": _WEBHOOK,
        "CertificateInvalid": _WEBHOOK,
        "UsageNotAdmitted": _WEBHOOK,
        "Uninstalled": _UNINSTALLED,
        "NotProven": "make a user cluster reachable whose kubeconfig may create Machines",
        "NotReported": "see that an agent runs there, with the Seed's name as --seed-name",
        "AgentSilent": _AGENT,
    },
    USER_CLUSTER: {
        "Unreachable": _SECRET,
        "Unauthorized": f"{_SECRET}; or apply charts/rbac/seed-namespace.yaml in its namespace",
        "InvalidKubeconfig": "repair the Secret that the message names",
        "MachineAPIMissing": "install the CRDs of Machines in the user cluster",
        "ClusterChanged": f"{_ANOTHER}/user-clusters.md",
        "DuplicateCluster": "delete one of the two UserClusters, or point its Secret to its own cluster",
        "Uninstalled": _UNINSTALLED,
        "WebhookMissing": _RIGHTS,
        "CanaryAdmitted": "find what admits Machines between that API server and the webhook: they are not checked",
        "WebhookContested": "find in that API server's audit log who changes the webhook configuration",
        "UsageNotAdmitted": _UNADMITTED,
        "MachinesUnreadable": "find out who creates so many Machines, and delete what is not needed",
        "ObjectsUnreadable": "repair or delete the objects that the message names",
        "APITakenOver": _TAKEN_OVER,
        "NotServing": _REPAIR_WEBHOOK,
        "CertificateInvalid": _REPAIR_WEBHOOK,
        "WebhookConfigured": f"{_RIGHTS}, so that a dry run can prove the webhook",
        "UnknownProject": _PROJECT,
        "AllowedBefore": _PROJECT,
        "ProjectMissing": "create the Project on the master again: docs/how-to/projects.md",
        "QuotaMissing": "create the Organization that the Project names, and see that the master runs",
        "AllowedBySettings": _PROJECT,
        "NothingCopied": "see that there is a Seed for this cluster, and that it is connected",
        "NotWritten": _RIGHTS,
        "FlavorsChanged": "compare the Machines with what the cloud reports; the larger size counts",
    },
}
OF_SEED: dict[str, dict[str, str]] = {
    "": {},
    "added": {},
    "by a kubeconfig of its own": {
        "Unauthorized": "write a kubeconfig with a new token into the Secret; do not declare the seed lost",
        "Connected": _ON_SEED,
        "CopiesOutstanding": f"{_ON_SEED}, or apply the CRDs on the seed",
    },
    "in the master's cluster": {
        "Unreachable": _OWN_SERVER,
        "Unauthorized": _OWN_SERVER,
        "InvalidKubeconfig": _OWN_SERVER,
        "CopiesOutstanding": _OWN_SERVER,
        "Connected": "bind charts/rbac/master-in-cluster.yaml to the ServiceAccount of seedquota-master",
        "ClusterChanged": "accept this cluster, if its machines are not those of the other: docs/how-to/seeds.md",
        "DuplicateCluster": "delete this Seed, or correct the Secret of the other: both lead to the master's cluster",
    },
}
"""Those of SEED that are other ones, by how the master reaches the seed."""

OF_OWN_MACHINES = {
    "Unreachable": "see the log of the seed's agents, which says why their own API server does not answer",
    "Unauthorized": "bind charts/rbac/seed-own-machines.yaml and seed-namespace.yaml in its namespace",
    "WebhookMissing": "bind charts/rbac/seed-own-webhooks.yaml on the seed for the whole cluster",
    "WebhookConfigured": "bind charts/rbac/seed-own-machines.yaml in its namespace, so that a dry run can prove it",
    "MachineAPIMissing": "install the CRDs of Machines on the seed",
    "NotServing": "repair what the message says of the way to the webhook: --webhook-service, --webhook-url, network",
}
"""Those of USER_CLUSTER that are other ones where it counts the Machines of the seed itself."""

_NAMESPACES = "apply charts/rbac/user-cluster-namespaces.yaml there, or make the webhook reachable, as the message says"

BY_CONDITION = {
    (SEED, "NamespacesEnforced"): _NAMESPACES,
    (
        SEED,
        "LocalQuotasWritten",
    ): "set namespaceQuotas.enabled of the seed's chart, which gives the rights and the role",
    (USER_CLUSTER, "NamespacesEnforced"): _NAMESPACES,
    (USER_CLUSTER, "MachinesSized"): "correct the flavor or the credentials that the message names",
}
"""Of conditions that have one cure, whatever the reason."""

NO_LEADER = "see the log of its replicas, which says why none leads"
SEVERAL_LEAD = "uninstall the release in all namespaces but one: they undo what the other writes"
ELSEWHERE = "if it runs in another namespace, name that with -n"
TOKEN = f"see the master's log, `token not renewed`, or {_ADD}"
OWN_TOKEN = "write a kubeconfig with a new token into the Secret: the master renews those of `seedquota seed add`"  # noqa: S105
CERTIFICATE = "see the agents' log: they may not be allowed to write the Secret"
UNREPORTED = "see that seedquota-master runs and leads"
HELD_BY_NOBODY = (
    "create the Seed again; only if its machines are gone, with state Lost, then `seedquota seed remove` it"
)
LEFT_OVER = (
    "start an agent again; only if SeedQuota was removed from this cluster, delete the configuration: while it is "
    "there, what it checks cannot be created"
)


def cure(kind: str, condition: str, reason: str) -> str:
    found = BY_CONDITION.get((kind, condition)) or CURES[kind].get(reason)
    return found or "do what the message says; docs/how-to/conditions.md has more"
