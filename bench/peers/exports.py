#!/usr/bin/env python3
"""Judges what `brrr export` writes as ONNX by other runtimes.

bench/peers/exports.py BRRR models           small models with random weights, all architectures and heads, opsets 17 to
    23, with and without a cache, at six pairs of batch and length (padding in front and behind): onnx.checker, then
    ONNX Runtime's and OpenVINO's results against transformers'.
bench/peers/exports.py BRRR suite SUITE WRITTEN    the cases of ONNX's backend suite that test_conformance has written again
    (BRRR_ONNX_WRITTEN=WRITTEN BRRR_TEST_LONG=1 build/release/tests/test_conformance): onnx.checker, and ONNX Runtime's
    results against those of the suite.

Needs numpy, onnx and onnxruntime; `models` also torch, transformers and openvino.
"""
import collections, glob, json, os, subprocess, sys, tempfile

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper

VOCABULARY = 97
PAIRS = [(1, 1), (1, 13), (3, 8), (5, 2), (8, 21), (2, 33)]
PASTS = [0, 4, 7, 1, 10, 3]
rng = np.random.default_rng(0)
ort.set_default_logger_severity(4)


def session(path):
    onnx.checker.check_model(path, full_check=True)
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"])


# -- models


def models():
    """name, model, what makes it; decoders first."""
    import transformers as t

    sizes = dict(vocab_size=VOCABULARY, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4)
    grouped = dict(sizes, num_key_value_heads=2, max_position_embeddings=64)
    encoder = dict(sizes, max_position_embeddings=64)
    causal = t.AutoModelForCausalLM
    ends = dict(bos_token_id=0, eos_token_id=0)
    yield "gpt2", causal, t.GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=48, n_layer=2, n_head=4, **ends)
    yield "llama", causal, t.LlamaConfig(**grouped)
    yield "qwen3", causal, t.Qwen3Config(**grouped, head_dim=16)
    yield "mistral", causal, t.MistralConfig(**grouped, sliding_window=6)
    yield "gpt_neox", causal, t.GPTNeoXConfig(**dict(encoder, hidden_size=64))
    yield "bert, masked tokens", t.AutoModelForMaskedLM, t.BertConfig(**encoder)
    yield "bert, classes", t.AutoModelForSequenceClassification, t.BertConfig(**encoder, num_labels=3)
    yield "bert, values", t.AutoModelForSequenceClassification, t.BertConfig(
        **encoder, num_labels=1, problem_type="regression"
    )
    yield "bert, token classes", t.AutoModelForTokenClassification, t.BertConfig(**encoder, num_labels=5)
    yield "bert, embedding", t.AutoModel, t.BertConfig(**encoder)
    yield "roberta, masked tokens", t.AutoModelForMaskedLM, t.RobertaConfig(
        **dict(encoder, max_position_embeddings=66, type_vocab_size=1)
    )
    yield "distilbert, classes", t.AutoModelForSequenceClassification, t.DistilBertConfig(
        vocab_size=VOCABULARY, dim=48, hidden_dim=80, n_layers=2, n_heads=4, max_position_embeddings=64, num_labels=3
    )
    yield "mpnet, masked tokens", t.AutoModelForMaskedLM, t.MPNetConfig(**encoder)


def write_tokenizer(folder):
    words = {("[UNK]" if i == 0 else f"w{i}"): i for i in range(VOCABULARY - 1)}
    parts = dict.fromkeys(["truncation", "padding", "normalizer", "post_processor", "decoder"])
    with open(f"{folder}/tokenizer.json", "w") as file:
        json.dump(
            dict(
                parts,
                version="1.0",
                added_tokens=[],
                pre_tokenizer={"type": "WhitespaceSplit"},
                model={"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"},
            ),
            file,
        )


def random_model(kind, config):
    import torch

    torch.manual_seed(0)
    model = kind.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():  # so that no layer is close to the identity
        for p in model.parameters():
            if p.dim() >= 2:
                p.mul_(4)
            else:
                p.add_(torch.randn_like(p) * 0.1)
    return model


def feed_and_reference(model, is_decoder, with_cache, batch, length, past):
    """The inputs of a file, what transformers gives, and which rows of it count."""
    import torch

    ids = rng.integers(2, VOCABULARY, (batch, past + length))
    mask = np.ones((batch, past + length), np.int64)
    if batch > 1 and past + length > 3:
        if is_decoder:
            mask[0, :2] = 0
        elif length > 3:
            mask[1, -2:] = 0
    feed = dict(input_ids=ids[:, past:], attention_mask=mask)
    if not is_decoder:
        if model.config.model_type == "bert":
            feed["token_type_ids"] = rng.integers(0, 2, (batch, length))
        with torch.no_grad():
            out = model(**{name: torch.tensor(x) for name, x in feed.items()})
        return feed, (out.logits if hasattr(out, "logits") else out.last_hidden_state).numpy(), mask == 1
    positions = np.maximum(np.cumsum(mask, 1) - 1, 0)
    feed["position_ids"] = positions[:, past:]

    def run(columns):
        with torch.no_grad():
            return model(
                input_ids=torch.tensor(ids[:, columns]),
                attention_mask=torch.tensor(mask[:, columns]),
                position_ids=torch.tensor(positions[:, columns]),
                use_cache=True,
            )

    if with_cache:
        heads = getattr(model.config, "num_key_value_heads", model.config.num_attention_heads)
        width = getattr(model.config, "head_dim", None) or model.config.hidden_size // model.config.num_attention_heads
        cache = run(slice(0, past)).past_key_values if past else None
        for layer in range(model.config.num_hidden_layers):
            for name in ("key", "value"):
                rows = np.zeros((batch, heads, past, width), np.float32)
                if cache is not None:
                    kept = getattr(cache.layers[layer], name + "s").numpy()
                    rows[:, :, past - kept.shape[2] :] = kept  # a window keeps the last rows
                feed[f"past_key_values.{layer}.{name}"] = rows
    return feed, run(slice(0, past + length)).logits[:, past:].numpy(), mask[:, past:] == 1


def difference(got, expected, rows):
    if got.ndim == 3:
        got, expected = got[rows], expected[rows]
    return np.abs(got - expected).max() / max(1, np.abs(expected).max())


def judge_models(brrr):
    import openvino
    import transformers

    transformers.logging.set_verbosity_error()
    core = openvino.Core()
    print("| model | opset | storage | ONNX Runtime | OpenVINO |\n|---|---|---|---|---|")
    for name, kind, config in models():
        model, is_decoder = random_model(kind, config), kind is transformers.AutoModelForCausalLM
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            write_tokenizer(folder)
            runs = [(opset, "fp32", cache) for opset in (17, 18, 21, 23) for cache in ([False, True] if is_decoder else [False])]
            for opset, dtype, cache in runs + [(18, "fp16", False), (18, "bf16", False)]:
                path = f"{folder}/m.onnx"
                command = [brrr, "export", folder, "--output", path, "--opset", str(opset), "--dtype", dtype]
                subprocess.run(command + ["--kv-cache"] * cache, check=True, capture_output=True)
                runtime = session(path)
                compiled = core.compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
                worst = [0.0, 0.0]
                for (batch, length), past in zip(PAIRS, PASTS):
                    past = past if cache else 0
                    feed, expected, rows = feed_and_reference(model, is_decoder, cache, batch, length, past)
                    outputs = runtime.run([runtime.get_outputs()[0].name], feed)[0], compiled(feed)[0]
                    worst = [max(w, difference(o, expected, rows)) for w, o in zip(worst, outputs)]
                title = name + (", cache" if cache else "")
                print(f"| {title} | {opset} | {dtype} | {worst[0]:.1e} | {worst[1]:.1e} |", flush=True)


# -- the suite


def read_tensor(path):
    tensor = onnx.TensorProto()
    with open(path, "rb") as file:
        tensor.ParseFromString(file.read())
    return numpy_helper.to_array(tensor)


def judge_case(case, written):
    """What ONNX Runtime says of one file: a verdict and the reason."""
    model = onnx.load(f"{case}/model.onnx")
    constants = {t.name for t in model.graph.initializer} if model.ir_version < 4 else set()
    inputs = [i.name for i in model.graph.input if i.name not in constants]
    outputs = [o.name for o in model.graph.output]
    data = f"{case}/{os.path.basename(written)[:-5]}"
    try:
        onnx.checker.check_model(written, full_check=True)
    except Exception as error:
        return "refused by the checker", error
    try:
        runtime = ort.InferenceSession(written, providers=["CPUExecutionProvider"])
        taken = {i.name for i in runtime.get_inputs()}
        feed = {n: read_tensor(f"{data}/input_{i}.pb") for i, n in enumerate(inputs) if n in taken}
        results = runtime.run(None, feed)
    except Exception as error:
        return "not run by ONNX Runtime", error
    for output, result in zip(runtime.get_outputs(), results):
        path = f"{data}/output_{outputs.index(output.name)}.pb"
        if not os.path.exists(path):
            continue
        expected = read_tensor(path)
        if result.shape != expected.shape:
            return "wrong", f"shape {result.shape} instead of {expected.shape}"
        try:
            np.testing.assert_allclose(result.astype(np.float64), expected.astype(np.float64), rtol=1e-3, atol=1e-5)
        except AssertionError as error:
            return "wrong", error
    return "right", ""


def judge_suite(suite, written):
    cases = {os.path.basename(path): path for path in glob.glob(f"{suite}/*/*")}
    verdicts = collections.Counter()
    for folder in sorted(os.listdir(written)):
        for path in sorted(glob.glob(f"{written}/{folder}/*.onnx")):
            verdict, reason = judge_case(cases[folder], path)
            verdicts[verdict] += 1
            if verdict != "right":
                print(f"{folder}\t{verdict}\t{' '.join(str(reason).split())[-160:]}")
    print(", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common()))


if sys.argv[2] == "models":
    judge_models(sys.argv[1])
else:
    judge_suite(sys.argv[3], sys.argv[4])
