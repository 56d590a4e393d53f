"""Models written plainly, as people write them. They allocate as PyTorch's own modules do.

Each entry of MODELS gives (model, inputs, loss) of a Shape: the module on the device; a function of a length
(tokens; pixels on a side) that brings one micro-batch to the device; one from that to its loss. Arithmetic is
absent, so nothing here may depend on a value read back.
"""

import dataclasses
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


@dataclasses.dataclass
class Shape:
    layers: int = 4  # blocks; of a resnet, in each stage
    hidden: int = 1024
    heads: int = 16
    vocab: int = 50257
    seq: int = 1024
    batch: int = 4  # samples of a micro-batch
    attention: str = "sdpa"  # or "eager": the scores in memory
    checkpointing: bool = False
    dtype: torch.dtype = torch.float32


class GptAttention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.heads, self.eager = shape.heads, shape.attention == "eager"
        self.qkv = nn.Linear(shape.hidden, 3 * shape.hidden)
        self.out = nn.Linear(shape.hidden, shape.hidden)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, c // self.heads).transpose(1, 2)
                   for part in self.qkv(x).split(c, dim=2))
        if self.eager:
            scores = (q @ k.transpose(-2, -1)) / math.sqrt(c // self.heads)
            mask = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
            scores = self.dropout(F.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1))
            mixed = scores @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.dropout(self.out(mixed.transpose(1, 2).reshape(b, t, c)))


class GptBlock(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(shape.hidden), nn.LayerNorm(shape.hidden)
        self.attention = GptAttention(shape)
        self.mlp = nn.Sequential(nn.Linear(shape.hidden, 4 * shape.hidden), nn.GELU(approximate="tanh"),
                                 nn.Linear(4 * shape.hidden, shape.hidden), nn.Dropout(0.1))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class LlamaBlock(nn.Module):
    """RMS norm, rotary positions, a key and value head per four query heads, SwiGLU."""

    def __init__(self, shape):
        super().__init__()
        self.heads, self.kv_heads = shape.heads, max(1, shape.heads // 4)
        self.head = shape.hidden // shape.heads
        ffn = (8 * shape.hidden // 3 + 255) // 256 * 256
        self.norm1, self.norm2 = nn.RMSNorm(shape.hidden), nn.RMSNorm(shape.hidden)
        self.q = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.k = nn.Linear(shape.hidden, self.kv_heads * self.head, bias=False)
        self.v = nn.Linear(shape.hidden, self.kv_heads * self.head, bias=False)
        self.o = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.gate = nn.Linear(shape.hidden, ffn, bias=False)
        self.up = nn.Linear(shape.hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, shape.hidden, bias=False)

    def rotate(self, x, cos, sin):
        half1, half2 = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-half2, half1), dim=-1) * sin

    def forward(self, x, cos, sin, cache=None):
        b, t, c = x.shape
        y = self.norm1(x)
        q = self.q(y).view(b, t, self.heads, self.head).transpose(1, 2)
        k = self.k(y).view(b, t, self.kv_heads, self.head).transpose(1, 2)
        v = self.v(y).view(b, t, self.kv_heads, self.head).transpose(1, 2)
        q, k = self.rotate(q, cos, sin).to(v.dtype), self.rotate(k, cos, sin).to(v.dtype)
        if cache is not None:  # grown by copies, as a plain cache is
            if cache:
                k, v = torch.cat((cache[0], k), dim=2), torch.cat((cache[1], v), dim=2)
            cache[:] = [k, v]
        groups = self.heads // self.kv_heads
        mixed = F.scaled_dot_product_attention(q, k.repeat_interleave(groups, dim=1),
                                               v.repeat_interleave(groups, dim=1), is_causal=t > 1)
        x = x + self.o(mixed.transpose(1, 2).reshape(b, t, c))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Gpt(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.positions = nn.Embedding(shape.seq, shape.hidden)
        self.blocks = nn.ModuleList(GptBlock(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.shape.checkpointing else block(x)
        return self.head(self.norm(x))


class Llama(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.blocks = nn.ModuleList(LlamaBlock(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        width = shape.hidden // shape.heads
        self.register_buffer("frequencies", 1e4 ** (-torch.arange(0, width, 2).float() / width))

    def forward(self, ids, caches=None, start=0):
        at = torch.arange(start, start + ids.shape[1], device=ids.device)
        angles = torch.outer(at, self.frequencies)
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos().to(self.head.weight.dtype), angles.sin().to(self.head.weight.dtype)
        x = self.tokens(ids)
        for layer, block in enumerate(self.blocks):
            if self.shape.checkpointing:
                x = checkpoint(block, x, cos, sin, use_reentrant=False)
            else:
                x = block(x, cos, sin, caches[layer] if caches is not None else None)
        return self.head(self.norm(x))


class Bottleneck(nn.Module):
    def __init__(self, inside, out, stride, into):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(into, inside, 1, bias=False), nn.BatchNorm2d(inside), nn.ReLU(inplace=True),
            nn.Conv2d(inside, inside, 3, stride, 1, bias=False), nn.BatchNorm2d(inside),
            nn.ReLU(inplace=True), nn.Conv2d(inside, out, 1, bias=False), nn.BatchNorm2d(out))
        self.skip = nn.Identity() if stride == 1 and into == out else nn.Sequential(
            nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        return F.relu(self.body(x) + self.skip(x))


def resnet(blocks):
    """`blocks` bottlenecks in each of four stages."""
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
              nn.MaxPool2d(3, 2, 1)]
    into = 64
    for stage in range(4):
        for block in range(blocks):
            inside = 64 << stage
            layers.append(Bottleneck(inside, 4 * inside, 2 if stage and not block else 1, into))
            into = 4 * inside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, 1000))


def on_device(shape, make):
    """The model as it is built on the device itself: no copy of it on the host."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(shape.dtype)
    try:
        with torch.device("cuda"):
            return make()
    finally:
        torch.set_default_dtype(before)


def make_language_model(shape, build):
    """`build` gives a module that turns token numbers into logits."""
    model = on_device(shape, build)

    def inputs(seq):
        return torch.randint(shape.vocab, (shape.batch, seq + 1)).pin_memory().cuda(non_blocking=True)

    def loss(ids):
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())
    return model, inputs, loss


def make_resnet(shape):
    torch.backends.cudnn.enabled = False  # its plans need its arithmetic; PyTorch has its own convolutions
    model = on_device(shape, lambda: resnet(shape.layers))

    def inputs(pixels):
        images = torch.randn(shape.batch, 3, pixels, pixels, dtype=shape.dtype)
        return images.cuda(non_blocking=True), torch.randint(1000, (shape.batch,)).cuda()

    def loss(samples):
        return F.cross_entropy(model(samples[0]).float(), samples[1])
    return model, inputs, loss


def make_hf(shape, family):
    """A model of these sizes, by the package transformers (from a configuration; nothing is downloaded)."""
    import transformers
    if family == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=shape.vocab, n_positions=shape.seq, n_embd=shape.hidden, n_layer=shape.layers,
            n_head=shape.heads, use_cache=False, attn_implementation=shape.attention)
    else:
        config = transformers.LlamaConfig(
            vocab_size=shape.vocab, hidden_size=shape.hidden, num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads, num_key_value_heads=max(1, shape.heads // 4),
            intermediate_size=(8 * shape.hidden // 3 + 255) // 256 * 256, use_cache=False,
            max_position_embeddings=shape.seq, attn_implementation=shape.attention)
    model = on_device(shape, lambda: transformers.AutoModelForCausalLM.from_config(config))
    if shape.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})

    def inputs(seq):
        return torch.randint(shape.vocab, (shape.batch, seq)).pin_memory().cuda(non_blocking=True)

    def loss(ids):
        return model(input_ids=ids, labels=ids).loss
    return model, inputs, loss


MODELS = {
    "gpt": lambda shape: make_language_model(shape, lambda: Gpt(shape)),
    "llama": lambda shape: make_language_model(shape, lambda: Llama(shape)),
    "resnet": make_resnet,
    "hf-gpt2": lambda shape: make_hf(shape, "gpt2"),
    "hf-llama": lambda shape: make_hf(shape, "llama"),
}
