#!/usr/bin/env python3
"""gemm_f32 against PyTorch's matmul (MKL), interleaved in one run.

    gemm_torch.py path/to/micro_gemm [--reps N] [--threads N] [--cpu-time] [--filter TEXT]

Both work on operands of the same shapes and layouts. PyTorch and `micro_gemm --serve` take turns;
the table gives medians and, since other programs may share the machine, the best of each. With
--cpu-time both use one thread and are timed by the processor time that it got.
"""

import argparse
import statistics
import subprocess
import time

import torch

# name, M, K, N, A transposed, B transposed, batch
SHAPES = [
    ("124M qkv", 1024, 768, 2304, 0, 0, 1),
    ("124M proj", 1024, 768, 768, 0, 0, 1),
    ("124M fc", 1024, 768, 3072, 0, 0, 1),
    ("124M fc2", 1024, 3072, 768, 0, 0, 1),
    ("124M head W[V,C]^T", 1024, 768, 50257, 0, 1, 1),
    ("124M dX fc", 1024, 3072, 768, 0, 1, 1),
    ("124M dX fc2", 1024, 768, 3072, 0, 1, 1),
    ("124M dX head W[V,C]", 1024, 50257, 768, 0, 0, 1),
    ("124M dW fc", 768, 1024, 3072, 1, 0, 1),
    ("124M dW fc2", 3072, 1024, 768, 1, 0, 1),
    ("124M dW head", 50257, 1024, 768, 1, 0, 1),
    ("124M q k^T", 256, 64, 256, 0, 1, 48),
    ("124M p v", 256, 256, 64, 0, 0, 48),
    ("124M p^T dy", 256, 256, 64, 1, 0, 48),
    ("char qkv", 768, 128, 384, 0, 0, 1),
    ("char proj", 768, 128, 128, 0, 0, 1),
    ("char fc", 768, 128, 512, 0, 0, 1),
    ("char fc2", 768, 512, 128, 0, 0, 1),
    ("char head^T", 768, 128, 65, 0, 1, 1),
    ("char dX fc", 768, 512, 128, 0, 1, 1),
    ("char dW fc", 128, 768, 512, 1, 0, 1),
    ("char dW fc2", 512, 768, 128, 1, 0, 1),
    ("char dW head", 128, 768, 65, 1, 0, 1),
    ("char q k^T", 64, 32, 64, 0, 1, 48),
    ("char p v", 64, 64, 32, 0, 0, 48),
    ("char p^T dy", 64, 64, 32, 1, 0, 48),
    ("decode fc", 1, 768, 3072, 0, 0, 1),
    ("decode fc2", 1, 3072, 768, 0, 0, 1),
    ("decode head W[V,C]^T", 1, 768, 50257, 0, 1, 1),
    ("16 rows fc", 16, 768, 3072, 0, 0, 1),
]


def matrix(batch, rows, cols, transposed):
    shape = (batch, cols, rows) if transposed else (batch, rows, cols)
    m = torch.rand(shape) * 2 - 1
    m = m.transpose(1, 2) if transposed else m
    return m[0] if batch == 1 else m


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("micro_gemm")
    parser.add_argument("--reps", type=int, default=11)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--filter", default="", help="only shapes whose name contains this")
    args = parser.parse_args()
    if args.cpu_time:
        args.threads = 1
    clock = time.thread_time if args.cpu_time else time.perf_counter
    torch.set_num_threads(args.threads)
    server = subprocess.Popen(
        [args.micro_gemm, *(["--cpu-time"] if args.cpu_time else []), "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    print(f"PyTorch {torch.__version__}, {args.threads} threads\n")
    print("| shape | brrr GFLOP/s | PyTorch | ratio of medians | ratio of bests |")
    print("|---|---|---|---|---|")
    medians, bests = [], []
    for name, m, k, n, ta, tb, batch in SHAPES:
        if args.filter not in name:
            continue
        flops = 2.0 * m * k * n * batch
        calls = int(min(max(2e8 / flops, 1), 500))
        a, b = matrix(batch, m, k, ta), matrix(batch, k, n, tb)
        out = torch.matmul(a, b)
        ours, theirs = [], []
        for _ in range(args.reps):
            server.stdin.write(f"{m} {k} {n} {ta} {tb} {batch}\n")
            server.stdin.flush()
            ours.append(float(server.stdout.readline()) * 1e-3)
            torch.matmul(a, b, out=out)
            start = clock()
            for _ in range(calls):
                torch.matmul(a, b, out=out)
            theirs.append((clock() - start) / calls)
        o, t = statistics.median(ours), statistics.median(theirs)
        medians.append(t / o)
        bests.append(min(theirs) / min(ours))
        print(
            f"| {name} | {flops / o / 1e9:.1f} | {flops / t / 1e9:.1f} "
            f"| {medians[-1]:.2f} | {bests[-1]:.2f} |",
            flush=True,
        )
    print(
        f"\nGeometric mean of brrr / PyTorch: {statistics.geometric_mean(medians):.3f} (medians), "
        f"{statistics.geometric_mean(bests):.3f} (bests)"
    )
    server.stdin.close()


if __name__ == "__main__":
    main()
