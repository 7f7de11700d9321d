"""GPT-2 training in PyTorch at its best CPU settings: the peer of `brrr train`.

Prints one JSON object per run: {"peer", "torch", "tokens_per_second", "ms", "loss"}; ms is the median step.
"""

import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

PRESETS = {
    "gpt2": dict(vocab=50257, context=1024, layers=12, heads=12, width=768, bias=True),
    "char": dict(vocab=65, context=256, layers=6, heads=6, width=384, bias=False),
    "char-cpu": dict(vocab=65, context=64, layers=4, heads=4, width=128, bias=False),
}


class Block(nn.Module):
    def __init__(self, width, heads, bias, dropout):
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.ln_1 = nn.LayerNorm(width, bias=bias)
        self.attn = nn.Linear(width, 3 * width, bias=bias)
        self.attn_proj = nn.Linear(width, width, bias=bias)
        self.ln_2 = nn.LayerNorm(width, bias=bias)
        self.fc = nn.Linear(width, 4 * width, bias=bias)
        self.fc_proj = nn.Linear(4 * width, width, bias=bias)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.attn(self.ln_1(x)).split(c, dim=2)
        q, k, v = (p.view(b, t, self.heads, c // self.heads).transpose(1, 2) for p in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout)
        x = x + F.dropout(self.attn_proj(y.transpose(1, 2).reshape(b, t, c)), self.dropout)
        return x + F.dropout(self.fc_proj(F.gelu(self.fc(self.ln_2(x)), approximate="tanh")), self.dropout)


class Gpt2(nn.Module):
    def __init__(self, vocab, context, layers, heads, width, bias, dropout=0.0):
        super().__init__()
        self.dropout = dropout
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, bias, dropout) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width, bias=bias)
        for p in self.parameters():
            if p.dim() >= 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        x = F.dropout(self.wte(tokens) + self.wpe.weight[: tokens.shape[1]], self.dropout)
        for block in self.blocks:
            x = block(x)
        logits = self.ln_f(x) @ self.wte.weight.t()
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", default="gpt2", choices=PRESETS)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(1337)
    size = PRESETS[args.preset]
    model = Gpt2(**size, dropout=args.dropout)
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [dict(params=decay, weight_decay=0.1), dict(params=rest, weight_decay=0.0)],
        lr=6e-4, betas=(0.9, 0.95), fused=True)
    step_model = torch.compile(model) if args.compile else model
    times, loss = [], None
    for step in range(args.warmup + args.steps):
        tokens = torch.randint(size["vocab"], (args.batch, args.length + 1))
        begin = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
            loss = step_model(tokens[:, :-1], tokens[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step >= args.warmup:
            times.append(time.perf_counter() - begin)
    seconds = statistics.median(times)
    name = "torch " + args.precision + (" compiled" if args.compile else "")
    print(json.dumps(dict(peer=name, torch=torch.__version__, ms=1e3 * seconds, loss=loss.item(),
                          tokens_per_second=args.batch * args.length / seconds)))


if __name__ == "__main__":
    main()
