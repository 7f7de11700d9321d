#!/usr/bin/env python3
"""Write tests/golden/onnx_operators.safetensors: operators that ONNX's backend suite does not cover,
as ONNX Runtime computes them: com.microsoft's, and forms of others.

    python3 tests/golden/make_onnx_operator_goldens.py

Of each case: the file with its one node ("CASE/model"), inputs ("CASE/in/NAME") and outputs
("CASE/out/NAME"). tests/conformance/onnx_operators_test.cpp reads them.
"""

import pathlib

import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from safetensors.numpy import save_file

GOLDEN = pathlib.Path(__file__).parent / "onnx_operators.safetensors"
RANDOM = np.random.default_rng(3)
CASES = {}


def floats(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def bytes_(*shape):
    return RANDOM.integers(0, 256, shape).astype(np.uint8)


def signed(*shape):
    return RANDOM.integers(-127, 128, shape).astype(np.int8)


def ids(count, *shape):
    return RANDOM.integers(0, count, shape).astype(np.int32)


def scalar(x, dtype=np.float32):
    return np.array(x, dtype)


def angles(width):
    angle = np.arange(16)[:, None] / 10000 ** (np.arange(width) / width)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def case(name, operator, inputs, outs=1, domain="com.microsoft", opset=17, ml=3, **attributes):
    """outs: how many outputs, or which."""
    which = list(range(outs)) if isinstance(outs, int) else outs
    CASES[name] = (operator, inputs, which, domain, (opset, ml), attributes)


def full_trees(count, depth, features, targets):
    """Attributes of TreeEnsemble: full trees whose nodes compare as they like."""
    inner, leaves = 2**depth - 1, 2**depth
    lists = {f"nodes_{key}": [] for key in ("truenodeids", "falsenodeids", "trueleafs", "falseleafs")}
    for tree in range(count):
        for node in range(inner):
            for branch, child in (("false", 2 * node + 2), ("true", 2 * node + 1)):
                is_leaf = child >= inner
                place = tree * leaves + child - inner if is_leaf else tree * inner + child
                lists[f"nodes_{branch}nodeids"].append(place)
                lists[f"nodes_{branch}leafs"].append(int(is_leaf))
    numbers = RANDOM.standard_normal(count * (inner + leaves)).astype(np.float32)
    tensor = helper.make_tensor
    nodes = count * inner
    return {
        **lists,
        "tree_roots": [tree * inner for tree in range(count)],
        "nodes_featureids": RANDOM.integers(0, features, nodes).tolist(),
        "nodes_modes": tensor("modes", TensorProto.UINT8, [nodes], RANDOM.integers(0, 6, nodes)),
        "nodes_splits": tensor("splits", TensorProto.FLOAT, [nodes], numbers[:nodes]),
        "leaf_weights": tensor("w", TensorProto.FLOAT, [count * leaves], numbers[nodes:]),
        "leaf_targetids": RANDOM.integers(0, targets, count * leaves).tolist(),
        "n_targets": targets,
    }


cos, sin = angles(4)
cos16, sin16 = angles(8)
case(
    "fused_matmul",
    "FusedMatMul",
    [floats(2, 3, 4), floats(2, 5, 3)],
    alpha=0.5,
    transA=1,
    transB=1,
)
case("gelu", "Gelu", [floats(3, 8)])
case("bias_gelu", "BiasGelu", [floats(3, 8), floats(8)])
case("fast_gelu", "FastGelu", [floats(3, 8), floats(8)])
case("quick_gelu", "QuickGelu", [floats(3, 8)], alpha=1.5)
case(
    "skip_norm",
    "SkipLayerNormalization",
    [floats(2, 3, 8), floats(2, 3, 8), floats(8), floats(8), floats(8)],
    outs=[0, 3],
    epsilon=1e-05,
)
case(
    "skip_rms",
    "SkipSimplifiedLayerNormalization",
    [floats(2, 3, 8), floats(2, 3, 8), floats(8), floats(8)],
    outs=[0, 3],
    epsilon=1e-05,
)
case(
    "simplified",
    "SimplifiedLayerNormalization",
    [floats(2, 3, 8), floats(8)],
    domain="",
    epsilon=1e-05,
    axis=-1,
)
case(
    "embed",
    "EmbedLayerNormalization",
    [
        ids(9, 2, 5),
        ids(2, 2, 5),
        floats(9, 8),
        floats(6, 8),
        floats(2, 8),
        floats(8),
        floats(8),
        np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32),
    ],
    outs=[0, 1],
    epsilon=1e-05,
)
case("attention", "Attention", [floats(2, 5, 8), floats(8, 24), floats(24)], num_heads=2)
case(
    "attention_mask",
    "Attention",
    [
        floats(2, 5, 8),
        floats(8, 24),
        floats(24),
        np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32),
    ],
    num_heads=2,
)
case(
    "attention_lengths",
    "Attention",
    [floats(2, 5, 8), floats(8, 24), floats(24), np.array([3, 5], np.int32)],
    num_heads=2,
)
case(
    "attention_causal",
    "Attention",
    [floats(2, 5, 8), floats(8, 24), floats(24)],
    num_heads=2,
    unidirectional=1,
)
case(
    "attention_past",
    "Attention",
    [floats(2, 2, 8), floats(8, 24), floats(24), None, floats(2, 2, 2, 3, 4)],
    outs=2,
    num_heads=2,
    unidirectional=1,
)
case(
    "attention_bias",
    "Attention",
    [floats(2, 5, 8), floats(8, 24), floats(24), None, None, floats(2, 2, 5, 5)],
    num_heads=2,
)
case(
    "mha",
    "MultiHeadAttention",
    [floats(2, 4, 8), floats(2, 6, 8), floats(2, 6, 8), floats(24)],
    num_heads=2,
)
case(
    "mha_mask",
    "MultiHeadAttention",
    [
        floats(2, 4, 8),
        floats(2, 6, 8),
        floats(2, 6, 8),
        None,
        np.array([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]], np.int32),
    ],
    num_heads=2,
)
case(
    "mha_past",
    "MultiHeadAttention",
    [
        floats(2, 1, 8),
        floats(2, 1, 8),
        floats(2, 1, 8),
        None,
        None,
        floats(1, 2, 1, 4),
        floats(2, 2, 3, 4),
        floats(2, 2, 3, 4),
    ],
    outs=3,
    num_heads=2,
)
case(
    "mha_cross",
    "MultiHeadAttention",
    [floats(2, 4, 8), floats(2, 2, 6, 4), floats(2, 2, 6, 4)],
    num_heads=2,
    scale=0.3,
)
case(
    "gqa_prompt",
    "GroupQueryAttention",
    [
        floats(2, 5, 64),
        floats(2, 5, 32),
        floats(2, 5, 32),
        None,
        None,
        np.array([4, 4], np.int32),
        scalar(5, np.int32),
        cos16,
        sin16,
    ],
    outs=3,
    num_heads=4,
    kv_num_heads=2,
    do_rotary=1,
)
case(
    "gqa_step",
    "GroupQueryAttention",
    [
        floats(2, 1, 64),
        floats(2, 1, 32),
        floats(2, 1, 32),
        floats(2, 2, 5, 16),
        floats(2, 2, 5, 16),
        np.array([5, 5], np.int32),
        scalar(6, np.int32),
        cos16,
        sin16,
    ],
    outs=3,
    num_heads=4,
    kv_num_heads=2,
    do_rotary=1,
    rotary_interleaved=1,
)
case(
    "gqa_window",
    "GroupQueryAttention",
    [
        floats(1, 5, 32),
        floats(1, 5, 16),
        floats(1, 5, 16),
        None,
        None,
        np.array([4], np.int32),
        scalar(5, np.int32),
    ],
    outs=3,
    num_heads=4,
    kv_num_heads=2,
    local_window_size=2,
)
case(
    "gqa_softcap",
    "GroupQueryAttention",
    [floats(1, 5, 64), None, None, None, None, np.array([4], np.int32), scalar(5, np.int32)],
    outs=3,
    num_heads=4,
    kv_num_heads=2,
    softcap=2.0,
)
case(
    "rotary",
    "RotaryEmbedding",
    [floats(2, 3, 16), np.array([[0, 1, 2], [4, 5, 6]], np.int64), cos, sin],
)
case(
    "rotary_offset",
    "RotaryEmbedding",
    [floats(2, 2, 3, 8), np.array([3], np.int64), cos, sin],
    interleaved=1,
)
case(
    "mm_int_float",
    "MatMulIntegerToFloat",
    [
        bytes_(3, 16),
        signed(16, 5),
        scalar(0.1),
        floats(5),
        scalar(120, np.uint8),
        signed(5),
        floats(5),
    ],
)
case(
    "mm_int_u8",
    "MatMulInteger",
    [bytes_(3, 16), bytes_(16, 5), scalar(120, np.uint8), scalar(7, np.uint8)],
    domain="",
)
case(
    "mm_int_cols",
    "MatMulInteger",
    [signed(2, 3, 16), signed(16, 5), scalar(3, np.int8), signed(5)],
    domain="",
)
case(
    "dq_matmul",
    "DynamicQuantizeMatMul",
    [floats(3, 16), signed(16, 5), np.abs(floats(5)), signed(5), floats(5)],
)
case(
    "qadd",
    "QLinearAdd",
    [
        bytes_(3, 8),
        scalar(0.1),
        scalar(100, np.uint8),
        bytes_(8),
        scalar(0.2),
        scalar(20, np.uint8),
        scalar(0.3),
        scalar(30, np.uint8),
    ],
)
case(
    "qmul",
    "QLinearMul",
    [
        signed(3, 8),
        scalar(0.1),
        scalar(10, np.int8),
        signed(3, 8),
        scalar(0.02),
        scalar(2, np.int8),
        scalar(0.31),
        scalar(3, np.int8),
    ],
)
case(
    "qsig",
    "QLinearSigmoid",
    [bytes_(3, 8), scalar(0.05), scalar(128, np.uint8), scalar(1 / 256), scalar(0, np.uint8)],
)
case(
    "qleaky",
    "QLinearLeakyRelu",
    [bytes_(3, 8), scalar(0.05), scalar(128, np.uint8), scalar(0.04), scalar(10, np.uint8)],
    alpha=0.1,
)
case(
    "qconcat",
    "QLinearConcat",
    [
        scalar(0.1),
        scalar(100, np.uint8),
        bytes_(2, 3),
        scalar(0.05),
        scalar(128, np.uint8),
        bytes_(2, 2),
        scalar(0.2),
        scalar(10, np.uint8),
    ],
    axis=1,
)
case(
    "nbits4",
    "MatMulNBits",
    [floats(3, 32), bytes_(5, 2, 8), np.abs(floats(10))],
    K=32,
    N=5,
    bits=4,
    block_size=16,
)
case(
    "nbits4_zp",
    "MatMulNBits",
    [floats(3, 48), bytes_(5, 3, 8), np.abs(floats(15)), bytes_(10)],
    K=48,
    N=5,
    bits=4,
    block_size=16,
)
case(
    "nbits8",
    "MatMulNBits",
    [floats(3, 32), bytes_(5, 2, 16), np.abs(floats(10)), bytes_(10)],
    K=32,
    N=5,
    bits=8,
    block_size=16,
)
case(
    "nbits4_bias",
    "MatMulNBits",
    [floats(2, 3, 40), bytes_(5, 3, 8), np.abs(floats(15)), None, None, floats(5)],
    K=40,
    N=5,
    bits=4,
    block_size=16,
)
case(
    "scaler",
    "Scaler",
    [floats(3, 4)],
    domain="ai.onnx.ml",
    offset=[1.0, 2.0, 3.0, 4.0],
    scale=[0.5, 1.0, 2.0, 3.0],
)
case(
    "labels_int",
    "LabelEncoder",
    [np.array([1, 5, 9, 2], np.int64)],
    domain="ai.onnx.ml",
    keys_int64s=[1, 2, 5],
    values_floats=[0.5, 1.5, 2.5],
    default_float=-2.0,
)
case(
    "einsum_ellipsis",
    "Einsum",
    [floats(2, 3, 4), floats(2, 4, 5)],
    domain="",
    equation="...ij,...jk->...ik",
)
case(
    "einsum_three",
    "Einsum",
    [floats(3, 4), floats(4, 5), floats(5, 3)],
    domain="",
    equation="ij,jk,ki->",
)
case("einsum_implicit", "Einsum", [floats(3, 4), floats(4, 5)], domain="", equation="bj,ja")
case(
    "einsum_attn",
    "Einsum",
    [floats(2, 3, 4, 5), floats(2, 6, 4, 5)],
    domain="",
    equation="bqhd,bkhd->bhqk",
)
case("einsum_outer", "Einsum", [floats(3), floats(4)], domain="", equation="i,j->ij")
case("einsum_diag", "Einsum", [floats(4, 3, 3), floats(3)], domain="", equation="bii,i->b")
case("det5", "Det", [floats(3, 5, 5)], domain="")
case("dft_large", "DFT", [floats(2, 400, 1)], domain="", onesided=1, opset=17)
case("dft_prime", "DFT", [floats(2, 131, 2)], domain="", opset=17)
case("dft_len", "DFT", [floats(2, 12, 1), scalar(200, np.int64)], domain="", opset=17)
case("dft_inv", "DFT", [floats(2, 360, 2)], domain="", inverse=1, opset=17)
case(
    "softcap24",
    "Attention",
    [floats(1, 2, 3, 4), floats(1, 2, 5, 4), floats(1, 2, 5, 4), floats(3, 5)],
    domain="",
    opset=23,
    softcap=1.5,
    is_causal=1,
)
case(
    "nms",
    "NonMaxSuppression",
    [
        np.abs(floats(2, 12, 4)),
        np.abs(floats(2, 2, 12)),
        scalar([5], np.int64),
        scalar([0.3]),
        scalar([0.2]),
    ],
    domain="",
    opset=11,
)
case(
    "qattention",
    "QAttention",
    [
        bytes_(2, 5, 8),
        signed(8, 24),
        floats(24),
        scalar(0.02),
        scalar(0.01),
        np.array([3, 5], np.int32),
        scalar(128, np.uint8),
        scalar(0, np.int8),
    ],
    num_heads=2,
)
case(
    "qgemm",
    "QGemm",
    [
        bytes_(3, 16),
        scalar(0.1),
        scalar(120, np.uint8),
        signed(5, 16),
        scalar(0.02),
        scalar(3, np.int8),
        ids(500, 5),
        scalar(0.7),
        scalar(90, np.uint8),
    ],
    transB=1,
)
case(
    "qgemm_columns",
    "QGemm",
    [
        bytes_(3, 16),
        scalar(0.1),
        scalar(120, np.uint8),
        signed(16, 5),
        np.abs(floats(5)),
        signed(5),
        None,
    ],
)
grams = {
    "min_gram_length": 1,
    "max_gram_length": 2,
    "max_skip_count": 2,
    "ngram_counts": [0, 4],
    "ngram_indexes": [6, 0, 2, 3, 5, 1, 4],
    "pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8, 6, 7],
    "weights": [0.5, 2.0, 1.0, 3.0, 4.0, 1.5, 0.25],
    "domain": "",
}
words = np.array([[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8]], np.int64)
for mode in ("TF", "IDF", "TFIDF"):
    case(f"tf_idf_{mode}", "TfIdfVectorizer", [words], mode=mode, **grams)
for aggregate in range(4):
    case(
        f"trees_{aggregate}",
        "TreeEnsemble",
        [floats(6, 4)],
        domain="ai.onnx.ml",
        ml=5,
        aggregate_function=aggregate,
        post_transform=0,
        **full_trees(3, 3, 4, 2),
    )


def model_of(operator, inputs, which, domain, opset, attributes):
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    outputs = [f"y{i}" if i in which else "" for i in range(max(which) + 1)]
    node = helper.make_node(operator, names, outputs, domain=domain, **attributes)
    feed = {name: x for name, x in zip(names, inputs) if x is not None}
    graph = helper.make_graph(
        [node],
        operator,
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in feed.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs if name],
    )
    domains = {"": opset[0], "com.microsoft": 1, "ai.onnx.ml": opset[1]}
    opsets = [helper.make_opsetid(name, version) for name, version in domains.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), feed


def main():
    goldens = {}
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for name, parts in CASES.items():
        model, feed = model_of(*parts)
        data = model.SerializeToString()
        session = onnxruntime.InferenceSession(data, options)
        goldens[f"{name}/model"] = np.frombuffer(data, np.uint8)
        for key, x in feed.items():
            goldens[f"{name}/in/{key}"] = np.array(x, order="C")
        for port, y in zip(session.get_outputs(), session.run(None, feed)):
            goldens[f"{name}/out/{port.name}"] = np.array(y, order="C")
    save_file(goldens, str(GOLDEN))
    GOLDEN.chmod(0o644)


if __name__ == "__main__":
    main()
