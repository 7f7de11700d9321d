"""The rate of PyTorch's product of two square matrices in bf16 on a GPU, and of a copy within its memory:
what (a) of `scripts/gpu_check` holds everything else against. Prints a JSON object."""

import argparse
import json
import statistics

import torch


def seconds_of(work, runs=20):
    times = []
    for i in range(runs + 3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        if i >= 3:
            times.append(1e-3 * start.elapsed_time(end))
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--size", type=int, default=8192)
    args = parser.parse_args()
    n = args.size
    a, b = (torch.rand(n, n, device=args.device).mul(2).sub(1).bfloat16() for _ in range(2))
    y = torch.empty_like(a)
    product = seconds_of(lambda: torch.matmul(a, b, out=y))
    x = torch.empty(1 << 28, dtype=torch.float32, device=args.device).normal_()
    z = torch.empty_like(x)
    copy = seconds_of(lambda: z.copy_(x))
    print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
                      "device": torch.cuda.get_device_name(args.device), "size": n, "ms": 1e3 * product,
                      "bf16_tflops": 2e-12 * n**3 / product, "copy_gbytes_per_second": 8e-9 * (1 << 28) / copy}))


main()
