"""What runs a method on a graph and a model."""
