"""digits-torch: a Flower / PyTorch app."""

import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """A small model with batch normalisation."""

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.bn1 = nn.BatchNorm1d(32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        return self.fc2(torch.relu(self.bn1(self.fc1(x))))


def load_data(partition_id: int, num_partitions: int):
    """Load one partition of the handwritten digits."""
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images[partition_id::num_partitions] / 16.0, dtype=torch.float32)
    labels = torch.tensor(labels[partition_id::num_partitions])
    split = int(0.8 * len(labels))
    trainset = TensorDataset(images[:split], labels[:split])
    testset = TensorDataset(images[split:], labels[split:])
    trainloader = DataLoader(trainset, batch_size=32, shuffle=True, drop_last=True)
    return trainloader, DataLoader(testset, batch_size=32)


def train(net, trainloader, epochs, lr, device):
    """Train the model on the training set."""
    net.to(device)
    criterion = torch.nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for images, labels in trainloader:
            optimizer.zero_grad()
            loss = criterion(net(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / (epochs * len(trainloader))


def test(net, testloader, device):
    """Validate the model on the test set."""
    net.to(device)
    net.eval()
    criterion = torch.nn.CrossEntropyLoss()
    correct, loss = 0, 0.0
    with torch.no_grad():
        for images, labels in testloader:
            outputs = net(images.to(device))
            loss += criterion(outputs, labels.to(device)).item()
            correct += (torch.max(outputs.data, 1)[1] == labels.to(device)).sum().item()
    return loss / len(testloader), correct / len(testloader.dataset)
