#!/usr/bin/env python3
"""ResNet-50 on pictures of 224 x 224 in Brrr (fp32, bf16, int8), OpenVINO, ONNX Runtime and PyTorch, interleaved.

bench/peers/picture_inference.py BRRR [--rounds 5] [--batch 1 16] [--accuracy] [--noise 0.5] [--folder build/peers/resnet50]
BRRR is the program. Needs torch, torchvision, onnx, onnxruntime and openvino. The network is torchvision's with random weights
and running statistics of random pictures. Its head is fitted by least squares to 100 classes: smooth random pictures, of which
16 noisy copies each are seen. --accuracy: top-1 agreement of bf16 and int8 with fp32 on 200 other copies, whose noise is --noise (that of the copies seen is 0.5), and
the cosine of the logits. THREADS=N sets the threads (2). Each measurement is a process of its own, and each engine is first in turn. Prints medians
over the rounds, the spread, and the median of the ratios to OpenVINO in fp32 in the same round.
"""
import argparse, json, os, statistics, subprocess, sys, tempfile, time

import numpy as np

threads = int(os.environ.get("THREADS", 2))
classes, copies = 100, 16


def pictures(first, count, noise):
    """Noisy copies of the classes' pictures first % classes, ..., always the same ones for a number."""
    import torch

    prototypes = torch.randn(classes, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    numbers = torch.arange(first, first + count) % classes
    smooth = torch.nn.functional.interpolate(prototypes[numbers], size=224, mode="bicubic")
    shades = torch.randn(count, 3, 28, 28, generator=torch.Generator().manual_seed(2 + first))
    return smooth + noise * torch.nn.functional.interpolate(shades, size=224, mode="bilinear"), numbers


def make_network(folder):
    import torch, torchvision

    torch.manual_seed(0)
    torch.set_num_threads(threads)
    m = torchvision.models.resnet50(weights=None, num_classes=classes).train()
    with torch.no_grad():
        for i in range(4):
            m(pictures(i * 8, 8, 0.5)[0])
        m.eval()
        head, m.fc = m.fc, torch.nn.Identity()
        seen = [pictures(i * 25, 25, 0.5) for i in range(classes * copies // 25)]
        features = torch.cat([m(x) for x, _ in seen]).double()
        wanted = torch.nn.functional.one_hot(torch.cat([n for _, n in seen]), classes).double() * 8 - 0.08
        mean = features.mean(0)
        gram = (features - mean).T @ (features - mean)
        gram += torch.eye(len(gram)) * gram.trace() / len(gram) * 0.1
        weight = torch.linalg.solve(gram, (features - mean).T @ wanted).T
        head.weight.copy_(weight)
        head.bias.copy_(-weight @ mean)
        m.fc = head
    torch.save(m.state_dict(), f"{folder}/resnet50.pth")
    axes = dict(x={0: "batch"}, y={0: "batch"})
    torch.onnx.export(m, (torch.zeros(1, 3, 224, 224),), f"{folder}/resnet50.onnx", input_names=["x"], output_names=["y"],
                      dynamic_axes=axes, dynamo=False, opset_version=17)
    for batch in (1, 16):
        np.save(f"{folder}/x{batch}.npy", pictures(0, batch, 0.5)[0].numpy())


def open_vino(folder, x, precision):
    import openvino

    settings = dict(INFERENCE_NUM_THREADS=threads, PERFORMANCE_HINT="LATENCY", INFERENCE_PRECISION_HINT=precision)
    core = openvino.Core()
    model = core.read_model(f"{folder}/resnet50.onnx")
    model.reshape(list(x.shape))
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    return lambda: request.infer([x])


def onnx_runtime(folder, x, _):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(f"{folder}/resnet50.onnx", options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": x})


def pytorch(folder, x, precision):
    import torch, torchvision

    torch.set_num_threads(threads)
    m = torchvision.models.resnet50(weights=None, num_classes=classes)
    m.load_state_dict(torch.load(f"{folder}/resnet50.pth"))
    m.eval().to(memory_format=torch.channels_last)
    x = torch.from_numpy(x).contiguous(memory_format=torch.channels_last)

    def run():
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            return m(x)

    return run


peers = {"OpenVINO f32": open_vino, "OpenVINO bf16": open_vino, "ONNX Runtime f32": onnx_runtime, "PyTorch f32": pytorch}


def time_peer(name, folder, batch, repeats):
    run = peers[name](folder, np.load(f"{folder}/x{batch}.npy"), name.split()[-1])
    run()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        times.append((time.perf_counter() - begin) * 1e3)
    print(json.dumps(dict(ms=statistics.median(times))))


def brrr(program, folder, *arguments):
    command = [program, "run", f"{folder}/resnet50.onnx", "--threads", str(threads), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def measure(name, program, folder, batch, repeats):
    if name.startswith("Brrr"):
        text = brrr(program, folder, "--input", f"x={folder}/x{batch}.npy", "--precision", name.split()[-1], "--repeats",
                    str(repeats), "--json")
    else:
        command = [sys.executable, __file__, program, "--folder", folder, "--peer", name, str(batch), str(repeats)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return json.loads(text[text.index("{"):])["ms"]


def speed(program, folder, batch, rounds):
    names = ["Brrr fp32", "Brrr bf16", "Brrr int8", *peers]
    times = {name: [] for name in names}
    for first in range(rounds):
        for i in range(len(names)):
            name = names[(first + i) % len(names)]
            times[name].append(measure(name, program, folder, batch, 15 if batch == 1 else 3))
    print(f"\n| batch {batch} | ms | from | to | of OpenVINO f32 |\n|---|---|---|---|---|")
    for name, ms in times.items():
        ratio = statistics.median(a / b for a, b in zip(ms, times["OpenVINO f32"]))
        print(f"| {name} | {statistics.median(ms):.1f} | {min(ms):.1f} | {max(ms):.1f} | {ratio:.2f} |")
    both = [a / b for a, b in zip(times["Brrr bf16"], times["Brrr int8"])]
    print(f"\nBrrr: int8 {statistics.median(both):.2f} times as fast as bf16; load average {os.getloadavg()[0]:.1f}", flush=True)


def accuracy(program, folder, noise):
    logits, numbers = {}, []
    with tempfile.TemporaryDirectory() as work:
        for first in range(0, 200, 20):
            x, of = pictures(100000 + first, 20, noise)
            numbers += of.tolist()
            np.save(f"{work}/x.npy", x.numpy())
            for precision in ("fp32", "bf16", "int8"):
                brrr(program, folder, "--input", f"x={work}/x.npy", "--precision", precision, "--output-dir", work)
                logits.setdefault(precision, []).append(np.load(f"{work}/y.npy").astype(np.float64))
    logits = {name: np.concatenate(y) for name, y in logits.items()}
    right = np.array(numbers)
    exact = logits["fp32"]
    gaps = np.sort(exact, 1)[:, -1] - np.sort(exact, 1)[:, -2]
    print(f"\nnoise {noise}: fp32 is right on {np.mean(exact.argmax(1) == right):.1%} of 200 pictures; the median of its lead over the second "
          f"class is {np.median(gaps) / exact.std():.2f} standard deviations of the logits")
    print("\n| | top-1 as in fp32 | right | cosine, mean | least |\n|---|---|---|---|---|")
    for name, y in logits.items():
        cosine = (y * exact).sum(1) / np.linalg.norm(y, axis=1) / np.linalg.norm(exact, axis=1)
        print(f"| {name} | {np.mean(y.argmax(1) == exact.argmax(1)):.1%} | {np.mean(y.argmax(1) == right):.1%} | "
              f"{cosine.mean():.5f} | {cosine.min():.5f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("brrr")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 16])
    parser.add_argument("--accuracy", action="store_true")
    parser.add_argument("--noise", type=float, default=0.5)
    parser.add_argument("--folder", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../build/peers/resnet50"))
    parser.add_argument("--peer", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        name, batch, repeats = args.peer
        time_peer(name, args.folder, int(batch), int(repeats))
        sys.exit()
    if not os.path.exists(f"{args.folder}/resnet50.onnx"):
        os.makedirs(args.folder, exist_ok=True)
        make_network(args.folder)
    if args.accuracy:
        accuracy(args.brrr, args.folder, args.noise)
    for batch in args.batch:
        speed(args.brrr, args.folder, batch, args.rounds)
