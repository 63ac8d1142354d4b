"""LocalResourceQuotas: what a quota shows in the user clusters that it counts. The leader writes them."""
