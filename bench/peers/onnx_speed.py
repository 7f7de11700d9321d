#!/usr/bin/env python3
"""Load and run times of ONNX files in Brrr, ONNX Runtime and OpenVINO, interleaved.

bench/peers/onnx_speed.py BRRR MODELS [ROUNDS [NAME]]: BRRR is the program, MODELS the folder of published models (silero,
magika, ppocr, minilm-int8, minilm), NAME a part of the names of those to run. Needs onnxruntime and numpy; openvino
where it is to stand beside them; torch and transformers to export minilm in f32. Each measurement is a process of its
own, so that no engine's threads or memory weigh on another's, and each engine is first in turn. Load is from opening
the file to the first output, without the start of the process and the import of the peer, the file in the page cache.
Prints medians over the rounds and the median of the ratios of Brrr's time to the better peer's in the same round.
"""
import json, math, os, statistics, subprocess, sys, tempfile, time

import numpy as np

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


def onnx_runtime(path, inputs):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    begin = time.perf_counter()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return begin, lambda: session.run(None, inputs)


def open_vino(path, inputs):
    """In f32, as the others: on some processors it would choose bf16 by itself."""
    import openvino

    settings = dict(INFERENCE_NUM_THREADS=threads, PERFORMANCE_HINT="LATENCY", INFERENCE_PRECISION_HINT="f32")
    begin = time.perf_counter()
    request = openvino.Core().compile_model(path, "CPU", settings).create_infer_request()
    return begin, lambda: request.infer(inputs)


peers = {"ONNX Runtime": onnx_runtime, "OpenVINO": open_vino}


def time_peer(peer, path, files):
    """Prints the milliseconds to the first output and of a run."""
    inputs = {name: np.load(file) for name, file in files.items()}
    begin, run = peers[peer](path, inputs)
    run()
    load = (time.perf_counter() - begin) * 1e3
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        times.append((time.perf_counter() - begin) * 1e3)
    print(json.dumps(dict(load_ms=load, ms=statistics.median(times))))


def times_of(command):
    """Load and run, in milliseconds, of a process that prints them; None where it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stderr.strip().split("\n")[-1], file=sys.stderr)
        return None
    result = json.loads(done.stdout[done.stdout.index("{"):])
    return result["load_ms"], result["ms"]


def ours(brrr, path, files):
    command = [brrr, "run", path, "--json", "--repeats", str(repeats), "--threads", str(threads)]
    for name, file in files.items():
        command += ["--input", f"{name}={file}"]
    return times_of(command) or sys.exit(1)


def theirs(peer, path, files):
    """NaN where the peer is not installed or does not take the file."""
    return times_of([sys.executable, __file__, "--peer", peer, path, json.dumps(files)]) or (math.nan, math.nan)


def columns(rows, digits):
    ratio = statistics.median(row[0] / np.nanmin(row[1:]) for row in rows)
    medians = [statistics.median(c) for c in zip(*rows)]
    return " | ".join("-" if math.isnan(m) else f"{m:.{digits}f}" for m in medians) + f" | {ratio:.2f}"


def main(brrr, models, rounds=5, only=""):
    rounds = int(rounds)
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
                os.sync()
            if not os.path.exists(path):
                continue
            known = {entry["name"] for entry in json.loads(subprocess.check_output([brrr, "run", path, "--json"]))["inputs"]}
            inputs = {k: v for k, v in inputs.items() if k in known}
            files = {k: os.path.join(folder, k + ".npy") for k in inputs}
            for k, v in inputs.items():
                np.save(files[k], v)
            loads, runs = [], []
            timed = [lambda: ours(brrr, path, files)] + [lambda peer=peer: theirs(peer, path, files) for peer in peers]
            for first in range(rounds):
                row = [None] * len(timed)
                for i in range(len(timed)):
                    turn = (first + i) % len(timed)
                    row[turn] = timed[turn]()
                loads.append([load for load, _ in row])
                runs.append([run for _, run in row])
        shape = "x".join(str(n) for n in max(inputs.values(), key=lambda v: v.size).shape)
        title = name.split("/")[0] if name.endswith("/model.onnx") else os.path.basename(name)
        print(f"| {title} {shape} | {columns(loads, 1)} | {columns(runs, 2)} |", flush=True)


if sys.argv[1:2] == ["--peer"]:
    time_peer(sys.argv[2], sys.argv[3], json.loads(sys.argv[4]))
else:
    main(*sys.argv[1:])
