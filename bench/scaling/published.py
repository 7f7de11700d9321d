#!/usr/bin/env python3
"""Predicts published training rates of several GPUs from those of few: tables in Markdown.

The model of a step: arithmetic at a share of the peak that one published row fixes for a program
and a kind of GPU, and bytes at the rate of a link, hidden as far as they fit behind the arithmetic
of the pass that they belong to. Every row names where its figures are from. Run without arguments;
`--scale` prints what 8 to 1,024 GPUs are predicted to do.
"""
import argparse
from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    name: str
    parameters: float  # that are multiplied with: without tables that are looked up
    stored: float      # all of them
    layers: int
    width: int

    def flops_per_token(self, length: int) -> float:
        """Forward and backward, causal attention: 6 N + 6 L C T."""
        return 6 * self.parameters + 6 * self.layers * self.width * length


LLAMA2_7B = Model("Llama 2 7B", 6.61e9, 6.74e9, 32, 4096)
LLAMA2_13B = Model("Llama 2 13B", 12.85e9, 13.02e9, 40, 5120)
LLAMA3_8B = Model("Llama 3 8B", 7.50e9, 8.03e9, 32, 4096)


@dataclass(frozen=True)
class Cluster:
    gpus: int
    per_host: int
    peak: float        # FLOP/s of bf16 products by the data sheet
    inside: float      # bytes/s of a GPU to the others of its host
    outside: float     # bytes/s of a host to other hosts, for all its GPUs
    latency: float = 5e-6  # of a message to the next GPU

    @property
    def hosts(self) -> int:
        return max(1, self.gpus // self.per_host)

    def ring(self, size: float, messages: int) -> float:
        """Seconds in which every GPU's parts of `size` bytes, in so many pieces, reach all others."""
        n = self.gpus
        if n == 1:
            return 0
        inside = size * (n - 1) / n / self.inside
        across = size * (self.hosts - 1) / self.hosts / self.outside if self.hosts > 1 else 0
        return max(inside, across) + messages * self.latency * (n - 1)


def step_seconds(model: Model, cluster: Cluster, batch: int, length: int, share: float,
                 gradient_bytes: int = 2, hybrid: bool = False, recomputed: float = 0) -> float:
    """One step of ZeRO 3, or, where `hybrid`, of ZeRO 3 inside a host and sums across hosts."""
    tokens = batch * length
    arithmetic = tokens * model.flops_per_token(length) / (cluster.peak * share)
    forward, backward = arithmetic / 3, arithmetic * (2 + recomputed) / 3
    weights, gradients = 2 * model.stored, gradient_bytes * model.stored
    if hybrid:
        host = Cluster(cluster.per_host, cluster.per_host, cluster.peak, cluster.inside,
                       cluster.outside, cluster.latency)
        gather, scatter = (host.ring(size, model.layers) for size in (weights, gradients))
        hosts = cluster.hosts
        scatter += 2 * gradients * (hosts - 1) / hosts / cluster.outside
    else:
        gather, scatter = (cluster.ring(size, model.layers) for size in (weights, gradients))
    # A layer's weights are gathered while the one before computes; the first layer's, and the
    # gradients of the last one, are not hidden.
    edges = (gather + scatter) / model.layers
    return max(forward, gather) + max(backward, gather + scatter) + edges


def rate(model, cluster, batch, length, share, **more) -> float:
    """Tokens per second and GPU."""
    return batch * length / step_seconds(model, cluster, batch, length, share, **more)


def share_of(model, cluster, batch, length, published, **more) -> float:
    """The share of the peak with which the model gives the published rate."""
    low, high = 0.01, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if rate(model, cluster, batch, length, middle, **more) < published:
            low = middle
        else:
            high = middle
    return (low + high) / 2


A100, H100 = 312e12, 989e12
# A host's 8 GPUs: NVLink at 250 GB/s (A100) and 370 GB/s (H100) of what a ring reaches.
FMS_A100 = Cluster(128, 8, A100, 250e9, 400e9 / 8)
FMS_H100 = Cluster(96, 8, H100, 370e9, 800e9 / 8)
TITAN_A100 = Cluster(64, 8, A100, 250e9, 8 * 200e9 / 8)
TITAN_H100 = Cluster(8, 8, H100, 370e9, 8 * 400e9 / 8)

# llmq's README: tokens/s of one GPU and of four, every model that has both in bf16, with the batch
# that both have where there is one; 524,288 tokens a step. Some of them recompute differently.
LLMQ = [
    ("RTX PRO 6000", "Qwen2.5-1.5B", 1.54e9, 32e3, 129e3, 40e9),
    ("RTX PRO 6000", "Qwen2.5-3B", 3.09e9, 17e3, 68e3, 40e9),
    ("RTX PRO 6000", "Qwen2.5-7B", 7.62e9, 8e3, 23e3, 40e9),
    ("RTX 4090", "Qwen2.5-0.5B", 0.49e9, 40e3, 151e3, 20e9),
    ("RTX 4090", "Qwen2.5-1.5B", 1.54e9, 14e3, 47e3, 20e9),
    ("RTX 4090", "Qwen2.5-3B", 3.09e9, 6.2e3, 24e3, 20e9),
    ("RTX 4090", "Qwen2.5-7B", 7.62e9, 1.9e3, 7.0e3, 20e9),
    ("L40S", "Qwen2.5-0.5B", 0.49e9, 42e3, 170e3, 20e9),
    ("L40S", "Qwen2.5-1.5B", 1.54e9, 17e3, 65e3, 20e9),
    ("L40S", "Qwen2.5-3B", 3.09e9, 8.9e3, 35e3, 20e9),
    ("L40S", "Qwen2.5-7B", 7.62e9, 3.9e3, 15e3, 20e9),
    ("RTX 5090", "Qwen2.5-1.5B", 1.54e9, 17e3, 71.2e3, 40e9),
    ("RTX 5090", "Qwen2.5-3B", 3.09e9, 8.2e3, 32e3, 40e9),
    ("RTX 5090", "Qwen2.5-7B", 7.62e9, 3.1e3, 13.9e3, 40e9),
]


def four_gpus(one: float, parameters: float, link: float, tokens: float = 524288) -> float:
    """Tokens/s of four GPUs that sum 2-byte gradients and gather 2-byte weights once a step."""
    exchange = 2 * 2 * parameters * 3 / 4 / link
    return tokens / (tokens / (4 * one) + exchange)


def published() -> None:
    print("| source | model | GPUs | share of the peak, from | published tokens/s | predicted | off |")
    print("|---|---|---|---|---|---|---|")

    def row(source, name, gpus, given, was, predicted):
        print(f"| {source} | {name} | {gpus} | {given} | {was:,.0f} | {predicted:,.0f} | "
              f"{100 * (predicted / was - 1):+.0f}% |")

    for gpu, name, parameters, one, four, link in LLMQ:
        row("llmq", name, f"4 {gpu}", f"1 {gpu}: {one:,.0f}", four,
            four_gpus(one, parameters, link))
    a100 = share_of(LLAMA2_7B, FMS_A100, 2, 4096, 3700, hybrid=True)
    given = f"fms-fsdp 7B on 128 A100: {100 * a100:.0f}%"
    row("torchtitan", LLAMA3_8B.name, "64 A100", given, 2973,
        rate(LLAMA3_8B, TITAN_A100, 1, 8192, a100, gradient_bytes=4, recomputed=0.1))
    a100 = share_of(LLAMA3_8B, TITAN_A100, 1, 8192, 2973, gradient_bytes=4, recomputed=0.1)
    given = f"torchtitan 8B on 64 A100: {100 * a100:.0f}%"
    row("fms-fsdp", LLAMA2_7B.name, "128 A100", given, 3700,
        rate(LLAMA2_7B, FMS_A100, 2, 4096, a100, hybrid=True))
    row("fms-fsdp", LLAMA2_13B.name, "128 A100", given, 1800,
        rate(LLAMA2_13B, FMS_A100, 2, 4096, a100, recomputed=0.5))
    h100 = share_of(LLAMA3_8B, TITAN_H100, 2, 8192, 6667, gradient_bytes=4, recomputed=0.1)
    given = f"torchtitan 8B on 8 H100: {100 * h100:.0f}%"
    row("fms-fsdp", LLAMA2_7B.name, "96 H100", given, 7500,
        rate(LLAMA2_7B, FMS_H100, 2, 4096, h100, hybrid=True))
    row("fms-fsdp", LLAMA2_13B.name, "96 H100", given, 3800,
        rate(LLAMA2_13B, FMS_H100, 2, 4096, h100, recomputed=0.5))


def scale() -> None:
    cases = [(tokens, link) for tokens in (16384, 4096) for link in (400e9, 3200e9)]
    print("| GPUs | " + " | ".join(f"{tokens:,} tokens, {link / 1e9:,.0f} Gbit/s"
                                   for tokens, link in cases) + " |")
    print("|---" * (len(cases) + 1) + "|")
    more = {"gradient_bytes": 4, "recomputed": 0.1}
    for gpus in (8, 16, 32, 64, 128, 256, 512, 1024):
        cells = []
        for tokens, link in cases:
            def reached(count):
                cluster = Cluster(count, 8, H100, 370e9, link / 8)
                return rate(LLAMA3_8B, cluster, 1, tokens, 0.36, **more)
            cells.append(f"{reached(gpus):,.0f} ({100 * reached(gpus) / reached(8):.0f}%)")
        print(f"| {gpus:,} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--scale", action="store_true", help="8 to 1,024 GPUs")
    (scale if arguments.parse_args().scale else published)()
