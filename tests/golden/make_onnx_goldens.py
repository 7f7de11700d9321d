#!/usr/bin/env python3
"""Write tests/golden/onnx: what ONNX Runtime makes of ONNX files.

    BRRR_MODELS=FOLDER python3 tests/golden/make_onnx_goldens.py

recurrent/: small files with one layer, in the form of ONNX's backend suite.
*.npy: of the models in $BRRR_MODELS.

Silero's files hear 100 frames with their context, and hand their state on; a golden holds the
probability of each frame and the last state. Magika sees two texts, ppocr ten pictures. The inputs are made of
integers, the same in tests/conformance/models_test.cpp.
"""

import os
import pathlib

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

FRAMES = 100
MODELS = pathlib.Path(os.environ["BRRR_MODELS"])
GOLDEN = pathlib.Path(__file__).parent / "onnx"


def noise(count, seed):
    """Integers below 2^15, by a linear congruential generator."""
    numbers = []
    x = seed
    for _ in range(count):
        x = (x * 1103515245 + 12345) % (1 << 31)
        numbers.append(x >> 16)
    return np.array(numbers)


def sound(samples, period):
    """A saw with noise that grows and fades."""
    i = np.arange(samples)
    saw = (i % period) * 32768 // period - 16384
    swell = (i // 512) % 20
    whole = (saw + (noise(samples, 1) - 16384) // 4) * swell
    return (whole / float(1 << 19)).astype(np.float32)


def session(name):
    return onnxruntime.InferenceSession(MODELS / name, providers=["CPUExecutionProvider"])


def frames(rate):
    width, context = (512, 64) if rate == 16000 else (256, 32)
    x = np.concatenate([np.zeros(context, np.float32), sound(FRAMES * width, rate // 160)])
    return [x[None, k * width : k * width + context + width] for k in range(FRAMES)]


def silero(name, rate):
    run = session(f"silero/{name}.onnx")
    state = np.zeros((2, 1, 128), np.float32)
    out = []
    for frame in frames(rate):
        feed = {"input": frame, "state": state}
        if "sr" in [i.name for i in run.get_inputs()]:
            feed["sr"] = np.array(rate, np.int64)
        p, state = run.run(None, feed)
        out.append(p.ravel())
    return np.concatenate([*out, state.ravel()])


def silero_sequence(name):
    zero = np.zeros((1, 1, 128), np.float32)
    feed = {"input": np.concatenate(frames(16000)), "h": zero, "c": zero}
    return np.concatenate([x.ravel() for x in session(f"silero/{name}.onnx").run(None, feed)])


def magika():
    tokens = noise(2 * 2048, 3).reshape(2, 2048) % 257
    tokens[0, 1024:] = 256  # padding
    return session("magika/standard_v3_3/model.onnx").run(None, {"bytes": tokens.astype(np.int32)})[0]


STEPS, BATCH, WIDTH, HIDDEN = 5, 3, 3, 4


def layer(op, gates, directions, inputs, layout=0, **attributes):
    """A file with one layer, its inputs and what it gives. ONNX Runtime knows layout 0 alone: for
    the other, axes are moved before and after."""
    rng = np.random.default_rng(7)

    def random(*shape):
        return rng.uniform(-0.7, 0.7, shape).astype(np.float32)

    given = {
        "X": random(STEPS, BATCH, WIDTH) * 2,
        "W": random(directions, gates * HIDDEN, WIDTH),
        "R": random(directions, gates * HIDDEN, HIDDEN),
        "B": random(directions, 2 * gates * HIDDEN),
        "sequence_lens": np.array([5, 2, 3], np.int32),
        "initial_h": random(directions, BATCH, HIDDEN),
        "initial_c": random(directions, BATCH, HIDDEN),
        "P": random(directions, 3 * HIDDEN),
    }
    names = ["X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"]
    names = [n if n in ("X", "W", "R", *inputs) else "" for n in names]
    while not names[-1]:
        names.pop()
    outputs = ["Y", "Y_h", "Y_c"] if op == "LSTM" else ["Y", "Y_h"]
    fed = [n for n in names if n in ("X", "sequence_lens", "initial_h", "initial_c")]

    def moved(name, value):
        if name in ("X", "initial_h", "initial_c", "Y_h", "Y_c"):
            return value.swapaxes(0, 1)
        return value.transpose(2, 0, 1, 3) if name == "Y" else value

    def file_of(layout):
        node = helper.make_node(op, names, outputs, hidden_size=HIDDEN, **attributes)
        if layout:
            node.attribute.append(helper.make_attribute("layout", layout))
        types = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int32): TensorProto.INT32}
        feeds = {n: moved(n, given[n]) if layout else given[n] for n in fed}
        graph = helper.make_graph(
            [node],
            op,
            [helper.make_tensor_value_info(n, types[v.dtype], v.shape) for n, v in feeds.items()],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
            [numpy_helper.from_array(given[n], n) for n in names if n and n not in fed],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
        return model, feeds

    model, feeds = file_of(0)
    run = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    results = dict(zip(outputs, run.run(None, feeds)))
    if layout:
        model, feeds = file_of(layout)
        results = {n: moved(n, v) for n, v in results.items()}
    return model, feeds, results


def recurrent_layers():
    every = ("B", "sequence_lens", "initial_h", "initial_c")
    return {
        "lstm_bidirectional_lengths": layer("LSTM", 4, 2, every, direction="bidirectional"),
        "lstm_bidirectional_batch_first": layer("LSTM", 4, 2, every, 1, direction="bidirectional"),
        "lstm_reverse_peepholes": layer("LSTM", 4, 1, ("B", "P"), direction="reverse"),
        "lstm_clip": layer("LSTM", 4, 1, ("B", "initial_c"), clip=0.3),
        "lstm_coupled": layer("LSTM", 4, 1, ("initial_h",), input_forget=1),
        "lstm_activations": layer(
            "LSTM", 4, 1, ("B",), activations=["HardSigmoid", "Softsign", "ScaledTanh"],
            activation_alpha=[0.3, 1.5], activation_beta=[0.4, 0.7],
        ),
        "gru_bidirectional_lengths": layer("GRU", 3, 2, every[:3], direction="bidirectional"),
        "gru_reset_after_product": layer(
            "GRU", 3, 2, every[:3], direction="bidirectional", linear_before_reset=1
        ),
        "gru_reverse_clip": layer("GRU", 3, 1, ("B",), direction="reverse", clip=0.5),
        "rnn_bidirectional_activations": layer(
            "RNN", 1, 2, every[:3], direction="bidirectional", activations=["LeakyRelu", "Affine"],
            activation_alpha=[0.2, 0.5], activation_beta=[0.1],
        ),
    }


def write_case(name, model, feeds, results):
    data = GOLDEN / "recurrent" / name / "test_data_set_0"
    data.mkdir(parents=True, exist_ok=True)
    onnx.save(model, data.parent / "model.onnx")
    for kind, tensors in (("input", feeds), ("output", results)):
        for i, (tensor, values) in enumerate(tensors.items()):
            proto = numpy_helper.from_array(np.ascontiguousarray(values), tensor)
            (data / f"{kind}_{i}.pb").write_bytes(proto.SerializeToString())


def picture(height, width):
    pixels = noise(3 * height * width, 5) / float(1 << 14) - 1
    return pixels.astype(np.float32).reshape(1, 3, height, width)


def ppocr():
    """Both classes of five pictures, then the likeliest characters' probabilities of five lines."""
    turned = session("ppocr/ch_ppocr_mobile_v2.0_cls_infer.onnx")
    reads = session("ppocr/ch_PP-OCRv4_rec_infer.onnx")
    out = []
    for height, width in [(48, 192), (48, 100), (64, 27), (97, 131), (33, 33)]:
        out.append(turned.run(None, {"x": picture(height, width)})[0].ravel())
    for width in (96, 160, 200, 320, 437):
        out.append(reads.run(None, {"x": picture(48, width)})[0].max(axis=2).ravel())
    return np.concatenate(out)


def main():
    GOLDEN.mkdir(exist_ok=True)
    for name, case in recurrent_layers().items():
        write_case(name, *case)
    goldens = {"ppocr": ppocr(), "magika": magika(), "silero_vad_16k_sequence": silero_sequence("silero_vad_16k_sequence")}
    for name, rate in [
        ("silero_vad", 16000),
        ("silero_vad", 8000),
        ("silero_vad_16k_op15", 16000),
        ("silero_vad_half", 16000),
        ("silero_vad_op18_ifless", 16000),
        ("silero_vad_op18_ifless", 8000),
        ("silero_vad_openvino_16k", 16000),
    ]:
        goldens[f"{name}-{rate}"] = silero(name, rate)
    for name, values in goldens.items():
        np.save(GOLDEN / f"{name}.npy", values.astype(np.float32))
        print(name, values.shape, values.min(), values.max())


if __name__ == "__main__":
    main()
