"""A Flower app that trains on handwritten digits, with privacy for each client."""
