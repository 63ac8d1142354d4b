"""The routes of previews for which the agents of the seeds are asked."""

from __future__ import annotations

from master.apiserver import machine_types, manifests
from master.apiserver.route import NAME, Parameter, Route

PREVIEWS_OF_SEEDS: tuple[Route, ...] = (
    Route(
        "POST",
        "/api/v1/fits/manifest",
        "manifest_fits",
        "Whether the objects of a manifest would fit",
        "The agents of the seeds are asked what the objects use, by the same code that admits them. A "
        "MachineDeployment is asked about with its Machines, a Deployment with its pods. Sizes of machine types are "
        "those that a seed knows already. Values of fields that may hold secrets are not sent to the seeds. The status "
        "is 200 whether it fits or not.",
        "Previews",
        manifests.ManifestFits,
        body=manifests.ManifestFitsRequest,
        problems=(404, 422),
        reads=True,
    ),
    Route(
        "GET",
        "/api/v1/projects/{project}/machinetypes",
        "list_machine_types",
        "The machine types that seeds know for the user clusters of a project",
        "The agents of the seeds are asked for what clouds have told them. What one Machine of a type uses can be sent "
        "to `fits` and `where`.",
        "Previews",
        machine_types.MachineTypes,
        query=(
            Parameter("name", "This type alone", {"type": "string", "maxLength": 255}),
            Parameter("seed", "Ask this seed alone", {"type": "string", "pattern": f"^{NAME.pattern}$"}),
        ),
        problems=(404,),
    ),
)
