#!/usr/bin/env python3
"""Golden numbers of direct preference optimization over small random models with a LoRA whose A and
B are not zero: log probabilities from Hugging Face's transformers and PEFT in float64, the reference
being the base without its adapter, and the losses of the papers (Rafailov et al. 2023; Mitchell
2023; Azar et al. 2023) written out here. Needs torch, transformers, peft (the versions below) and
safetensors; run it where they are installed:

    python tests/golden/make_preference_goldens.py

It writes a file for each model into tests/golden/preferences/: the weights, the adapter's files, the
pairs as flat rows, and of each variant of the loss its value, its gradients, rewards and accuracy.
Weights are stored as bf16 numbers in float32, so that both sides start from the same bits.
"""

import json
import pathlib
import tempfile

import numpy
import peft
import torch
import transformers
from safetensors.numpy import load_file, save_file

TRANSFORMERS, PEFT = "5.24.0", "0.21.2"
GPT2 = dict(vocab_size=41, n_positions=24, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2)
LLAMA = dict(vocab_size=41, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
             num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=24,
             rms_norm_eps=1e-5, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
             rope_parameters=dict(rope_type="default", rope_theta=500.0))
MODELS = {"gpt2": ("gpt2", GPT2), "llama": ("llama", LLAMA)}
# Tokens of the prompt, the chosen and the rejected answer of each pair.
PAIRS = [(5, 7, 3), (2, 4, 9), (8, 1, 6)]
VARIANTS = {"sigmoid": ("sigmoid", 0.3, 0.0), "smoothed": ("sigmoid", 0.1, 0.2),
            "ipo": ("ipo", 0.1, 0.0)}


def randomise(named, deviation):
    with torch.no_grad():
        for key, p in named:
            values = torch.randn(p.shape) * (deviation if p.dim() > 1 else 0.2)
            if "norm" in key.lower() or "ln_" in key:
                values += 1
            p.copy_(values.bfloat16().float())


def log_probability(model, prompt, answer):
    ids = torch.tensor(prompt + answer)
    log_p = torch.log_softmax(model(ids[None, :-1]).logits[0].double(), -1)
    of_targets = log_p.gather(-1, ids[1:, None])[:, 0]
    return of_targets[len(prompt) - 1:].sum()


def loss_of(kind, beta, smoothing, policy, reference, lengths):
    ratios = policy - reference
    if kind == "ipo":
        ratios = ratios / lengths
    margins = beta * (ratios[:, 0] - ratios[:, 1])
    if kind == "ipo":
        losses = (margins / beta - 1 / (2 * beta)) ** 2
    else:
        log_sigmoid = torch.nn.functional.logsigmoid
        losses = -(1 - smoothing) * log_sigmoid(margins) - smoothing * log_sigmoid(-margins)
    return losses.mean(), beta * ratios.detach()


def make(name, model_type, sizes):
    config = transformers.AutoConfig.for_model(model_type, **sizes)
    torch.manual_seed(sum(map(ord, name)))
    base = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    config.architectures = [type(base).__name__]
    randomise(base.named_parameters(), 0.25)
    out = {"weights/" + key: p.detach().numpy().copy() for key, p in base.named_parameters()}
    model = peft.get_peft_model(base, peft.LoraConfig(
        task_type="CAUSAL_LM", r=3, lora_alpha=6, target_modules="all-linear",
        fan_in_fan_out=model_type == "gpt2")).eval()
    trained = [(key, p) for key, p in model.named_parameters() if p.requires_grad]
    randomise(trained, 0.15)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        text = json.loads((pathlib.Path(folder) / "adapter_config.json").read_text())
        for key, value in load_file(pathlib.Path(folder) / "adapter_model.safetensors").items():
            out["adapter/" + key] = value
    model.double()

    rng = numpy.random.default_rng(sum(map(ord, name)))
    draw = lambda n: rng.integers(3, config.vocab_size, n).tolist()
    pairs = [(draw(p), (draw(c), draw(r))) for p, c, r in PAIRS]
    tokens, targets, positions, starts = [], [], [], [0]
    for prompt, answers in pairs:
        for answer in answers:
            ids = prompt + answer
            tokens += ids[:-1]
            targets += [-1] * (len(prompt) - 1) + answer
            positions += range(len(ids) - 1)
            starts.append(len(tokens))
    lengths = torch.tensor([[len(answer) for answer in answers] for _, answers in pairs])
    with torch.no_grad(), model.disable_adapter():
        reference = torch.stack([torch.stack([log_probability(model, prompt, a) for a in answers])
                                 for prompt, answers in pairs])
    policy = torch.stack([torch.stack([log_probability(model, prompt, a) for a in answers])
                          for prompt, answers in pairs])
    integers = dict(tokens=tokens, targets=targets, positions=positions, starts=starts)
    out |= {key: numpy.array(value, numpy.int32) for key, value in integers.items()}
    out |= {"reference": reference.numpy(), "log_probabilities": policy.detach().numpy()}
    for variant, (kind, beta, smoothing) in VARIANTS.items():
        loss, rewards = loss_of(kind, beta, smoothing, policy, reference, lengths)
        gradients = torch.autograd.grad(loss, [p for _, p in trained], retain_graph=True)
        out[f"{variant}/loss"] = loss.detach().numpy().reshape(1)
        out[f"{variant}/rewards"] = rewards.numpy()
        for (key, _), gradient in zip(trained, gradients):
            out[f"{variant}/grads/" + key.replace(".default", "")] = gradient.float().numpy()
        print(name, variant, "loss", loss.item())
    path = pathlib.Path(__file__).parent / "preferences" / f"{name}.safetensors"
    save_file(out, path, metadata={"config": config.to_json_string(use_diff=False),
                                   "adapter_config": json.dumps(text),
                                   "variants": json.dumps(VARIANTS), "peft": peft.__version__})
    print(path.name, path.stat().st_size, "bytes")


if __name__ == "__main__":
    assert transformers.__version__ == TRANSFORMERS, transformers.__version__
    assert peft.__version__ == PEFT, peft.__version__
    torch.use_deterministic_algorithms(True)
    for key, (model_type, sizes) in MODELS.items():
        make(key, model_type, sizes)
