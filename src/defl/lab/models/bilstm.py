"""The paper's model for sentiment: a Bi-LSTM with multi-head attention over frozen word vectors.

Sizes as the paper and its authors' code have them: 128 units each way, four heads with keys of 256
each, dropout 0.15 in the attention and before the last layer, batch norm, one unit. The logit is
returned; the sigmoid belongs to the loss. What neither source says is decided here: padding is left
out of the LSTM, the attention and the mean over words that follows it.
"""

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from defl.lab.models.frozen import FrozenEmbedding


class Attention(nn.Module):
    """Multi-head self-attention (Vaswani et al., 2017) whose heads may be wider than the input."""

    def __init__(self, size: int, *, heads: int, key_size: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.queries = nn.Linear(size, heads * key_size)
        self.keys = nn.Linear(size, heads * key_size)
        self.values = nn.Linear(size, heads * key_size)
        self.out = nn.Linear(heads * key_size, size)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        queries, keys, values = (
            layer(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for layer in (self.queries, self.keys, self.values)
        )
        seen = functional.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=real[:, None, None, :],
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.out(seen.transpose(1, 2).flatten(2))


class AttentionBiLSTM(nn.Module):
    """(batch, length) numbers of words to (batch,) logits."""

    def __init__(
        self,
        vectors: Tensor,
        *,
        units: int = 128,
        heads: int = 4,
        key_size: int = 256,
        dropout: float = 0.15,
    ) -> None:
        super().__init__()
        self.embedding = FrozenEmbedding(vectors)
        self.lstm = nn.LSTM(vectors.shape[1], units, batch_first=True, bidirectional=True)
        self.attention = Attention(2 * units, heads=heads, key_size=key_size, dropout=dropout)
        self.norm = nn.BatchNorm1d(2 * units)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(2 * units, 1)

    def forward(self, words: Tensor) -> Tensor:
        embedded, real = self.embedding(words)
        lengths = real.sum(dim=1)
        packed = pack_padded_sequence(
            embedded, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        attended = self.attention(states, real)
        mean = (attended * real.unsqueeze(2)).sum(dim=1) / lengths.unsqueeze(1)
        return self.head(self.dropout(self.norm(mean))).squeeze(1)
