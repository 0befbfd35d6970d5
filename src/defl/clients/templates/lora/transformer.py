"""A small transformer that reads a sentence and gives a score per class."""

from data import LENGTH, PAD, WORDS
from torch import nn

WIDTH, HEADS, BLOCKS, CLASSES = 128, 4, 2, 2


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(len(WORDS), WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        for embedding in (self.words, self.places):
            nn.init.normal_(embedding.weight, std=0.1)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens):
        present = tokens != PAD
        values = self.words(tokens) + self.places.weight
        for block in self.blocks:
            values = block(values, present[:, None, None, :])
        values = self.norm(values) * present[:, :, None]
        return self.head(values.sum(dim=1) / present.sum(dim=1, keepdim=True))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_attention, self.norm_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, values, present):
        values = values + self.attention(self.norm_attention(values), present)
        return values + self.down(nn.functional.gelu(self.up(self.norm_mlp(values))))

    def attention(self, values, present):
        def by_head(projection):
            return projection(values).unflatten(2, (HEADS, WIDTH // HEADS)).transpose(1, 2)

        mixed = nn.functional.scaled_dot_product_attention(
            by_head(self.query), by_head(self.key), by_head(self.value), attn_mask=present
        )
        return self.out(mixed.transpose(1, 2).flatten(2))
