#!/usr/bin/env python3
"""Golden numbers of small random encoders, and of causal models that tell classes of texts, from
Hugging Face's transformers: logits, loss and every gradient, for each model type and each head, and
embeddings for each pooling. Needs torch, transformers (the version below) and safetensors; run it
where they are installed:

    python tests/golden/make_encoder_goldens.py [CASE...]

It writes a file for each case into tests/golden/encoders/. Weights are stored as bf16 numbers in
float32, so that both sides start from the same bits. Rows are padded to one length; what stands in
the padding of "logits" is zero, because nobody reads it.
"""

import pathlib
import sys

import numpy
import torch
import transformers
from safetensors.numpy import save_file

TRANSFORMERS = "5.24.0"
SIZES = dict(vocab_size=41, max_position_embeddings=24, initializer_range=0.02)
COMMON = dict(SIZES, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
              num_attention_heads=2, layer_norm_eps=1e-6)
GPT2 = dict(vocab_size=41, n_positions=24, n_embd=16, n_layer=2, n_head=2)
LLAMA = dict(COMMON, num_key_value_heads=1, rms_norm_eps=1e-5, rope_theta=500.0)
# Causal models tell a text by its last token, which they find by the token of padding.
CAUSAL = dict(bos_token_id=1, eos_token_id=2, pad_token_id=0)
# Texts are longer than the windows; ids of special tokens lie outside the small vocabulary.
MODERN = dict(SIZES, hidden_size=16, intermediate_size=24, num_hidden_layers=5,
              num_attention_heads=2, norm_eps=1e-6, local_attention=4, pad_token_id=0,
              bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
DISTIL = dict(SIZES, dim=16, hidden_dim=24, n_layers=2, n_heads=2)
LENGTHS = [13, 5, 9, 1]
LENGTH = 13
UNSCORED_ROW = 2  # for heads that score whole rows

CASES = {
    "bert_masked": dict(model_type="bert", head="masked"),
    "bert_masked_relu": dict(model_type="bert", head="masked", hidden_act="relu",
                             tie_word_embeddings=False),
    "bert_classes": dict(model_type="bert", head="classes", num_labels=3),
    "bert_values": dict(model_type="bert", head="values", num_labels=2),
    "bert_tags": dict(model_type="bert", head="tags", num_labels=5),
    "bert_mean": dict(model_type="bert", head="embedding", pooling="mean", normalize=True),
    "bert_cls": dict(model_type="bert", head="embedding", pooling="cls"),
    "roberta_masked": dict(model_type="roberta", head="masked", type_vocab_size=1),
    "roberta_classes": dict(model_type="roberta", head="classes", num_labels=2, type_vocab_size=1),
    "roberta_tags": dict(model_type="roberta", head="tags", num_labels=3, type_vocab_size=2),
    "xlm_roberta_masked": dict(model_type="xlm-roberta", head="masked", type_vocab_size=1),
    "xlm_roberta_values": dict(model_type="xlm-roberta", head="values", num_labels=1,
                               type_vocab_size=1),
    "distilbert_masked": dict(model_type="distilbert", head="masked"),
    "distilbert_classes": dict(model_type="distilbert", head="classes", num_labels=2),
    "distilbert_tags": dict(model_type="distilbert", head="tags", num_labels=4),
    "distilbert_max": dict(model_type="distilbert", head="embedding", pooling="max"),
    "mpnet_masked": dict(model_type="mpnet", head="masked"),
    "mpnet_classes": dict(model_type="mpnet", head="classes", num_labels=4),
    "mpnet_tags": dict(model_type="mpnet", head="tags", num_labels=2),
    "modernbert_masked": dict(model_type="modernbert", head="masked"),
    "modernbert_masked_untied": dict(model_type="modernbert", head="masked",
                                     tie_word_embeddings=False, norm_bias=True, mlp_bias=True,
                                     attention_bias=True, classifier_bias=True,
                                     decoder_bias=False, hidden_activation="silu"),
    "modernbert_classes": dict(model_type="modernbert", head="classes", num_labels=3),
    "modernbert_classes_mean": dict(model_type="modernbert", head="classes", num_labels=2,
                                    classifier_pooling="mean", local_attention=7,
                                    global_attn_every_n_layers=2),
    "modernbert_values": dict(model_type="modernbert", head="values", num_labels=1),
    "modernbert_tags": dict(model_type="modernbert", head="tags", num_labels=4),
    "modernbert_cls": dict(model_type="modernbert", head="embedding", pooling="cls"),
    "gpt2_classes": dict(GPT2, **CAUSAL, model_type="gpt2", head="classes", num_labels=3),
    "gpt2_values": dict(GPT2, **CAUSAL, model_type="gpt2", head="values", num_labels=1),
    "llama_classes": dict(LLAMA, **CAUSAL, model_type="llama", head="classes", num_labels=2),
    "llama_tied_values": dict(LLAMA, **CAUSAL, model_type="llama", head="values", num_labels=2,
                              tie_word_embeddings=True),
    "qwen2_classes": dict(LLAMA, **CAUSAL, model_type="qwen2", head="classes", num_labels=4),
    "gpt_neox_classes": dict(COMMON, **CAUSAL, model_type="gpt_neox", head="classes",
                             num_labels=3),
    "mpnet_mean_sqrt_len": dict(model_type="mpnet", head="embedding", pooling="mean_sqrt_len"),
}
CLASSES = {"masked": transformers.AutoModelForMaskedLM,
           "classes": transformers.AutoModelForSequenceClassification,
           "values": transformers.AutoModelForSequenceClassification,
           "tags": transformers.AutoModelForTokenClassification,
           "embedding": transformers.AutoModel}


def pooled(x, mask, how, normalize):
    """As sentence-transformers pools: x [B, T, C], mask [B, T]."""
    mask = mask.unsqueeze(-1).float()
    if how == "cls":
        y = x[:, 0]
    elif how == "max":
        y = x.masked_fill(mask == 0, -1e9).max(dim=1).values
    else:
        count = mask.sum(1)
        y = (x * mask).sum(1) / (count.sqrt() if how == "mean_sqrt_len" else count)
    return torch.nn.functional.normalize(y, dim=1) if normalize else y


def parameters(model, head):
    """Every parameter that the answer depends on, once: a tied one by its name in the embedding."""
    names = {}
    for key, p in model.named_parameters(remove_duplicate=False):
        if p.grad is None and head != "embedding":
            continue  # an untied decoder has a bias of its own, and nobody reads the other
        known = names.get(p)
        if known is None or "embeddings" in key or ("embeddings" not in known and len(key) < len(known)):
            names[p] = key
    return [(key, p) for p, key in names.items()]


def make(name, case):
    case = dict(case)
    model_type, head = case.pop("model_type"), case.pop("head")
    pooling, normalize = case.pop("pooling", None), case.pop("normalize", False)
    is_causal = model_type in ("gpt2", "llama", "qwen2", "gpt_neox")
    case = dict({} if is_causal else DISTIL if model_type == "distilbert" else
                MODERN if model_type == "modernbert" else COMMON, **case)
    if head == "values":
        case["problem_type"] = "regression"
    config = transformers.AutoConfig.for_model(model_type, **case)
    torch.manual_seed(sum(map(ord, name)))
    has_pooler = model_type not in ("distilbert", "modernbert")
    extra = dict(add_pooling_layer=False) if head == "embedding" and has_pooler else {}
    model = CLASSES[head].from_config(config, attn_implementation="eager", **extra)
    model = model.float().eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            values = torch.randn(p.shape) * (0.3 if p.dim() > 1 else 0.2)
            if p.dim() == 1 and "norm" in key.lower() and key.endswith("weight"):
                values += 1
            p.copy_(values.bfloat16().float())

    rng = numpy.random.default_rng(sum(map(ord, name)))
    rows = len(LENGTHS)
    mask = torch.tensor([[int(t < n) for t in range(LENGTH)] for n in LENGTHS])
    tokens = rng.integers(4, config.vocab_size, (rows, LENGTH))  # none that pads
    tokens = numpy.where(mask.numpy() == 1, tokens, config.pad_token_id or 0)
    feed = dict(input_ids=torch.from_numpy(tokens), attention_mask=mask)
    out = {"tokens": tokens.astype(numpy.int32),
           "lengths": numpy.array(LENGTHS, dtype=numpy.int32)}
    if getattr(config, "type_vocab_size", 0) > 1 and model_type not in ("distilbert", "mpnet"):
        types = rng.integers(0, config.type_vocab_size, (rows, LENGTH)) * mask.numpy()
        feed["token_type_ids"] = torch.from_numpy(types)
        out["types"] = types.astype(numpy.int32)
    metadata = {"transformers": transformers.__version__}
    answer = model(**feed)
    if head == "embedding":
        y = pooled(answer.last_hidden_state, mask, pooling, normalize)
        out["embedding"] = y.detach().numpy()
        metadata["pooling"] = pooling + (" normalize" if normalize else "")
    else:
        logits = answer.logits
        if head == "values":
            targets = numpy.zeros(rows, dtype=numpy.int32)
            targets[UNSCORED_ROW] = -1
            values = rng.normal(size=(rows, config.num_labels)).astype(numpy.float32)
            scored = targets >= 0
            loss = torch.nn.functional.mse_loss(logits[scored].double(),
                                                torch.from_numpy(values)[scored].double())
            out["values"] = values
        else:
            shape = (rows,) if head == "classes" else (rows, LENGTH)
            targets = rng.integers(0, logits.shape[-1], shape)
            if head == "classes":
                targets[UNSCORED_ROW] = -1
            else:
                targets[(rng.random(shape) < 0.4) | (mask.numpy() == 0)] = -1
            loss = torch.nn.functional.cross_entropy(
                logits.reshape(-1, logits.shape[-1]).double(),
                torch.from_numpy(targets).reshape(-1), ignore_index=-1)
        loss.backward()
        if logits.dim() == 3:
            logits = logits * mask.unsqueeze(-1)
        out["targets"] = targets.astype(numpy.int32)
        out["logits"] = logits.detach().numpy()
        out["loss"] = loss.detach().double().numpy().reshape(1)
    for key, p in parameters(model, head):
        out["weights/" + key] = p.detach().numpy()
        if p.grad is not None:
            out["grads/" + key] = p.grad.numpy()
    config.architectures = [type(model).__name__]
    metadata["config"] = config.to_json_string(use_diff=False)
    folder = pathlib.Path(__file__).parent / "encoders"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.safetensors"
    save_file({k: numpy.ascontiguousarray(v) for k, v in out.items()}, path, metadata=metadata)
    print(path.name, path.stat().st_size, "bytes", sorted(k for k in out if k.startswith("weights/"))[-4:])


if __name__ == "__main__":
    assert transformers.__version__ == TRANSFORMERS, transformers.__version__
    torch.use_deterministic_algorithms(True)
    for key in sys.argv[1:] or CASES:
        make(key, CASES[key])
