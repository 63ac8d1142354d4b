"""What an object in a namespace costs, as Kubernetes' own quota evaluators have it."""
