"""digits-msg: a Flower app."""

import numpy as np
from sklearn.datasets import load_digits


class Net:
    """Softmax regression."""

    def __init__(self):
        self.weight = np.zeros((64, 10), dtype=np.float32)
        self.bias = np.zeros(10, dtype=np.float64)
        self.steps = np.array(0, dtype=np.int32)

    def state_dict(self):
        return {"fc.weight": self.weight, "fc.bias": self.bias, "fc.steps": self.steps}

    def load_state_dict(self, state):
        assert state["fc.weight"].dtype == np.float32
        assert state["fc.bias"].dtype == np.float64
        assert state["fc.steps"].dtype == np.int32
        self.weight, self.bias = state["fc.weight"].copy(), state["fc.bias"].copy()
        self.steps = state["fc.steps"].copy()

    def __call__(self, images):
        scores = images @ self.weight + self.bias
        exp = np.exp(scores - scores.max(axis=1, keepdims=True))
        return exp / exp.sum(axis=1, keepdims=True)


def load_data(partition_id: int, num_partitions: int):
    """Load one partition of the handwritten digits."""
    images, labels = load_digits(return_X_y=True)
    mine = np.arange(len(labels)) % num_partitions == partition_id
    images, labels = (images[mine] / 16.0).astype(np.float32), labels[mine]
    split = int(0.8 * len(images))
    return (images[:split], labels[:split]), (images[split:], labels[split:])


def train(net, data, epochs, lr):
    images, labels = data
    targets = np.eye(10, dtype=np.float32)[labels]
    loss = 0.0
    for _ in range(epochs * 10):
        output = net(images)
        loss = float(-np.mean(np.log(output[np.arange(len(labels)), labels] + 1e-9)))
        gradient = (output - targets) / len(labels)
        net.weight -= (lr * images.T @ gradient).astype(np.float32)
        net.bias -= lr * gradient.sum(axis=0)
        net.steps += 1
    return loss


def test(net, data):
    images, labels = data
    output = net(images)
    loss = float(-np.mean(np.log(output[np.arange(len(labels)), labels] + 1e-9)))
    return loss, float(np.mean(output.argmax(axis=1) == labels))
