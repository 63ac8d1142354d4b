"""What an API server asks for a Machine: the body that all measurements of the webhook send."""

REVIEW = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "cluster.k8s.io", "version": "v1alpha1", "kind": "Machine"},
        "resource": {"group": "cluster.k8s.io", "version": "v1alpha1", "resource": "machines"},
        "name": "pool-a-x7k2p",
        "namespace": "kube-system",
        "operation": "CREATE",
        "userInfo": {"username": "system:serviceaccount:kube-system:machine-controller", "groups": ["system:masters"]},
        "object": {
            "apiVersion": "cluster.k8s.io/v1alpha1",
            "kind": "Machine",
            "metadata": {
                "name": "pool-a-x7k2p",
                "generateName": "pool-a-",
                "namespace": "kube-system",
                "uid": "00000000-0000-0000-0000-000000000000",
                "generation": 1,
                "creationTimestamp": "2026-11-20T10:00:03Z",
                "labels": {"machine": "md-pool-a", "x-kubernetes.io/cluster": "c1"},
                "ownerReferences": [
                    {
                        "apiVersion": "cluster.k8s.io/v1alpha1",
                        "kind": "MachineSet",
                        "name": "pool-a",
                        "uid": "b7cc4201-0a80-0002-705a-b4f5639311e8",
                        "controller": True,
                    }
                ],
            },
            "spec": {
                "providerSpec": {
                    "value": {
                        "cloudProvider": "vsphere",
                        "cloudProviderSpec": {
                            "cpus": 4,
                            "memoryMB": 8192,
                            "diskSizeGB": 50,
                            "templateVMName": "ubuntu-22.04",
                            "datacenter": "dc-1",
                            "cluster": "cl-1",
                            "datastore": "datastore1",
                            "folder": "/dc-1/vm/c1",
                            "networks": ["net-1"],
                            "allowInsecure": False,
                        },
                        "operatingSystem": "ubuntu",
                        "operatingSystemSpec": {"distUpgradeOnBoot": False},
                        "sshPublicKeys": ["ssh-ed25519 " + "A" * 68],
                    }
                },
                "versions": {"kubelet": "1.34.4"},
            },
        },
        "oldObject": None,
        "dryRun": False,
    },
}
