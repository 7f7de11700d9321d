#!/usr/bin/env python3
"""Every operator of ONNX that is no product, alone in a file: its time in Brrr and in ONNX Runtime.

bench/peers/onnx_ops.py BRRR [NAME [ROUNDS]]: BRRR is the program, NAME a part of the names of the cases to run. THREADS=N
sets the threads (1). Needs onnx, onnxruntime and numpy. Tensors have 1,048,576 elements. Brrr's time is that of
`brrr run`, which copies inputs and outputs; "kernels" is the kernels' part of it. Sorted by the ratio of Brrr's kernels to
ONNX Runtime; cases that ONNX Runtime does not take have none.
"""
import json, math, os, statistics, subprocess, sys, tempfile, time

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

threads = int(os.environ.get("THREADS", 1))
rows = columns = 1024
rng = np.random.default_rng(0)
types = dict(f32=np.float32, f64=np.float64, f16=np.float16, i8=np.int8, u8=np.uint8, i16=np.int16, i32=np.int32,
             i64=np.int64, u32=np.uint32, u64=np.uint64, bool=np.bool_)
floats, numbers = ("f32", "f64", "f16"), tuple(t for t in types if t != "bool")


def tensor(dtype, *shape):
    if dtype in floats:
        return rng.uniform(0.05, 0.95, shape).astype(types[dtype])
    return rng.integers(0 if dtype == "bool" else 1, 2 if dtype == "bool" else 100, shape).astype(types[dtype])


def matrix(dtype):
    return tensor(dtype, rows, columns)


def cases():
    """(name, dtype, operator, attributes, inputs, constants): constants follow the inputs."""
    for op in ("Exp Log Sqrt Reciprocal Tanh Erf Sigmoid Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Floor Ceil "
               "Round Softplus Gelu Elu HardSigmoid LeakyRelu Mish Selu").split():
        for t in floats:
            yield op, t, op, {}, [matrix(t)], []
    for op in "Neg Abs Relu Sign".split():
        for t in numbers:
            yield op, t, op, {}, [matrix(t)], []
    for op in "Add Sub Mul Div Less Equal LessOrEqual Max Min Pow Mod".split():
        for t in numbers:
            more = dict(fmod=1) if op == "Mod" and t in floats else {}
            yield op, t, op, more, [matrix(t), matrix(t)], []
    for op in "BitwiseAnd BitwiseOr BitwiseXor BitwiseNot".split():
        for t in ("i8", "u8", "i32", "i64"):
            yield op, t, op, {}, [matrix(t)] * (1 if op == "BitwiseNot" else 2), []
    for op in "And Or Xor Not".split():
        yield op, "bool", op, {}, [matrix("bool")] * (1 if op == "Not" else 2), []
    for t in types:
        yield "Where", t, "Where", {}, [matrix("bool"), matrix(t), matrix(t)], []
        for to in ("f32", "f16", "i32", "i64", "u8", "bool"):
            if t != to:
                code = helper.np_dtype_to_tensor_dtype(np.dtype(types[to]))
                yield f"Cast to {to}", t, "Cast", dict(to=code), [matrix(t)], []
        yield "Transpose", t, "Transpose", dict(perm=[1, 0]), [matrix(t)], []
        yield "Transpose to NHWC", t, "Transpose", dict(perm=[0, 2, 3, 1]), [tensor(t, 1, 64, 128, 128)], []
        yield "Slice by 2", t, "Slice", {}, [matrix(t)], [[0], [columns], [1], [2]]
        yield "Slice backwards", t, "Slice", {}, [matrix(t)], [[-1], [-columns - 1], [1], [-1]]
        yield "Concat", t, "Concat", dict(axis=1), [matrix(t), matrix(t)], []
        yield "Pad", t, "Pad", {}, [matrix(t)], [[0, 1, 0, 2]]
        yield "Pad by reflection", t, "Pad", dict(mode="reflect"), [matrix(t)], [[0, 1, 0, 2]]
        yield "Tile", t, "Tile", {}, [tensor(t, rows, columns // 4)], [[1, 4]]
        yield "Expand", t, "Expand", {}, [tensor(t, rows, 1)], [[rows, columns]]
        ids = rng.integers(0, rows, (rows, columns))
        yield "Gather rows", t, "Gather", dict(axis=0), [matrix(t), ids[0]], []
        yield "Gather columns", t, "Gather", dict(axis=1), [matrix(t), ids[0]], []
        yield "GatherElements", t, "GatherElements", dict(axis=1), [matrix(t), ids], []
        yield "GatherND", t, "GatherND", {}, [matrix(t), np.stack([ids, ids[::-1]], -1)], []
        yield "ScatterElements", t, "ScatterElements", dict(axis=1), [matrix(t), ids, matrix(t)], []
        yield "ScatterElements add", t, "ScatterElements", dict(axis=1, reduction="add"), [matrix(t), ids, matrix(t)], []
        yield "ScatterND", t, "ScatterND", {}, [matrix(t), ids[0][:, None], matrix(t)], []
        yield "OneHot", t, "OneHot", {}, [ids[0], np.array(columns), np.array([0, 1]).astype(types[t])], []
        yield "NonZero", t, "NonZero", {}, [matrix(t)], []
    for t in numbers:
        for op in "ReduceSum ReduceMax ReduceMin ReduceProd ReduceMean ReduceL2".split():
            for axis in (0, 1):
                yield f"{op} axis {axis}", t, op, dict(keepdims=0), [matrix(t)], [[axis]]
        for axis in (0, 1):
            yield f"ArgMax axis {axis}", t, "ArgMax", dict(axis=axis, keepdims=0), [matrix(t)], []
            yield f"CumSum axis {axis}", t, "CumSum", {}, [matrix(t)], [np.array(axis)]
            yield f"TopK axis {axis}", t, "TopK", dict(axis=axis), [matrix(t)], [[10]]
        yield "TopK 512", t, "TopK", dict(axis=1), [matrix(t)], [[512]]
        yield "Clip", t, "Clip", {}, [matrix(t)], [np.array(1).astype(types[t]), np.array(40).astype(types[t])]
        yield "MaxPool", t, "MaxPool", dict(kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), [tensor(t, 1, 64, 128, 128)], []
        for mode in ("nearest", "linear", "cubic"):
            image = tensor(t, 1, 16, 128, 128)
            yield f"Resize {mode}", t, "Resize", dict(mode=mode), [image], [None, np.array([1, 1, 2, 2], np.float32)]
        yield "Resize down", t, "Resize", dict(mode="linear", antialias=1), [tensor(t, 1, 64, 128, 128)], \
            [None, np.array([1, 1, 0.5, 0.5], np.float32)]
    for t in floats:
        yield "AveragePool", t, "AveragePool", dict(kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), \
            [tensor(t, 1, 64, 128, 128)], []
        yield "GlobalAveragePool", t, "GlobalAveragePool", {}, [tensor(t, 1, 64, 128, 128)], []
        yield "Softmax", t, "Softmax", dict(axis=1), [matrix(t)], []
        yield "Softmax axis 0", t, "Softmax", dict(axis=0), [matrix(t)], []
        yield "LogSoftmax", t, "LogSoftmax", dict(axis=1), [matrix(t)], []
        yield "LayerNormalization", t, "LayerNormalization", {}, [matrix(t), tensor(t, columns), tensor(t, columns)], []
        yield "InstanceNormalization", t, "InstanceNormalization", {}, \
            [tensor(t, 1, 64, 128, 128), tensor(t, 64), tensor(t, 64)], []
    boxes, scores = rng.uniform(0, 1, (1, 2000, 4)).astype(np.float32), tensor("f32", 1, 10, 2000)
    boxes[..., 2:] = boxes[..., :2] + 0.1
    yield "NonMaxSuppression", "f32", "NonMaxSuppression", {}, [boxes, scores], \
        [np.array(100), np.array(0.5, np.float32), np.array(0.1, np.float32)]


def write_file(path, op, attributes, inputs, constants):
    """A file of one node; None among the constants is an input that is left out."""
    names = [f"x{i}" for i in range(len(inputs))]
    initializers, operands = [], list(names)
    for i, value in enumerate(constants):
        operands.append("" if value is None else f"c{i}")
        if value is not None:
            initializers.append(numpy_helper.from_array(np.asarray(value), f"c{i}"))
    outputs = ["y", "z"] if op == "TopK" else ["y"]
    node = helper.make_node(op, operands, outputs, **attributes)
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in zip(names, inputs)]
    graph = helper.make_graph([node], "op", infos, [onnx.ValueInfoProto(name=n) for n in outputs], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return names


def theirs(path, feed):
    """Milliseconds in ONNX Runtime; NaN where it does not take the file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        times = []
        for _ in range(9):
            begin = time.perf_counter()
            session.run(None, feed)
            times.append((time.perf_counter() - begin) * 1e3)
        return statistics.median(times[1:])
    except Exception:
        return math.nan


def ours(brrr, path, feed, folder):
    """Milliseconds of `brrr run` and of its kernels alone, and a remark; NaN where the file is refused."""
    command = [brrr, "run", path, "--repeats", "9", "--json", "--threads", str(threads)]
    for name, value in feed.items():
        np.save(os.path.join(folder, name + ".npy"), value)
        command += ["--input", f"{name}={folder}/{name}.npy"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return math.nan, math.nan, done.stderr.strip().split("\n")[-1][:90]
    result = json.loads(done.stdout)
    return result["ms"], result["kernels_ms"], f"{result['reference_nodes']} on the reference loops" if result["reference_nodes"] else ""


def main(brrr, only="", rounds=1):
    results = []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "op.onnx")
        for name, dtype, op, attributes, inputs, constants in cases():
            if only not in f"{name} {dtype}":
                continue
            try:
                names = write_file(path, op, attributes, inputs, constants)
            except Exception:
                continue  # the operator does not take the dtype
            feed = dict(zip(names, inputs))
            measured = [(theirs(path, feed), *ours(brrr, path, feed, folder)) for _ in range(int(rounds))]
            peer, run, kernels = (statistics.median(m[i] for m in measured) for i in range(3))
            results.append((kernels / peer, name, dtype, peer, run, kernels, measured[0][3]))
            print(f"{name} {dtype}: {kernels / peer:.2f}", file=sys.stderr)
    print("| operator | type | ONNX Runtime, ms | run, ms | kernels, ms | ratio | remark |")
    print("|---|---|---|---|---|---|---|")
    for ratio, name, dtype, peer, run, kernels, remark in sorted(results, key=lambda r: -r[0] if r[0] == r[0] else 0):
        print(f"| {name} | {dtype} | {peer:.3f} | {run:.3f} | {kernels:.3f} | {ratio:.2f} | {remark} |")
    ratios = [r[0] for r in results if r[0] == r[0]]
    if ratios:
        print(f"{len(ratios)} cases; median {statistics.median(ratios):.2f}, {sum(r > 3 for r in ratios)} above 3")


main(*sys.argv[1:])
