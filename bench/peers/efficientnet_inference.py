#!/usr/bin/env python3
"""EfficientNet-Lite0 on one picture of 224 x 224 in fp32: Brrr, OpenVINO, ONNX Runtime and PyTorch, interleaved.

bench/peers/efficientnet_inference.py BRRR FILE.pth [--rounds 5] [--repeats 40]
BRRR is the program, FILE.pth efficientnet-lite0-57934424.pth. Needs torch, onnxruntime and openvino. The peers run the ONNX file that
Brrr exports, PyTorch the module of tests/golden/make_efficientnet_goldens.py with channels first and last. THREADS=N sets the
threads (2). Each round measures each engine, each first in turn; prints the medians over the rounds and the median of the ratios
to OpenVINO in the same round.
"""
import argparse, copy, json, os, pathlib, statistics, subprocess, sys, tempfile, time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"))
threads = int(os.environ.get("THREADS", 2))


def median_ms(call, repeats):
    for _ in range(5):
        call()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def main():
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("brrr")
    args.add_argument("weights")
    args.add_argument("--rounds", type=int, default=5)
    args.add_argument("--repeats", type=int, default=40)
    o = args.parse_args()
    import onnxruntime, openvino, torch
    from make_efficientnet_goldens import DEFAULTS, LITE, EfficientNet

    torch.set_num_threads(threads)
    folder = tempfile.mkdtemp()
    x = np.random.default_rng(0).normal(size=(1, 3, 224, 224)).astype(np.float32)
    np.save(f"{folder}/x.npy", x)
    file = f"{folder}/lite0.onnx"
    subprocess.run([o.brrr, "export", "--model", o.weights, "--output", file], check=True, stderr=subprocess.DEVNULL)
    model = openvino.Core().read_model(file)
    model.reshape({"pixel_values": [1, 3, 224, 224]})
    vino = openvino.Core().compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32",
                                                        "PERFORMANCE_HINT": "LATENCY"}).create_infer_request()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    ort = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    net, pixels = EfficientNet(dict(DEFAULTS, **LITE)).eval(), torch.from_numpy(x)
    last = copy.deepcopy(net).to(memory_format=torch.channels_last)
    pixels_last = pixels.to(memory_format=torch.channels_last)

    def ours(precision):
        out = subprocess.run([o.brrr, "run", o.weights, "--input", f"pixel_values={folder}/x.npy", "--repeats", str(o.repeats), "--json",
                              "--threads", str(threads), "--precision", precision], check=True, capture_output=True, text=True)
        return json.loads(out.stdout)["ms"]

    engines = {
        "Brrr fp32": lambda: ours("fp32"),
        "Brrr bf16": lambda: ours("bf16"),
        "Brrr int8": lambda: ours("int8"),
        "OpenVINO f32": lambda: median_ms(lambda: vino.infer({"pixel_values": x}), o.repeats),
        "ONNX Runtime f32": lambda: median_ms(lambda: ort.run(None, {"pixel_values": x}), o.repeats),
        "PyTorch f32": lambda: median_ms(lambda: net(pixels), o.repeats),
        "PyTorch f32, channels last": lambda: median_ms(lambda: last(pixels_last), o.repeats),
    }
    times = {name: [] for name in engines}
    names = list(engines)
    with torch.inference_mode():
        for i in range(o.rounds):
            for name in names[i % len(names):] + names[:i % len(names)]:
                times[name].append(engines[name]())
    for name, list_ in times.items():
        ratios = [a / b for a, b in zip(list_, times["OpenVINO f32"])]
        print(f"{name:28} {statistics.median(list_):7.2f} ms ({min(list_):.2f} to {max(list_):.2f})  "
              f"{statistics.median(ratios):.2f} of OpenVINO ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
