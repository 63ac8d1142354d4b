// The definitions of kinds of others that the charts render: their files are read, nothing is built.
module seedquota.io/devcluster/chart-kinds

go 1.26

require (
	github.com/cert-manager/cert-manager v1.21.2
	github.com/prometheus-operator/prometheus-operator v0.94.1
	sigs.k8s.io/gateway-api v1.6.3
)
