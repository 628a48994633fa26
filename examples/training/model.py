"""A small Transformer for the examples of this folder, and what they train it on."""
import torch
from torch import nn

VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS = 32, 16, 32, 4, 2


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        query, key, value = (each(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
                             for each in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention, self.drop1 = nn.LayerNorm(WIDTH), Attention(), nn.Dropout(0.1)
        self.norm2, self.up, self.down, self.drop2 = (nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH),
                                                      nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x):
        x = x + self.drop1(self.attention(self.norm1(x)))
        return x + self.drop2(self.down(nn.functional.gelu(self.up(self.norm2(x)))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return self.out(self.norm(x))


def batches(steps, size=8):
    """Sequences that count up from random numbers by random steps: tokens, and the ones that follow."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        start, stride = (torch.randint(1, high, (size, 1), generator=generator) for high in (VOCABULARY, 4))
        sequence = (start + stride * torch.arange(LENGTH + 1)) % VOCABULARY
        yield sequence[:, :-1].contiguous(), sequence[:, 1:].contiguous()


def loss_of(model, tokens, targets):
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
