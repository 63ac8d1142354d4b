module seedquota.io/devcluster/pause

go 1.25.0
