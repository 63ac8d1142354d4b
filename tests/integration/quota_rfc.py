"""The examples of the RFC that the HTTP API follows, with the commas that they lack, and without those too many."""

ORGANIZATION = "da519676-8e78-4dcb-94dd-507aa0eab23e"
PROJECT = "c53efec8-da76-4d54-9565-1c6daf755926"
ALLOCATION = "f6fbafc9-d621-4a44-9196-cdf2be165e72"

GET_QUOTAS = """{
    "capacity": [
        {
            "type": "clusters",
            "amount": 5
        },
        {
            "type": "servers",
            "amount": 10
        }
    ],
    "free": [
        {
            "type": "clusters",
            "amount": 4
        },
        {
            "type": "servers",
            "amount": 2
        }
    ],
    "allocated": [
        {
            "type": "clusters",
            "amount": 1,
            "committed": 1,
            "reserved": 0
        },
        {
            "type": "servers",
            "amount": 8,
            "committed": 3,
            "reserved": 5
        }
    ]
}"""
PUT_QUOTAS = b"""{
    "capacity": [
        {
            "type": "clusters",
            "amount": 5
        },
        {
            "type": "servers",
            "amount": 10
        }
    ]
}"""
GET_ALLOCATIONS = """[
    {
        "metadata": {
            "id": "f6fbafc9-d621-4a44-9196-cdf2be165e72",
            "name": "unused",
            "organizationID": "da519676-8e78-4dcb-94dd-507aa0eab23e",
            "projectID": "c53efec8-da76-4d54-9565-1c6daf755926",
            "creationTimestamp": "%s",
            "createdBy": "%s"
        },
        "spec": {
            "kind": "kubernetescluster",
            "id": "d6beb0dd-209b-40bf-aa03-bef974f33121",
            "resources": [
                {
                    "type": "clusters",
                    "amount": 1,
                    "committed": 1,
                    "reserved": 0
                },
                {
                    "type": "servers",
                    "amount": 8,
                    "committed": 3,
                    "reserved": 5
                }
            ]
        }
    }
]"""
"""It writes `commited` for the servers; `committed` is what it means."""

POST_ALLOCATIONS = b"""[
    {
        "metadata": {
            "id": "f6fbafc9-d621-4a44-9196-cdf2be165e72",
            "name": "unused"
        },
        "spec": {
            "kind": "kubernetescluster",
            "id": "d6beb0dd-209b-40bf-aa03-bef974f33121",
            "resources": [
                {
                    "type": "clusters",
                    "committed": 1,
                    "reserved": 0
                },
                {
                    "type": "servers",
                    "commited": 3,
                    "reserved": 5
                }
            ]
        }
    }
]"""
PUT_ALLOCATION = b"""{
    "metadata": {
        "id": "f6fbafc9-d621-4a44-9196-cdf2be165e72",
        "name": "unused"
    },
    "spec": {
        "resources": [
            {
                "type": "clusters",
                "committed": 1,
                "reserved": 0
            },
            {
                "type": "servers",
                "commited": 3,
                "reserved": 12
            }
        ]
    }
}"""
