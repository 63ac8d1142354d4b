"""What Services use: k8s.io/kubernetes/pkg/quota/v1/evaluator/core/services.go."""

from __future__ import annotations

from typing import Final

import msgspec

from common.kube.client.meta import Object
from common.quota.object_names import SERVICES
from common.quota.quantity import UNIT
from seed.kinds.namespaces.evaluators.namespaced import Counting


class _Port(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    node_port: int = 0


class ServiceSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    type: str = ""
    ports: tuple[_Port, ...] = ()
    allocate_load_balancer_node_ports: bool | None = None


class Service(Object, frozen=True, kw_only=True):
    spec: ServiceSpec = ServiceSpec()


class ServiceEvaluator(Counting[Service]):
    """Updates count, too: the type and the ports of a Service may change."""

    resource = SERVICES
    type = Service

    def usage(self, subject: Service, now: float) -> dict[str, int]:
        is_balanced = subject.spec.type == "LoadBalancer"
        return {
            "count/services": UNIT,
            "services": UNIT,
            "services.loadbalancers": UNIT if is_balanced else 0,
            "services.nodeports": _node_ports(subject.spec) * UNIT,
        }


def _node_ports(spec: ServiceSpec) -> int:
    """Ports that the spec leads to: they are chosen after admission."""
    if spec.type not in ("NodePort", "LoadBalancer"):
        return 0
    if spec.type == "LoadBalancer" and spec.allocate_load_balancer_node_ports is False:
        return sum(1 for port in spec.ports if port.node_port)
    return len(spec.ports)


EVALUATOR: Final = ServiceEvaluator()
