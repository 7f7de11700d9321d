#!/usr/bin/env python3
"""Load and run times of ONNX files in Brrr, ONNX Runtime and OpenVINO, interleaved.

bench/peers/onnx_speed.py BRRR MODELS [ROUNDS [NAME]]: BRRR is the program, MODELS the folder of published models (silero,
magika, ppocr, minilm-int8, minilm), NAME a part of the names of those to run. Needs onnxruntime and numpy; openvino
where it is to stand beside them; torch and transformers to export minilm in f32. Load is from opening the file to the
first output, without the start of the process, the file in the page cache. Prints medians over the rounds and the
median of the ratios of Brrr's time to the better peer's in the same round.
"""
import json, math, os, statistics, subprocess, sys, tempfile, time

import numpy as np
import onnxruntime as ort

try:
    import openvino
except ImportError:
    openvino = None

brrr, models = sys.argv[1], sys.argv[2]
rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
only = sys.argv[4] if len(sys.argv) > 4 else ""
threads, repeats = 2, 20
rng = np.random.default_rng(0)


def floats(*shape):
    return (rng.standard_normal(shape) * 0.1).astype(np.float32)


def ids(high, *shape):
    return rng.integers(1, high, shape)


def cases():
    yield "silero/silero_vad.onnx", dict(input=floats(1, 576), state=floats(2, 1, 128), sr=np.array(16000))
    yield "magika/standard_v3_3/model.onnx", dict(bytes=ids(256, 1, 2048).astype(np.int32))
    for width in (160, 320, 640):
        yield "ppocr/ch_PP-OCRv4_rec_infer.onnx", dict(x=floats(1, 3, 48, width))
    yield "ppocr/ch_ppocr_mobile_v2.0_cls_infer.onnx", dict(x=floats(1, 3, 48, 192))
    for name, *shape in (("minilm-int8", 8, 32), ("minilm", 1, 16), ("minilm", 1, 128), ("minilm", 8, 32), ("minilm", 8, 128)):
        mask = np.ones(shape, np.int64)
        yield f"{name}/model.onnx", dict(input_ids=ids(30000, *shape), attention_mask=mask, token_type_ids=mask * 0)


def export_minilm(folder, path):
    """The encoder of the folder as PyTorch exports it: a file of opset 17 in f32."""
    import torch, transformers

    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = transformers.AutoModel.from_pretrained(folder).eval()

        def forward(self, input_ids, attention_mask, token_type_ids):
            return self.model(input_ids, attention_mask, token_type_ids, return_dict=True)[0]

    sample = torch.ones(2, 8, dtype=torch.int64)
    names = ["input_ids", "attention_mask", "token_type_ids"]
    axes = {name: {0: "batch", 1: "length"} for name in names + ["last_hidden_state"]}
    torch.onnx.export(Encoder(), (sample,) * 3, path, input_names=names, output_names=["last_hidden_state"],
                      dynamic_axes=axes, opset_version=17, dynamo=False)


def timed(make):
    """make() loads and returns a function that runs once; milliseconds to the first output and of a run, NaN where
    the peer does not take the file."""
    begin = time.perf_counter()
    try:
        run = make()
        run()
    except RuntimeError:
        return math.nan, math.nan
    load = (time.perf_counter() - begin) * 1e3
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        times.append((time.perf_counter() - begin) * 1e3)
    return load, statistics.median(times)


def onnx_runtime(path, inputs):
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, inputs)


def open_vino(path, inputs):
    """In f32, as the others: on some processors it would choose bf16 by itself."""
    settings = dict(INFERENCE_NUM_THREADS=threads, PERFORMANCE_HINT="LATENCY", INFERENCE_PRECISION_HINT="f32")
    request = openvino.Core().compile_model(path, "CPU", settings).create_infer_request()
    return lambda: request.infer(inputs)


def ours(path, files):
    command = [brrr, "run", path, "--json", "--repeats", str(repeats), "--threads", str(threads)]
    for name, file in files.items():
        command += ["--input", f"{name}={file}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    result = json.loads(done.stdout)
    return result["load_ms"], result["ms"]


def columns(rows, digits):
    ratio = statistics.median(row[0] / np.nanmin(row[1:]) for row in rows)
    medians = [statistics.median(c) for c in zip(*rows)]
    return " | ".join("-" if math.isnan(m) else f"{m:.{digits}f}" for m in medians) + f" | {ratio:.2f}"


peers = {"ONNX Runtime": onnx_runtime} | ({"OpenVINO": open_vino} if openvino else {})
print(f"| model | load, ms | {' | '.join(peers)} | ratio | run, ms | {' | '.join(peers)} | ratio |")
print("|---" * (2 * len(peers) + 5) + "|")
for name, inputs in cases():
    if only not in name:
        continue
    path = os.path.join(models, name)
    with tempfile.TemporaryDirectory() as folder:
        if name == "minilm/model.onnx" and os.path.exists(os.path.join(models, "minilm", "config.json")):
            path = os.path.join(folder, "model.onnx")
            export_minilm(os.path.join(models, "minilm"), path)
        if not os.path.exists(path):
            continue
        known = {i.name for i in ort.InferenceSession(path).get_inputs()}
        inputs = {k: v for k, v in inputs.items() if k in known}
        files = {k: os.path.join(folder, k + ".npy") for k in inputs}
        for k, v in inputs.items():
            np.save(files[k], v)
        loads, runs = [], []
        for _ in range(rounds):
            row = [ours(path, files)] + [timed(lambda: make(path, inputs)) for make in peers.values()]
            loads.append([load for load, _ in row])
            runs.append([run for _, run in row])
    shape = "x".join(str(n) for n in max(inputs.values(), key=lambda v: v.size).shape)
    title = name.split("/")[0] if name.endswith("/model.onnx") else os.path.basename(name)
    print(f"| {title} {shape} | {columns(loads, 1)} | {columns(runs, 2)} |", flush=True)
