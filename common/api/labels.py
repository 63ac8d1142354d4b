"""Names that objects of this project carry: the API group, labels, annotations, field managers."""

from __future__ import annotations

GROUP = "seedquota.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

UID_LABEL = "seedquota.io/uid"  # on a seed's copy: the uid of the master's object

RELEASED_ANNOTATION = "seedquota.io/released"  # on a seed's copy that the master itself removes
MASTER_ANNOTATION = "seedquota.io/master"  # on a Seed's copy: the uid of the Lease of the master that serves it
MASTER_SEEN_ANNOTATION = "seedquota.io/master-seen"  # on a Seed's copy: when its master wrote to the seed last
LEDGER_ANNOTATION = "seedquota.io/ledger"  # on the master's quota: the incarnation of its ledger
SUBJECT_KIND_LABEL = "seedquota.io/subject-kind"  # "namespaces" on a LocalResourceQuota of a quota of that kind

PROJECT_LABEL = "seedquota.io/project"
"""On a namespace, where namespaces of several projects are in one cluster: whose it is. And on a Cluster of Cluster
API."""
ORGANIZATION_LABEL = "seedquota.io/organization"  # on a namespace of the master: the Organization that it is of
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MASTER_MANAGER = "seedquota-master"  # field managers: each side owns its own fields
GRANT_MANAGER = "seedquota-master-grant"  # of what the master tells a seed through the master's own object
SEED_MANAGER = "seedquota-seed"
CLOUD_QUOTA_MANAGER = "seedquota-seed-cloud-quota"  # of what a cloud tells, beside what the seed counts
ACCOUNTS = "seedquota"  # manages the ledgers that are a seed's accounts; the master's are managed by MASTER_MANAGER
DEFAULT_LABEL = "seedquota.io/default"  # "true" on a quota that follows QuotaSettings.spec.defaults
UNINSTALL_ANNOTATION = "seedquota.io/uninstall"  # on the agents' Lease: see seed/registration/withdrawal.py
UNINSTALLED_ANNOTATION = "seedquota.io/uninstalled"  # the leader's answer to it
KNOWS_BLOCKS_ANNOTATION = "seedquota.io/knows-blocks"  # "true" on the record of a replica (rule 4.15)
BLOCKS_ANNOTATION = "seedquota.io/blocks-in-term"  # on the agents' Lease: the term in which replicas may have blocks
FITS_ANNOTATION = "seedquota.io/fits"  # on a dry run: how many of the object are asked for, see seed/admission/fits.py
SETTINGS = "default"  # the name of the one QuotaSettings

IN_NAMESPACES_OF = "namespaces of "  # begins what a project's quota calls a source of objects in namespaces there
BACKUP_LABEL = "velero.io/exclude-from-backup"
