#!/usr/bin/env python3
"""Write tests/golden/quantized_folders/: tiny Llamas whose linear layers are quantised as other
programs do it, and what transformers computes from the same values.

    python3 tests/golden/make_quantized_folder_goldens.py [CASE...]

Needs torch, transformers, safetensors, compressed-tensors and bitsandbytes (the versions below). A
case is a model.safetensors, whose metadata holds the config.json, the SHA-256 of the f32 values of
each quantised weight, and its first values. logits.safetensors has the tokens, which are the same
for all, and the logits of each case.

bitsandbytes and compressed-tensors pack their weights themselves. GPTQ and AWQ are packed here, from
the published layouts (AutoGPTQ's QuantLinear.pack, AutoAWQ's WQLinear_GEMM.from_linear), because
those packages need a GPU. The expected values are computed from the integers before they are packed.
"""

import hashlib
import json
import pathlib
import sys

import bitsandbytes
import bitsandbytes.functional as bnb
import compressed_tensors
import numpy
import torch
import transformers
from compressed_tensors.quantization import QuantizationArgs
from safetensors.torch import load_file, save_file

TRANSFORMERS, COMPRESSED, BITSANDBYTES = "5.24.0", "0.20.0", "0.50.2"
FOLDER = pathlib.Path(__file__).parent / "quantized_folders"
VOCABULARY = 48
MODEL = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
             num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32,
             rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False,
             rope_parameters=dict(rope_type="default", rope_theta=10000.0))
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def grid(weight, bits, group, symmetric):
    """Integers [in, out], zero points [groups, out] and f16 scales [groups, out] of W [out, in]."""
    columns = weight.T.contiguous()
    inputs, outputs = columns.shape
    group = inputs if group == -1 else group
    parts = columns.reshape(inputs // group, group, outputs)
    most = 2**bits - 1
    if symmetric:
        scales = (2 * parts.abs().amax(1) / most).half()
        zeros = torch.full(scales.shape, 2 ** (bits - 1), dtype=torch.int64)
    else:
        low, high = parts.amin(1).clamp(max=0), parts.amax(1).clamp(min=0)
        scales = ((high - low) / most).half()
        zeros = torch.round(-low / scales.float()).clamp(0, most).long()
    q = torch.round(parts / scales.float()[:, None]) + zeros[:, None]
    return q.clamp(0, most).long().reshape(inputs, outputs), zeros, scales


def words(values, bits, axis):
    """i32 words of neighbours along an axis, the first in the lowest bits."""
    values = numpy.moveaxis(values.numpy().astype(numpy.uint64), axis, -1)
    per = 32 // bits
    values = values.reshape(*values.shape[:-1], values.shape[-1] // per, per)
    packed = (values << (bits * numpy.arange(per, dtype=numpy.uint64))).sum(-1)
    packed = numpy.moveaxis(packed, -1, axis).astype(numpy.uint32).view(numpy.int32)
    return torch.from_numpy(numpy.ascontiguousarray(packed))


def gptq(bits, group, symmetric, act_order=False, is_v2=False, label=None):
    def pack(name, weight):
        inputs = weight.shape[1]
        size = inputs if group == -1 else group
        order = torch.arange(inputs)
        if act_order:  # the columns of a group are those of neighbouring places in this order
            order = torch.from_numpy(numpy.random.default_rng(inputs).permutation(inputs))
        q, zeros, scales = grid(weight[:, order], bits, group, symmetric)
        index = torch.empty(inputs, dtype=torch.int32)
        index[order] = (torch.arange(inputs) // size).int()
        integers = torch.empty_like(q)
        integers[order] = q
        if not is_v2 and not symmetric:
            zeros = zeros.clamp(min=1)  # version 1 cannot store a zero point of 0
        stored = zeros - (0 if is_v2 else 1)
        values = (scales.float()[index.long()] * (integers - zeros[index.long()]).float()).T
        return values, {name + ".qweight": words(integers, bits, 0),
                        name + ".qzeros": words(stored, bits, 1), name + ".scales": scales,
                        name + ".g_idx": index}

    config = dict(quant_method="gptq", bits=bits, group_size=group, sym=symmetric,
                  desc_act=act_order)
    if label is not None:
        config["checkpoint_format"] = label
    return config, pack


def awq(size):
    def pack(name, weight):
        q, zeros, scales = grid(weight, 4, size, False)
        group = torch.arange(weight.shape[1]) // size
        values = (scales.float()[group] * (q - zeros[group]).float()).T

        def ordered(t):
            return words(t.reshape(t.shape[0], -1, 8)[:, :, AWQ_ORDER].reshape(t.shape), 4, 1)

        return values, {name + ".qweight": ordered(q), name + ".qzeros": ordered(zeros),
                        name + ".scales": scales}

    return dict(quant_method="awq", bits=4, group_size=size, zero_point=True, version="gemm",
                modules_to_not_convert=None), pack


def bnb_int8():
    def pack(name, weight):
        layer = bitsandbytes.nn.Linear8bitLt(*weight.T.shape, bias=False, has_fp16_weights=False)
        layer.weight = bitsandbytes.nn.Int8Params(weight, requires_grad=False,
                                                  has_fp16_weights=False)
        state = layer.to("cpu").state_dict()
        values = bnb.int8_vectorwise_dequant(state["weight"], state["SCB"])
        return values.float(), {f"{name}.{key}": value for key, value in state.items()}

    return dict(quant_method="bitsandbytes", load_in_8bit=True, load_in_4bit=False,
                llm_int8_threshold=6.0, llm_int8_skip_modules=["lm_head"]), pack


def bnb_4bit(kind, nested):
    def pack(name, weight):
        layer = bitsandbytes.nn.Linear4bit(*weight.T.shape, bias=False, quant_type=kind,
                                           compress_statistics=nested)
        layer.weight = bitsandbytes.nn.Params4bit(weight, requires_grad=False, quant_type=kind,
                                                  compress_statistics=nested)
        layer = layer.to("cpu")
        tensors = {f"{name}.{k}": v.clone() for k, v in layer.state_dict().items()}
        # Its CPU kernel takes rows that are shorter than a block for whole blocks; a GPU does not.
        state = layer.weight.quant_state
        state.shape = torch.Size((weight.numel() // state.blocksize, state.blocksize))
        values = bnb.dequantize_4bit(layer.weight.data, state).reshape(weight.shape)
        return values.float(), tensors

    return dict(quant_method="bitsandbytes", load_in_8bit=False, load_in_4bit=True,
                bnb_4bit_quant_type=kind, bnb_4bit_use_double_quant=nested), pack


def float_quantized():
    from compressed_tensors.compressors import NaiveQuantizationCompressor
    from compressed_tensors.quantization import QuantizationScheme
    args = QuantizationArgs(num_bits=8, type="float", strategy="channel", symmetric=True)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)

    def pack(name, weight):
        scale = (weight.abs().amax(1, keepdim=True) / 448).bfloat16()
        state = NaiveQuantizationCompressor.compress(
            {"weight": weight.clone(), "weight_scale": scale.float()}, scheme)
        values = NaiveQuantizationCompressor.decompress(dict(state), scheme)["weight"]
        return values.float(), {f"{name}.{key}": value for key, value in state.items()}

    return dict(quant_method="compressed-tensors", format="float-quantized",
                quantization_status="compressed", ignore=["lm_head"],
                config_groups=dict(group_0=dict(
                    targets=["Linear"],
                    weights=dict(num_bits=8, type="float", strategy="channel", symmetric=True,
                                 dynamic=False),
                    input_activations=dict(num_bits=8, type="float", strategy="token",
                                           symmetric=True, dynamic=True)))), pack


def pack_quantized():
    from compressed_tensors.compressors import PackedQuantizationCompressor
    from compressed_tensors.quantization import QuantizationScheme
    weights = dict(num_bits=4, type="int", strategy="group", group_size=16, symmetric=False)
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))

    def pack(name, weight):
        _, zeros, scales = grid(weight, 4, 16, False)
        state = PackedQuantizationCompressor.compress(
            {"weight": weight.clone(), "weight_scale": scales.float().T.contiguous(),
             "weight_zero_point": (zeros - 8).to(torch.int8).T.contiguous()}, scheme)
        values = PackedQuantizationCompressor.decompress(dict(state), scheme)["weight"]
        return values.float(), {f"{name}.{key}": value for key, value in state.items()}

    return dict(quant_method="compressed-tensors", format="pack-quantized",
                quantization_status="compressed", ignore=["lm_head"],
                config_groups=dict(group_0=dict(targets=["Linear"], weights=weights))), pack


def fp8(block):
    """Blocks, of which those at the edges are smaller; or one scale, with one of the inputs."""
    def pack(name, weight):
        rows, columns = weight.shape
        height, width = block or (rows, columns)
        numbers, values = weight.clone(), torch.empty_like(weight)
        scales = torch.empty(-(-rows // height), -(-columns // width))
        for r in range(scales.shape[0]):
            for c in range(scales.shape[1]):
                at = numpy.s_[r * height:(r + 1) * height, c * width:(c + 1) * width]
                scales[r, c] = weight[at].abs().max() / 448
                numbers[at] = (weight[at] / scales[r, c]).to(torch.float8_e4m3fn).float()
                values[at] = numbers[at] * scales[r, c]
        tensors = {name + ".weight": numbers.to(torch.float8_e4m3fn)}
        if block:
            tensors[name + ".weight_scale_inv"] = scales
        else:
            tensors[name + ".weight_scale"] = scales.reshape(())
            tensors[name + ".input_scale"] = torch.tensor(0.5)
        return values, tensors

    config = dict(quant_method="fp8", activation_scheme="dynamic" if block else "static")
    return dict(config, weight_block_size=list(block)) if block else config, pack


CASES = {
    "gptq_4": gptq(4, 16, True),
    "gptq_4_act_order": gptq(4, 16, False, act_order=True, label="gptq"),
    "gptq_4_wrong_label": gptq(4, -1, True, is_v2=True, label="gptq"),
    "gptq_8_v2": gptq(8, 32, False, is_v2=True, label="gptq_v2"),
    "awq": awq(16),
    "bnb_int8": bnb_int8(),
    "bnb_nf4_double": bnb_4bit("nf4", True),
    "bnb_fp4": bnb_4bit("fp4", False),
    "pack_quantized": pack_quantized(),
    "float_quantized": float_quantized(),
    "fp8_blocks": fp8((20, 24)),
    "fp8_tensor": fp8(None),
}


def make(name, tokens):
    quantization, pack = CASES[name]
    config = transformers.LlamaConfig(**MODEL)
    torch.manual_seed(sum(map(ord, name)))
    model = transformers.LlamaForCausalLM(config).float().eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            p.copy_((torch.randn(p.shape) * 0.25 + ("norm" in key)).half().float())
    stored, sums, first = {}, {}, {}
    for key, p in model.named_parameters():
        if "_proj" not in key:
            stored[key] = p.detach().half()
            continue
        values, tensors = pack(key.removesuffix(".weight"), p.detach().clone())
        values = values.detach().float().contiguous()
        stored.update({k: t.detach().clone().contiguous() for k, t in tensors.items()})
        sums[key] = hashlib.sha256(values.numpy().tobytes()).hexdigest()
        first[key] = [float(v) for v in values.reshape(-1)[:4]]
        with torch.no_grad():
            p.copy_(values)
    with torch.no_grad():
        logits = model(torch.from_numpy(tokens)[None].long()).logits[0].clone()
    text = json.loads(config.to_json_string(use_diff=False))
    text["architectures"] = ["LlamaForCausalLM"]
    text["quantization_config"] = quantization
    path = FOLDER / f"{name}.safetensors"
    save_file(stored, path, metadata={"config": json.dumps(text), "sums": json.dumps(sums),
                                      "first": json.dumps(first)})
    path.chmod(0o644)
    print(path.name, path.stat().st_size, "bytes")
    return logits


def main():
    assert transformers.__version__ == TRANSFORMERS, transformers.__version__
    assert compressed_tensors.__version__ == COMPRESSED, compressed_tensors.__version__
    assert bitsandbytes.__version__ == BITSANDBYTES, bitsandbytes.__version__
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / "logits.safetensors"
    tokens = numpy.random.default_rng(50).integers(0, VOCABULARY, 12).astype(numpy.int32)
    goldens = load_file(path) if path.exists() else {}
    for name in sys.argv[1:] or CASES:
        goldens[name] = make(name, tokens)
    goldens["tokens"] = torch.from_numpy(tokens)
    save_file(goldens, path)
    path.chmod(0o644)


if __name__ == "__main__":
    main()
