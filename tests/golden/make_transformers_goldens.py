#!/usr/bin/env python3
"""Golden numbers of small random models from Hugging Face's transformers: logits, loss and every
gradient, for each model type and each kind of rotary embedding. Needs torch, transformers (the
version below) and safetensors; run it where they are installed:

    python tests/golden/make_transformers_goldens.py [CASE... | --stories FOLDER]

It writes a file for each case into tests/golden/transformers/; --stories writes
tests/golden/stories260k_logits.safetensors, some logits of the trained model in FOLDER. Weights are stored as bf16 numbers in
float32, so that both sides start from the same bits. Transformers computes in float32: its norms and
rotations do so in any case.
"""

import json
import pathlib
import sys

import numpy
import torch
import transformers
from safetensors.numpy import save_file

TRANSFORMERS = "5.24.0"
COMMON = dict(vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
              num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
              rms_norm_eps=1e-5, initializer_range=0.02, bos_token_id=1, eos_token_id=2)
NEOX = dict(vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=2, max_position_embeddings=32, bos_token_id=1, eos_token_id=2)
GPT2 = dict(vocab_size=61, n_embd=32, n_layer=3, n_head=4, n_positions=32, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2,
            tie_word_embeddings=True)
# Without a token of padding: transformers trains no embedding of that token.
GEMMA3 = dict(vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=6,
              num_attention_heads=4, num_key_value_heads=2, head_dim=12, query_pre_attn_scalar=10,
              max_position_embeddings=32, sliding_window=7, bos_token_id=1, eos_token_id=2,
              pad_token_id=None, tie_word_embeddings=True)
BATCH, LENGTH = 2, 21

ROPE_LLAMA3 = dict(rope_type="llama3", rope_theta=1000.0, factor=8.0, low_freq_factor=1.0,
                   high_freq_factor=4.0, original_max_position_embeddings=16)
ROPE_YARN = dict(rope_type="yarn", rope_theta=1000.0, factor=4.0,
                 original_max_position_embeddings=8)

# The window is shorter than the text, and so is the length that llama3 and yarn were trained with.
CASES = {
    "llama": dict(model_type="llama", tie_word_embeddings=True),
    "llama_biases": dict(model_type="llama", attention_bias=True, mlp_bias=True, head_dim=6),
    "llama_linear": dict(model_type="llama", num_key_value_heads=1,
                         rope_parameters=dict(rope_type="linear", rope_theta=500.0, factor=4.0)),
    "llama_dynamic": dict(model_type="llama", num_key_value_heads=4,
                          rope_parameters=dict(rope_type="dynamic", rope_theta=500.0, factor=2.0)),
    "llama_llama3": dict(model_type="llama", rope_parameters=ROPE_LLAMA3),
    "llama_yarn": dict(model_type="llama", rope_parameters=ROPE_YARN),
    "llama_yarn_mscale": dict(model_type="llama", rope_parameters=dict(
        ROPE_YARN, mscale=1.2, mscale_all_dim=0.7, beta_fast=16.0, beta_slow=2.0)),
    "gemma3": dict(model_type="gemma3_text"),
    "gemma3_scaled": dict(
        model_type="gemma3_text", num_hidden_layers=3, num_key_value_heads=1, attention_bias=True,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        tie_word_embeddings=False,
        rope_parameters=dict(
            full_attention=dict(rope_type="linear", rope_theta=1000.0, factor=8.0),
            sliding_attention=dict(rope_type="default", rope_theta=50.0))),
    "gpt2_inverse_layer": dict(model_type="gpt2", n_inner=40, reorder_and_upcast_attn=True,
                               scale_attn_by_inverse_layer_idx=True),
    "gpt2_unscaled": dict(model_type="gpt2", n_inner=24, scale_attn_weights=False,
                          tie_word_embeddings=False),
    "gpt_neox": dict(model_type="gpt_neox", rotary_pct=0.25, rotary_emb_base=500),
    "gpt_neox_sequential": dict(
        model_type="gpt_neox", use_parallel_residual=False, attention_bias=False,
        hidden_act="gelu_fast", tie_word_embeddings=True,
        rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0,
                             partial_rotary_factor=1.0)),
    "gpt_neox_relu": dict(model_type="gpt_neox", hidden_act="relu", num_hidden_layers=1,
                          num_attention_heads=4,
                          rope_parameters=dict(ROPE_YARN, partial_rotary_factor=0.75)),
    "mistral": dict(model_type="mistral", sliding_window=7),
    "qwen2": dict(model_type="qwen2", use_sliding_window=True, sliding_window=5,
                  max_window_layers=1),
    "qwen3": dict(model_type="qwen3", head_dim=12, tie_word_embeddings=True),
}


def make(name, case):
    model_type = case["model_type"]
    own = {"gpt_neox": NEOX, "gpt2": GPT2, "gemma3_text": GEMMA3}
    case = dict(own.get(model_type, COMMON), **case)
    case.pop("model_type")
    case.setdefault("tie_word_embeddings", False)
    if model_type not in own:  # which have settings of their own for positions
        case.setdefault("rope_parameters", dict(rope_type="default", rope_theta=10000.0))
    config = transformers.AutoConfig.for_model(model_type, **case)
    torch.manual_seed(sum(map(ord, name)))
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model = model.float().eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            values = torch.randn(p.shape) * (0.25 if p.dim() > 1 else 0.2)
            if "norm" in key or "ln_" in key:
                values += 1
            p.copy_(values.bfloat16().float())

    rng = numpy.random.default_rng(sum(map(ord, name)))
    tokens = rng.integers(0, config.vocab_size, (BATCH, LENGTH))
    targets = rng.integers(0, config.vocab_size, (BATCH, LENGTH))
    targets[rng.random(targets.shape) < 0.1] = -1  # ignored
    logits = model(torch.from_numpy(tokens)).logits
    loss = torch.nn.functional.cross_entropy(
        logits.reshape(-1, config.vocab_size).double(), torch.from_numpy(targets).reshape(-1),
        ignore_index=-1)
    loss.backward()

    out = {"tokens": tokens.astype(numpy.int32), "targets": targets.astype(numpy.int32),
           "logits": logits.detach().numpy(), "loss": loss.detach().double().numpy().reshape(1)}
    for key, p in model.named_parameters():
        out["weights/" + key] = p.detach().numpy()
        out["grads/" + key] = p.grad.numpy()
    text = config.to_json_string(use_diff=False)
    path = pathlib.Path(__file__).parent / "transformers" / f"{name}.safetensors"
    save_file(out, path, metadata={"config": text, "transformers": transformers.__version__})
    print(path.name, path.stat().st_size, "bytes; loss", round(loss.item(), 5))


def make_stories(folder):
    """Logits of every twentieth token of the story that the folder documents."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32).eval()
    tokens = json.loads((pathlib.Path(folder) / "greedy-200.json").read_text())
    rows = numpy.arange(0, len(tokens), 20, dtype=numpy.int32)
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0].numpy()
    path = pathlib.Path(__file__).parent / "stories260k_logits.safetensors"
    save_file({"tokens": numpy.array(tokens, dtype=numpy.int32), "rows": rows,
               "logits": numpy.ascontiguousarray(logits[rows])}, path)
    print(path.name, path.stat().st_size, "bytes")


if __name__ == "__main__":
    assert transformers.__version__ == TRANSFORMERS, transformers.__version__
    torch.use_deterministic_algorithms(True)
    if sys.argv[1:2] == ["--stories"]:
        make_stories(sys.argv[2])
    else:
        for key in sys.argv[1:] or CASES:
            make(key, CASES[key])
