"""An ordinary Flower app: handwritten digits with NumPy."""
