"""Testing a node, and the network between nodes, before a training is trusted to them."""
