"""Texts of several adapters side by side over one Llama, beside the same texts without adapters.

    adapters_side_by_side.py BRRR FOLDER [--adapters 8] [--rank 16] [--texts 8] [--tokens 64] [--rounds 5]
                             [--precision bf16] [--threads 2]

FOLDER is a model folder of Llama's architecture. Adapters of random numbers on all linear layers are written
into a temporary folder, as PEFT writes them. Every round runs each way in turn: without adapters, each text with
the adapter of its number, and, for comparison, all texts with one adapter. Prints the bytes of the adapters as a
share of the model's and tokens per second: medians, the range, and ratios. Needs Python alone.
"""

import argparse
import json
import os
import re
import statistics
import struct
import subprocess
import tempfile

WORDS = "the sea was calm and a small boat went out to look for fish before the first light of the day came over the hills".split()


def prompt(number):
    return " ".join(WORDS[(3 * number + k) % len(WORDS)] for k in range(10 + number % 5))


def linear_layers(config):
    """Name, outputs and inputs of each linear layer besides the head."""
    c, wide = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or c // heads
    keys = config.get("num_key_value_heads", heads) * width
    for n in range(config["num_hidden_layers"]):
        at = f"model.layers.{n}."
        yield at + "self_attn.q_proj", heads * width, c
        yield at + "self_attn.k_proj", keys, c
        yield at + "self_attn.v_proj", keys, c
        yield at + "self_attn.o_proj", c, heads * width
        yield at + "mlp.gate_proj", wide, c
        yield at + "mlp.up_proj", wide, c
        yield at + "mlp.down_proj", c, wide


def random_halves(count):
    """Numbers of fp16 between 2^-8 and 2^-7 in magnitude, of either sign."""
    data = bytearray(os.urandom(2 * count))
    data[1::2] = bytes(data[1::2]).translate(bytes((b & 0x83) | (7 << 2) for b in range(256)))
    return data


def write_adapter(folder, base, config, rank):
    header, parts, at = {}, [], 0
    for name, outputs, inputs in linear_layers(config):
        for part, shape in (("lora_A", [rank, inputs]), ("lora_B", [outputs, rank])):
            data = random_halves(shape[0] * shape[1])
            header[f"base_model.model.{name}.{part}.weight"] = {
                "dtype": "F16", "shape": shape, "data_offsets": [at, at + len(data)]}
            parts.append(data)
            at += len(data)
    os.makedirs(folder)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "adapter_model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for data in parts:
            file.write(data)
    with open(os.path.join(folder, "adapter_config.json"), "w") as file:
        json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank,
                   "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
                   "base_model_name_or_path": base}, file)
    return at // 2


def with_whole_vocabulary(folder, config, to):
    """The folder, or one beside it whose tokenizer has a token for every row of the model's table: a model of
    random weights chooses any of them."""
    with open(os.path.join(folder, "tokenizer.json")) as file:
        tokenizer = json.load(file)
    vocabulary = tokenizer["model"]["vocab"]
    known = set(vocabulary.values()) | {token["id"] for token in tokenizer["added_tokens"]}
    missing = [n for n in range(config["vocab_size"]) if n not in known]
    if not missing:
        return folder
    vocabulary.update({f"<token {n}>": n for n in missing})
    os.makedirs(to)
    for name in os.listdir(folder):
        if name != "tokenizer.json":
            os.symlink(os.path.join(os.path.abspath(folder), name), os.path.join(to, name))
    with open(os.path.join(to, "tokenizer.json"), "w") as file:
        json.dump(tokenizer, file)
    return to


def run(args, folders, adapter_of):
    """Tokens per second of all texts; adapter_of(text) names its adapter."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for number in range(args.texts):
            line = {"prompt": prompt(number)}
            if folders:
                line["adapter"] = adapter_of(number)
            file.write(json.dumps(line) + "\n")
        file.flush()
        command = [args.brrr, "generate", "--model", args.folder, "--prompts", file.name, "--parallel",
                   str(args.texts), "--max-new-tokens", str(args.tokens), "--temperature", "0",
                   "--precision", args.precision, "--threads", str(args.threads)]
        for folder in folders:
            command += ["--adapter", folder]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    tokens, whole, unit, rest = re.search(r"([\d,]+) tokens in ([\d.]+) (s|ms|min)(?: (\d+) s)?", said).groups()
    seconds = float(whole) * {"s": 1, "ms": 1e-3, "min": 60}[unit] + float(rest or 0)
    return float(tokens.replace(",", "")) / seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("brrr")
    parser.add_argument("folder")
    for name, value in (("adapters", 8), ("rank", 16), ("texts", 8), ("tokens", 64), ("rounds", 5), ("threads", 2)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--precision", default="bf16")
    args = parser.parse_args()
    with open(os.path.join(args.folder, "config.json")) as file:
        config = json.load(file)
    base = sum(o * i for _, o, i in linear_layers(config)) + config["vocab_size"] * config["hidden_size"]
    with tempfile.TemporaryDirectory() as temporary:
        args.folder = with_whole_vocabulary(args.folder, config, os.path.join(temporary, "base"))
        folders = [os.path.join(temporary, f"a{n}") for n in range(args.adapters)]
        each = [write_adapter(folder, args.folder, config, args.rank) for folder in folders][0]
        print(f"{args.adapters} adapters of {each / 1e6:.1f}M parameters: {args.adapters * each / base:.3f} of the "
              f"{base / 1e6:.0f}M that a step multiplies by")
        ways = {
            "without": lambda: run(args, [], None),
            "chosen": lambda: run(args, folders, lambda text: f"a{text % args.adapters}"),
            "one of them": lambda: run(args, folders[:1], lambda text: "a0"),
        }
        speeds = {name: [] for name in ways}
        for _ in range(args.rounds):
            for name, way in ways.items():
                speeds[name].append(way())
    print(f"{args.texts} texts of {args.tokens} tokens, {args.precision}, {args.threads} threads, tokens/s:")
    for name, got in speeds.items():
        ratios = [a / b for a, b in zip(got, speeds["without"])]
        print(f"  {name}: {statistics.median(got):.1f} ({min(got):.1f} to {max(got):.1f}); ratio "
              f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
