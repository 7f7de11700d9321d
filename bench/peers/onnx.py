#!/usr/bin/env python3
"""Load and run times of ONNX files in Brrr and ONNX Runtime, interleaved.

bench/peers/onnx.py BRRR MODELS [ROUNDS]: BRRR is the program, MODELS the folder of published models (silero, magika,
ppocr, tashkeel, minilm-int8). Needs onnxruntime and numpy. Load is from opening the file to the first output, without
the start of the process, the file in the page cache. Prints medians over the rounds and Brrr's ratio to the peer.
"""
import json, os, statistics, subprocess, sys, tempfile, time
import numpy as np
import onnxruntime as ort

brrr, models = sys.argv[1], sys.argv[2]
rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
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
    mask = np.ones((8, 32), np.int64)
    yield "minilm-int8/model.onnx", dict(input_ids=ids(30000, 8, 32), attention_mask=mask, token_type_ids=mask * 0)


def peer(path, inputs):
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    begin = time.perf_counter()
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    session.run(None, inputs)
    load = (time.perf_counter() - begin) * 1e3
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        session.run(None, inputs)
        times.append((time.perf_counter() - begin) * 1e3)
    return load, statistics.median(times)


def ours(path, files):
    command = [brrr, "run", path, "--json", "--repeats", str(repeats), "--threads", str(threads)]
    for name, file in files.items():
        command += ["--input", f"{name}={file}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    result = json.loads(done.stdout)
    return result["load_ms"], result["ms"]


print("| model | load, ms | ONNX Runtime | ratio | run, ms | ONNX Runtime | ratio |")
print("|---|---|---|---|---|---|---|")
for name, inputs in cases():
    path = os.path.join(models, name)
    if not os.path.exists(path):
        continue
    known = {i.name for i in ort.InferenceSession(path).get_inputs()}
    inputs = {k: v for k, v in inputs.items() if k in known}
    with tempfile.TemporaryDirectory() as folder:
        files = {k: os.path.join(folder, k + ".npy") for k in inputs}
        for k, v in inputs.items():
            np.save(files[k], v)
        rows = []
        for _ in range(rounds):
            rows.append(ours(path, files) + peer(path, inputs))
    load, run, peer_load, peer_run = (statistics.median(column) for column in zip(*rows))
    shape = "x".join(str(n) for n in max(inputs.values(), key=lambda v: v.size).shape)
    print(f"| {os.path.basename(name)} {shape} | {load:.1f} | {peer_load:.1f} | {load / peer_load:.2f} "
          f"| {run:.2f} | {peer_run:.2f} | {run / peer_run:.2f} |", flush=True)
