"""Handwritten digits with PyTorch on dtorch: a perceptron, AdamW, batches from a DataLoader.

    python examples/digits.py
"""
import gzip
import pathlib

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

import dtorch

EPOCHS = 30


def load():
    """UCI optical digits: pixels from 0 to 1 and labels, for training and (every fifth image) for testing."""
    with gzip.open(pathlib.Path(__file__).parent / "digits/data/digits.csv.gz", "rt") as file:
        rows = torch.tensor([[float(number) for number in line.split(",")] for line in file])
    pixels, labels = rows[:, :64] / 16, rows[:, 64].long()
    test = torch.arange(len(rows)) % 5 == 4
    return TensorDataset(pixels[~test], labels[~test]), pixels[test], labels[test]


def main():
    torch.manual_seed(0)
    train, test_pixels, test_labels = load()
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 10))
    with dtorch.start(workers=2) as session:
        print(session)
        model.to("dtorch")
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for epoch in (progress := tqdm(range(EPOCHS), unit="epoch")):
            for pixels, labels in DataLoader(train, batch_size=64, shuffle=True):
                x, y = (dtorch.distribute_tensor(each, placements=[dtorch.Shard(0)]) for each in (pixels, labels))
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            progress.set_postfix(loss=f"{loss.item():.4f}")
        with torch.no_grad():
            accuracy = (model.eval()(test_pixels.to("dtorch")).argmax(1).cpu() == test_labels).float().mean().item()
    print(f"test accuracy {accuracy:.4f}")
    return accuracy


if __name__ == "__main__":
    main()
