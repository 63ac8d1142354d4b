"""The objects of this project's API and of Kubernetes' own, as they are read and written."""
