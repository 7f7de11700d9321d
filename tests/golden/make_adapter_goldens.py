#!/usr/bin/env python3
"""Golden numbers of low-rank adapters from Hugging Face's PEFT over small random models: the files
of the adapter as save_pretrained writes them, logits and loss with it, and the gradient of every
parameter that it trains. Needs torch, transformers, peft (the versions below) and safetensors; run
it where they are installed:

    python tests/golden/make_adapter_goldens.py [CASE... | --judge BASE ADAPTER LOGITS]

It writes a file for each case into tests/golden/adapters/. Weights are stored as bf16 numbers in
float32, so that both sides start from the same bits; PEFT computes in float64. --judge loads a model and an adapter that Brrr
wrote, and compares PEFT's logits with those in a safetensors file of "tokens" and "logits".
"""

import json
import pathlib
import sys
import tempfile

import numpy
import peft
import torch
import transformers
from safetensors.numpy import load_file, save_file

TRANSFORMERS, PEFT = "5.24.0", "0.21.2"
COMMON = dict(vocab_size=41, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
              num_attention_heads=2, max_position_embeddings=24, bos_token_id=1, eos_token_id=2)
GPT2 = dict(vocab_size=41, n_positions=24, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2)
LLAMA = dict(COMMON, num_key_value_heads=1, rms_norm_eps=1e-5, tie_word_embeddings=False,
             rope_parameters=dict(rope_type="default", rope_theta=500.0))
BERT = dict(COMMON, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
MODERNBERT = dict(COMMON, num_labels=3, pad_token_id=0, cls_token_id=1, sep_token_id=2,
                  global_attn_every_n_layers=2, local_attention=8, embedding_dropout=0.0,
                  attention_dropout=0.0, mlp_dropout=0.0, classifier_dropout=0.0,
                  classifier_pooling="mean", reference_compile=False)
RESNET = dict(num_channels=3, embedding_size=8, hidden_sizes=[16, 24], depths=[2, 1], hidden_act="relu",
              layer_type="bottleneck", downsample_in_first_stage=True, num_labels=3)
SIDE = 16
NEOX = dict(COMMON, rotary_pct=0.5, tie_word_embeddings=False)
BATCH, LENGTH = 2, 11

CASES = {
    "gpt2": ("gpt2", "lm", GPT2, dict(r=4, lora_alpha=8, target_modules="all-linear")),
    "gpt2_patterns": ("gpt2", "lm", GPT2, dict(
        r=4, lora_alpha=8, target_modules=["c_attn", "mlp.c_proj"], use_rslora=True,
        rank_pattern={"mlp.c_proj": 2, "^transformer.h.1.attn.c_attn": 5},
        alpha_pattern={"c_attn": 3, "h.0.mlp.c_proj": 16})),
    "llama": ("llama", "lm", LLAMA, dict(r=3, lora_alpha=6, target_modules="all-linear")),
    "llama_saved": ("llama", "lm", LLAMA, dict(
        r=2, lora_alpha=1, target_modules=r".*\.self_attn\.(q|v)_proj",
        modules_to_save=["lm_head"])),
    # A trained copy of one of two tied matrices unties them.
    "llama_tied_table": ("llama", "lm", dict(LLAMA, tie_word_embeddings=True), dict(
        r=2, lora_alpha=4, target_modules=["v_proj"], modules_to_save=["embed_tokens"])),
    "llama_tied_head": ("llama", "lm", dict(LLAMA, tie_word_embeddings=True), dict(
        r=2, lora_alpha=4, target_modules=["v_proj"], modules_to_save=["lm_head"])),
    "llama_dora": ("llama", "lm", LLAMA, dict(r=3, lora_alpha=6, use_dora=True,
                                              target_modules=["q_proj", "down_proj"])),
    "gpt2_dora": ("gpt2", "lm", GPT2, dict(r=3, lora_alpha=6, use_dora=True,
                                           target_modules=["c_attn", "c_fc"])),
    "gpt_neox": ("gpt_neox", "lm", NEOX, dict(r=2, lora_alpha=4,
                                              target_modules=["query_key_value", "dense"])),
    "bert_classes": ("bert", "classes", dict(BERT, num_labels=3),
                     dict(r=4, lora_alpha=8, target_modules=["query", "value", "output.dense"])),
    "bert_trunk": ("bert", "trunk", BERT, dict(r=4, lora_alpha=8,
                                               target_modules=["query", "intermediate.dense"])),
    # The dense layer in front of the classifier learns in pre-training: PEFT adapts it, and trains
    # the classifier alone as a whole.
    "modernbert_classes": ("modernbert", "classes", MODERNBERT,
                           dict(r=3, lora_alpha=6, target_modules="all-linear")),
    "modernbert_over_masked": ("modernbert", "classes", MODERNBERT,
                               dict(r=3, lora_alpha=6, target_modules=["Wqkv", "head.dense"])),
    "modernbert_saved_head": ("modernbert", "classes", MODERNBERT,
                              dict(r=2, lora_alpha=6, target_modules=["Wo"],
                                   modules_to_save=["head", "classifier"])),
    # adapter_model.bin, as PEFT wrote it before safetensors.
    "llama_pickle": ("llama", "lm", LLAMA, dict(r=2, lora_alpha=4, target_modules=["q_proj"],
                                                modules_to_save=["lm_head"])),
    # The 1 x 1 convolutions of the bottlenecks and shortcuts, of which one has stride 2.
    "resnet": ("resnet", "pictures", RESNET, dict(
        r=3, lora_alpha=6, modules_to_save=["classifier"],
        target_modules=r".*(layer\.[02]|shortcut)\.convolution")),
    "resnet_dora": ("resnet", "pictures", RESNET, dict(
        r=3, lora_alpha=6, use_dora=True, target_modules=r".*layer\.[02]\.convolution")),
}
CLASSES = {"lm": (transformers.AutoModelForCausalLM, "CAUSAL_LM"),
           "classes": (transformers.AutoModelForSequenceClassification, "SEQ_CLS"),
           "trunk": (transformers.AutoModel, "FEATURE_EXTRACTION"),
           "pictures": (transformers.AutoModelForImageClassification, None)}


def randomise(named, deviation):
    with torch.no_grad():
        for key, p in named:
            values = torch.randn(p.shape) * (deviation if p.dim() > 1 else 0.2)
            if "norm" in key.lower() or "ln_" in key or "magnitude" in key:
                values += 1
            p.copy_(values.bfloat16().float())


def make(name, case):
    model_type, kind, sizes, lora = case
    config = transformers.AutoConfig.for_model(model_type, **sizes)
    torch.manual_seed(sum(map(ord, name)))
    cls, task = CLASSES[kind]
    attention = {} if kind == "pictures" else dict(attn_implementation="eager")
    base = cls.from_config(config, **attention).float()
    config.architectures = [type(base).__name__]
    # Larger weights make the attention of BERT so sharp that its gradients are sums that cancel.
    deviation = 0.1 if model_type == "bert" else 0.25
    randomise(base.named_parameters(), deviation)
    out = {"weights/" + key: p.detach().numpy().copy() for key, p in base.named_parameters()
           if kind != "trunk" or "pooler" not in key}
    for key, buffer in base.named_buffers() if kind == "pictures" else []:
        if key.endswith(("mean", "var")):
            buffer.copy_((torch.rand(buffer.shape) + 0.5).bfloat16().float())
        out["weights/" + key] = buffer.numpy().copy()
    if name.endswith("over_masked"):  # the base is a masked language model
        config.architectures = ["ModernBertForMaskedLM"]
        del out["weights/classifier.weight"], out["weights/classifier.bias"]
        out["weights/decoder.bias"] = numpy.zeros(config.vocab_size, numpy.float32)
    lora = dict(lora, fan_in_fan_out=model_type == "gpt2")
    model = peft.get_peft_model(base, peft.LoraConfig(task_type=task, **lora)).eval()
    trained = [(key, p) for key, p in model.named_parameters() if p.requires_grad]
    randomise(trained, deviation)

    rng = numpy.random.default_rng(sum(map(ord, name)))
    if kind == "pictures":
        given = {"pixels": rng.normal(size=(BATCH, 3, SIDE, SIDE)).astype(numpy.float32)}
        ids = torch.from_numpy(given["pixels"]).double()
    else:
        given = {"tokens": rng.integers(3, config.vocab_size, (BATCH, LENGTH)).astype(numpy.int32)}
        ids = torch.from_numpy(given["tokens"].astype(numpy.int64))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        text = json.loads((pathlib.Path(folder) / "adapter_config.json").read_text())
        for key, value in load_file(pathlib.Path(folder) / "adapter_model.safetensors").items():
            out["adapter/" + key] = value
        if name.endswith("pickle"):
            model.save_pretrained(folder, safe_serialization=False)
            data = (pathlib.Path(folder) / "adapter_model.bin").read_bytes()
            out["pickle"] = numpy.frombuffer(data, numpy.uint8)
    model.double()
    if kind == "lm":
        targets = rng.integers(0, config.vocab_size, (BATCH, LENGTH))
        logits = model(ids).logits
        loss = torch.nn.functional.cross_entropy(
            logits.reshape(-1, config.vocab_size).double(), torch.from_numpy(targets).reshape(-1))
    elif kind in ("classes", "pictures"):
        targets = rng.integers(0, 3, BATCH)
        logits = model(ids).logits
        loss = torch.nn.functional.cross_entropy(logits.double(), torch.from_numpy(targets))
    else:
        targets = numpy.zeros(BATCH)
        logits = model(ids).last_hidden_state.mean(1)
        loss = logits.sum()
    loss.backward()
    out |= given | {"targets": targets.astype(numpy.int32),
                    "logits": logits.detach().float().numpy(),
                    "loss": loss.detach().numpy().reshape(1)}
    for key, p in trained:
        out["grads/" + key.replace(".default", "").replace("modules_to_save.", "")] = p.grad.float().numpy()
    path = pathlib.Path(__file__).parent / "adapters" / f"{name}.safetensors"
    save_file(out, path, metadata={"config": config.to_json_string(use_diff=False), "kind": kind,
                                   "adapter_config": json.dumps(text), "peft": peft.__version__})
    print(path.name, path.stat().st_size, "bytes; loss", round(loss.item(), 5))


def judge(base, adapter, logits):
    given = load_file(logits)
    config = json.loads((pathlib.Path(adapter) / "adapter_config.json").read_text())
    cls = {task: cls for cls, task in CLASSES.values()}.get(
        config["task_type"], transformers.AutoModelForCausalLM)
    model = peft.PeftModel.from_pretrained(cls.from_pretrained(base, dtype=torch.float32), adapter)
    with torch.no_grad():
        theirs = model.eval()(torch.from_numpy(given["tokens"].astype(numpy.int64))).logits.numpy()
    gap = numpy.linalg.norm(theirs - given["logits"]) / numpy.linalg.norm(theirs)
    print("logits differ by", gap)


if __name__ == "__main__":
    assert transformers.__version__ == TRANSFORMERS, transformers.__version__
    assert peft.__version__ == PEFT, peft.__version__
    torch.use_deterministic_algorithms(True)
    if sys.argv[1:2] == ["--judge"]:
        judge(*sys.argv[2:])
    else:
        for key in sys.argv[1:] or CASES:
            make(key, CASES[key])
