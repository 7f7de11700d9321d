"""GPT-2 training in PyTorch at its best GPU settings: the peer of `brrr bench step --device cuda`.

torch.compile, bf16 autocast, SDPA, fused AdamW, padded vocabulary, gradient clipping. Tries blocks that
are compiled one by one (one compilation for all), with PyTorch's own choice of attention and with cuDNN's,
then the whole model compiled at once with the faster attention. Prints a JSON object for each as soon as
it is measured: tokens_per_second and ms are of the median step; the fastest counts. The batch is halved
while it does not fit.
"""

import argparse
import json
import statistics

import torch
from gpt2_train import Gpt2


def measure(args, batch, whole, cudnn):
    torch.manual_seed(1)
    torch._dynamo.reset()
    torch.backends.cuda.enable_cudnn_sdp(cudnn)
    torch.backends.cuda.enable_flash_sdp(not cudnn)
    torch.backends.cuda.enable_mem_efficient_sdp(not cudnn)
    with torch.device(args.device):
        model = Gpt2(50304, args.context, args.layers, args.heads, args.width, True)
        tokens = torch.randint(0, 50257, (batch, args.context))
        targets = torch.randint(0, 50257, (batch, args.context))
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    step_model = model
    if whole:
        step_model = torch.compile(model)
    else:
        for block in model.blocks:
            block.compile()
    times = []
    for i in range(args.steps + 5):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        with torch.autocast("cuda", torch.bfloat16):
            loss = step_model(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        end.record()
        torch.cuda.synchronize()
        if i >= 5:
            times.append(start.elapsed_time(end))
    ms = statistics.median(times)
    return {"peer": "pytorch", "torch": torch.__version__, "compiled": "whole" if whole else "blocks",
            "attention": "cudnn" if cudnn else "flash", "batch": batch, "ms": ms,
            "tokens_per_second": 1e3 * batch * args.context / ms, "loss": loss.item(),
            "memory_bytes": torch.cuda.max_memory_allocated()}


def try_variant(args, batch, whole, cudnn):
    """Prints and returns what was measured and the batch that fitted; None where it does not run."""
    while batch > 0:
        fits = True
        try:
            result = measure(args, batch, whole, cudnn)
            print(json.dumps(result), flush=True)
            return result, batch
        except torch.cuda.OutOfMemoryError:
            fits = False
        except Exception as error:  # a variant that this PyTorch does not do
            print(f"{'whole' if whole else 'blocks'}, cudnn={cudnn}: {error}", flush=True)
        # Outside the handlers, which would keep the model alive.
        torch.cuda.empty_cache()
        if fits:
            return None
        batch //= 2
    raise SystemExit("not even one sequence fits")


def main():
    parser = argparse.ArgumentParser()
    for name, default in (("layers", 12), ("heads", 12), ("width", 768), ("batch", 64), ("context", 1024), ("steps", 20)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--device", default="cuda:0")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    batch, best, cudnn = args.batch, 0.0, False
    for variant in (False, True):
        if tried := try_variant(args, batch, False, variant):
            result, batch = tried
            if result["tokens_per_second"] > best:
                best, cudnn = result["tokens_per_second"], variant
        torch.cuda.empty_cache()
    whole = try_variant(args, batch, True, cudnn)
    if best == 0 and whole is None:
        raise SystemExit("nothing ran")


main()
