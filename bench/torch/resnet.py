"""ResNet-18, as the paper has it, and a step of training it."""
from torch import nn


class Block(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside)
        self.conv2, self.norm2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside)
        self.down = None
        if stride != 1 or inside != outside:
            self.down = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        y = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return (y + (x if self.down is None else self.down(x))).relu()


def resnet18(classes=10):
    layers, inside = [], 64
    for outside, stride in (64, 1), (128, 2), (256, 2), (512, 2):
        layers += [Block(inside, outside, stride), Block(outside, outside, 1)]
        inside = outside
    return nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1), *layers,
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


def step(model, optimizer, images, labels):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss
