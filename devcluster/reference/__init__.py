"""The pages of docs/reference, made from code and CRDs: `python -m devcluster.reference` writes them."""
