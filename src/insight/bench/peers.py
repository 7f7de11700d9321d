"""Runs one other runtime for `brrr bench inference`, which starts this script and keeps it alive.

Requests are JSON objects, one per line of standard input; each is answered by one line:
  {"do": "packages"}                     -> {"packages": {"torch": "2.9.0", "onnxruntime": null, ...}}
  {"do": "export", "model", "file", ...} -> {"done": true}
  {"do": "open", "runtime", ...}         -> {"done": true}
  {"do": "run", "set", "rows": [[0, 3], [1, 2]], "vectors": [0, 2]} -> {"ms": 12.3, "vectors": [[...], ...]}
What goes wrong is answered by {"error": "..."}. Arrays are padded before the clock starts; the encoder and
pooling run while it does. sentence-transformers takes texts, so its time includes its tokenizer.
"""
import ctypes
import importlib.metadata
import importlib.util
import json
import os
import signal
import sys
import time

# Libraries may print: only answers go to what was standard output.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that started this, which ends it
try:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the program that started this
except (AttributeError, OSError):
    pass

PACKAGES = {"torch": "torch", "transformers": "transformers", "onnx": "onnx", "onnxruntime": "onnxruntime",
            "openvino": "openvino", "sentence_transformers": "sentence-transformers"}
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def packages():
    found = {}
    for module, name in PACKAGES.items():
        found[name] = None
        if importlib.util.find_spec(module):
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                found[name] = "unknown version"
    return found


def pooled_encoder(setup):
    """The encoder of the folder with its pooling, as a module of the inputs."""
    import torch
    import transformers

    torch.set_num_threads(setup["threads"])
    torch.set_num_interop_threads(1)
    torch.manual_seed(1)
    load = transformers.AutoModel.from_pretrained
    try:
        model = load(setup["model"], local_files_only=True, add_pooling_layer=False)
    except TypeError:
        model = load(setup["model"], local_files_only=True)

    class Pooled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids, attention_mask, token_type_ids=None):
            types = {} if token_type_ids is None else dict(token_type_ids=token_type_ids)
            x = self.model(input_ids=input_ids, attention_mask=attention_mask, **types)[0]
            if setup["pooling"] == "cls":
                return x[:, 0]
            weights = attention_mask.unsqueeze(-1).to(x.dtype)
            return (x * weights).sum(1) / weights.sum(1)

    return Pooled().eval()


def sample_inputs(setup):
    import torch

    ids = torch.randint(0, setup["vocabulary"], (3, 17))
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    return (ids, mask, torch.zeros_like(ids))[: 3 if setup["types"] else 2]


def export(setup):
    import torch

    module, inputs = pooled_encoder(setup), sample_inputs(setup)
    names = list(INPUTS[: len(inputs)])
    with torch.no_grad():
        torch.onnx.export(module, inputs, setup["file"], input_names=names, output_names=["vectors"], opset_version=17,
                          dynamic_axes={name: {0: "batch", 1: "length"} for name in names}, dynamo=False)
    return {"done": True}


def open_pytorch(setup):
    import torch

    module = pooled_encoder(setup)
    if setup["precision"] == "bf16":
        module = module.to(torch.bfloat16)
    if setup["runtime"] == "torchscript":
        with torch.no_grad():
            module = torch.jit.freeze(torch.jit.trace(module, sample_inputs(setup), check_trace=False))
    if setup["runtime"] == "torch.compile":
        module = torch.compile(module, dynamic=True)

    def run(batch):
        return module(*batch)

    def prepared(arrays):
        return [torch.from_numpy(array) for array in arrays]

    def guarded(work):
        # Frozen scripts forbid inference tensors; both switch gradients off.
        with torch.no_grad() if setup["runtime"] == "torchscript" else torch.inference_mode():
            return work()

    return run, prepared, lambda y: y.float().numpy(), guarded


def open_onnxruntime(setup):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = setup["threads"]
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(setup["file"], options, providers=["CPUExecutionProvider"])

    def prepared(arrays):
        return dict(zip(INPUTS, arrays))

    return lambda batch: session.run(None, batch)[0], prepared, lambda y: y, lambda work: work()


def open_openvino(setup):
    import openvino

    core = openvino.Core()
    how = {"INFERENCE_NUM_THREADS": setup["threads"], "PERFORMANCE_HINT": "LATENCY",
           "INFERENCE_PRECISION_HINT": {"fp32": "f32", "bf16": "bf16"}[setup["precision"]]}
    request = core.compile_model(core.read_model(setup["file"]), "CPU", how).create_infer_request()
    return (lambda batch: request.infer(batch)[0].copy(), lambda arrays: dict(zip(INPUTS, arrays)), lambda y: y,
            lambda work: work())


class Encoder:
    """A runtime that takes arrays of token ids, padded to the longest row of a batch."""

    def __init__(self, setup, sets):
        opener = {"onnxruntime": open_onnxruntime, "openvino": open_openvino}.get(setup["runtime"], open_pytorch)
        self.run_batch, self.prepared, self.as_array, self.guarded = opener(setup)
        self.setup, self.sets = setup, sets

    def arrays(self, rows, texts):
        import numpy

        lengths = [len(texts["ids"][row]) for row in rows]
        ids = numpy.full((len(rows), max(lengths)), self.setup["pad"], numpy.int64)
        mask, types = numpy.zeros_like(ids), numpy.zeros_like(ids)
        for i, row in enumerate(rows):
            ids[i, : lengths[i]] = texts["ids"][row]
            mask[i, : lengths[i]] = 1
        return [ids, mask, types][: 3 if self.setup["types"] else 2]

    def run(self, request):
        texts = self.sets[request["set"]]
        batches = [self.prepared(self.arrays(rows, texts)) for rows in request["rows"]]

        def work():
            start = time.perf_counter()
            results = [self.run_batch(batch) for batch in batches]
            return 1e3 * (time.perf_counter() - start), results

        ms, results = self.guarded(work)
        wanted = set(request["vectors"])
        vectors = {row: self.as_array(y)[i].tolist() for rows, y in zip(request["rows"], results)
                   for i, row in enumerate(rows) if row in wanted}
        return {"ms": ms, "vectors": [vectors[row] for row in request["vectors"]]}


class SentenceTransformer:
    """encode() of whole texts, which tokenises and sorts them itself."""

    def __init__(self, setup, sets):
        import sentence_transformers
        import torch

        torch.set_num_threads(setup["threads"])
        self.model = sentence_transformers.SentenceTransformer(setup["model"], device="cpu", local_files_only=True)
        self.model.max_seq_length = setup["longest"]
        self.sets = sets

    def run(self, request):
        texts, rows = self.sets[request["set"]]["texts"], [row for batch in request["rows"] for row in batch]
        size = max(len(batch) for batch in request["rows"])
        start = time.perf_counter()
        vectors = self.model.encode([texts[row] for row in rows], batch_size=size, show_progress_bar=False)
        ms = 1e3 * (time.perf_counter() - start)
        return {"ms": ms, "vectors": [vectors[rows.index(row)].tolist() for row in request["vectors"]]}


def main():
    runtime = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "packages":
                answer = {"packages": packages()}
            elif request["do"] == "export":
                answer = export(request)
            elif request["do"] == "open":
                with open(request["texts"]) as file:
                    sets = json.load(file)
                of_texts = request["runtime"] == "sentence-transformers"
                runtime = (SentenceTransformer if of_texts else Encoder)(request, sets)
                answer = {"done": True}
            else:
                answer = runtime.run(request)
        except Exception as error:
            lines = str(error).strip().splitlines()
            answer = {"error": f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")[:300]}
        print(json.dumps(answer), file=answers, flush=True)


main()
