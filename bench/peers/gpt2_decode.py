"""One token after the other from a GPT-2 in PyTorch with a KV cache: the peer of `brrr bench decode`.

Weights are random and stored in --precision; no gradients, caches of fixed size, greedy. Prints one JSON
object: {"peer", "torch", "tokens_per_second", "ms"}; ms is the median token.
"""

import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F

from gpt2_train import PRESETS, Gpt2


class Decoder:
    def __init__(self, model, heads, context, dtype):
        self.model, self.heads = model, heads
        width = model.wte.weight.shape[1]
        self.caches = [torch.zeros(2, 1, heads, context, width // heads, dtype=dtype) for _ in model.blocks]

    def __call__(self, token, position):
        model = self.model
        x = model.wte.weight[token] + model.wpe.weight[position]  # [1, C]
        for block, cache in zip(model.blocks, self.caches):
            qkv = block.attn(block.ln_1(x)).view(3, 1, self.heads, 1, -1)
            cache[:, :, :, position] = qkv[1:, :, :, 0]
            k, v = cache[:, :, :, : position + 1]
            y = F.scaled_dot_product_attention(qkv[0], k, v)
            x = x + block.attn_proj(y.reshape(1, -1))
            x = x + block.fc_proj(F.gelu(block.fc(block.ln_2(x)), approximate="tanh"))
        return (model.ln_f(x) @ model.wte.weight.t()).argmax(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", default="gpt2", choices=PRESETS)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--precision", default="bf16", choices=["fp32", "bf16"])
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(1337)
    size = PRESETS[args.preset]
    dtype = torch.bfloat16 if args.precision == "bf16" else torch.float32
    model = Gpt2(**size).to(dtype).eval()
    times = []
    with torch.inference_mode():
        decode = Decoder(model, size["heads"], size["context"], dtype)
        token = torch.tensor([1])
        for position in range(args.prompt + args.tokens):
            start = time.perf_counter()
            token = decode(token, position)
            times.append(time.perf_counter() - start)
    ms = 1e3 * statistics.median(times[args.prompt :])
    print(json.dumps(dict(peer=f"torch {args.precision}", torch=torch.__version__, ms=ms, tokens_per_second=1e3 / ms)))


if __name__ == "__main__":
    main()
