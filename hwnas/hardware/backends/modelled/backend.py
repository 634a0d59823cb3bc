"""The backend of hardware that does not exist: costs follow from a roofline."""

from hwnas.hardware.backends.base import roofline
from hwnas.hardware.backends.estimated_backend import EstimatedBackend
from hwnas.hardware.costs.cost_model import Cost
from hwnas.hardware.costs.measured_cost import fused_graph
from hwnas.hardware.costs.roofline_cost import network_cost
from hwnas.hardware.target import Target
from hwnas.models.graph import Graph


def backend(target: Target) -> EstimatedBackend:
    """Return the backend of a target with a roofline; it measures nothing."""

    def estimate(graph: Graph) -> Cost:
        assert target.roofline is not None
        return network_cost(fused_graph(graph, target), target, target.roofline)

    message = (
        f"Target '{target.name}' is hardware that does not exist (target.runtime=modelled): "
        "nothing can be measured on it. Choose another target."
    )
    return EstimatedBackend(target, {"roofline": roofline}, estimate, message)
