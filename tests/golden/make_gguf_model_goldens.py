#!/usr/bin/env python3
"""Write tests/golden/gguf/: tiny random models as GGUF files, and what transformers makes of them.

    python3 tests/golden/make_gguf_model_goldens.py [NAME | published MODELS]
        (needs gguf, numpy, torch, transformers, tokenizers, sentencepiece, safetensors, xllamacpp)

Each file is written as llama.cpp's converter writes the architecture: its keys and names, q and k
permuted for llama, 1 added to Gemma's norms, GPT-NeoX's q, k and v apart. Matrices are Q8_0 or Q5_0,
tables of tokens may be F16, other tables are F32. logits.safetensors holds, for each model, tokens and the logits
(of an encoder: the last hidden states) that transformers computes with the weights as the file
rounds them, and texts.json the ids that llama.cpp gives texts. llama.cpp reads every file here and
must give the next token the same probabilities, which proves that the conversion is the one it
expects.
"""

import io
import json
import pathlib
import sys
import urllib.request

import gguf
import numpy as np
import sentencepiece
import tokenizers
import torch
import transformers
import xllamacpp
from safetensors.numpy import load_file, save_file

FOLDER = pathlib.Path(__file__).parent / "gguf"
WIDTH, LAYERS, HEADS, MLP, CONTEXT = 64, 2, 4, 96, 64
TEXTS = [
    "",
    " ",
    "Hello world",
    " Hello  world\n\n\tand   more ",
    "I'm sure it's 12345 o'clock, isn't it? 3.14",
    "na\u00efve caf\u00e9 \u2014 \u65e5\u672c\u8a9e \u043f\u0440\u0438\u0432\u0435\u0442 \U0001f600",
    "CamelCase snake_case <html></html> a+b=c",
    "<s>user</s> text <|end|> after<|end|>",
    "[CLS] the Cats[SEP] unaffable r\u00e9sum\u00e9",
]
PROSE = [
    "the quick brown fox jumps over the lazy dog and the cat sleeps on the warm roof",
    "Hello world, how are you today? I am fine, thank you, and it's 12 o'clock.",
    "caf\u00e9 na\u00efve r\u00e9sum\u00e9 \u2014 unaffable cats are affable dogs, isn't it?",
    "CamelCase and snake_case names, a+b=c, numbers 12345 and 3.14159",
]


def spm_vocabulary(user_defined=()):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(PROSE * 20),
        model_writer=out,
        vocab_size=384,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=list(user_defined),
        minloglevel=2,
        num_threads=1,
    )
    model = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
    pieces, scores, kinds = [], [], []
    for i in range(model.get_piece_size()):
        kind = gguf.TokenType.NORMAL
        if model.is_unknown(i):
            kind = gguf.TokenType.UNKNOWN
        elif model.is_control(i):
            kind = gguf.TokenType.CONTROL
        elif model.is_byte(i):
            kind = gguf.TokenType.BYTE
        elif model.id_to_piece(i) in user_defined:
            kind = gguf.TokenType.USER_DEFINED
        text = model.id_to_piece(i)
        if kind == gguf.TokenType.USER_DEFINED:
            text = text.replace("\u2581", " ")
        pieces.append(text.encode())
        scores.append(model.get_score(i))
        kinds.append(kind)
    return pieces, scores, kinds


def add_spm(w, space_prefix=True, user_defined=()):
    pieces, scores, kinds = spm_vocabulary(user_defined)
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list(pieces)
    w.add_token_scores(scores)
    w.add_token_types(kinds)
    w.add_unk_token_id(0)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_add_bos_token(True)
    w.add_add_eos_token(False)
    w.add_add_space_prefix(space_prefix)
    return len(pieces)


def add_bpe(w, pre):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=382,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(PROSE * 20, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocab = sorted(model["vocab"], key=model["vocab"].get) + ["<|end|>", "<extra>"]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(vocab)
    w.add_token_types(
        [gguf.TokenType.NORMAL] * (len(vocab) - 2)
        + [gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED]
    )
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in model["merges"]])
    w.add_bos_token_id(len(vocab) - 2)
    w.add_eos_token_id(len(vocab) - 2)
    return len(vocab)


def add_wordpiece(w):
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = tokenizers.BertWordPieceTokenizer(lowercase=True)
    tokenizer.train_from_iterator(
        PROSE * 20, vocab_size=384, special_tokens=special, show_progress=False
    )
    vocab = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    texts = [
        t if t in special else t[2:] if t.startswith("##") else "\u2581" + t for t in vocab
    ]
    w.add_tokenizer_model("bert")
    w.add_tokenizer_pre("default")
    w.add_token_list(texts)
    w.add_token_types(
        [gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL for t in vocab]
    )
    w.add_token_type_count(2)
    w.add_pad_token_id(0)
    w.add_unk_token_id(1)
    w.add_bos_token_id(2)
    w.add_eos_token_id(3)
    w.add_sep_token_id(3)
    w.add_mask_token_id(4)
    return len(vocab)


def permute(weight, heads):
    shape = weight.shape
    return weight.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def kinds_first(weight):
    shape = weight.shape
    return weight.reshape(HEADS, 3, WIDTH // HEADS, *shape[1:]).swapaxes(0, 1).reshape(shape)


LLAMA = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA = LLAMA | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
GPT2 = {
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
NEOX = {
    "gpt_neox.embed_in": "token_embd",
    "gpt_neox.final_layer_norm": "output_norm",
    "embed_out": "output",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "attention.query_key_value": "attn_qkv",
    "attention.dense": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
}
BERT = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


def gguf_name(name, table):
    stem, suffix = name.rsplit(".", 1)
    for mark in ("model.layers.", "transformer.h.", "gpt_neox.layers.", "encoder.layer."):
        if stem.startswith(mark):
            layer, inner = stem[len(mark) :].split(".", 1)
            return f"blk.{layer}.{table[inner]}.{suffix}"
    return f"{table[stem]}.{suffix}"


def case(name):
    """The architecture, its tokenizer, the class and configuration of transformers, names and keys."""
    rotary = dict(
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        intermediate_size=MLP,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        initializer_range=0.12,
    )
    t = transformers
    if name == "llama":
        return "llama", add_spm, t.LlamaForCausalLM, t.LlamaConfig(
            **rotary, tie_word_embeddings=False, rope_theta=10000.0), LLAMA
    if name == "llama3":  # rotation slowed down by factors that the file holds as a tensor
        scaling = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                       original_max_position_embeddings=8192, rope_theta=500000.0)
        return "llama", lambda w: add_bpe(w, "llama-bpe"), t.LlamaForCausalLM, t.LlamaConfig(
            **(rotary | dict(num_attention_heads=1, num_key_value_heads=1, head_dim=128)),
            tie_word_embeddings=True, rope_parameters=scaling), LLAMA
    if name == "qwen2":
        return "qwen2", lambda w: add_bpe(w, "qwen2"), t.Qwen2ForCausalLM, t.Qwen2Config(
            **rotary, tie_word_embeddings=True, rope_theta=1e6), LLAMA
    if name == "qwen3":
        return "qwen3", lambda w: add_bpe(w, "qwen2"), t.Qwen3ForCausalLM, t.Qwen3Config(
            **rotary, head_dim=32, tie_word_embeddings=True, rope_theta=1e6), LLAMA
    if name == "gemma3":
        spaces = ["\u2581" * n for n in range(2, 6)] + ["\n", "\n\n", "<html>", "</html>"]
        return "gemma3", lambda w: add_spm(w, False, spaces), t.Gemma3ForCausalLM, t.Gemma3TextConfig(
            **(rotary | dict(num_hidden_layers=6)), head_dim=32, query_pre_attn_scalar=32,
            sliding_window=8, tie_word_embeddings=True), GEMMA
    if name == "gpt2":
        return "gpt2", lambda w: add_bpe(w, "gpt-2"), t.GPT2LMHeadModel, t.GPT2Config(
            n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_inner=MLP, n_positions=CONTEXT,
            initializer_range=0.12), GPT2
    if name == "gptneox":
        return "gptneox", lambda w: add_bpe(w, "smollm"), t.GPTNeoXForCausalLM, t.GPTNeoXConfig(
            hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
            intermediate_size=MLP, max_position_embeddings=CONTEXT, rotary_pct=0.5,
            hidden_act="gelu", initializer_range=0.12, tie_word_embeddings=False), NEOX
    if name == "bert":
        return "bert", add_wordpiece, t.BertModel, t.BertConfig(
            hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
            intermediate_size=MLP, max_position_embeddings=CONTEXT, initializer_range=0.12), BERT
    raise ValueError(name)


def add_keys(w, name, config):
    w.add_context_length(CONTEXT)
    if name == "gpt2":
        w.add_embedding_length(config.n_embd)
        w.add_block_count(config.n_layer)
        w.add_feed_forward_length(config.n_inner)
        w.add_head_count(config.n_head)
        w.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    w.add_embedding_length(config.hidden_size)
    w.add_block_count(config.num_hidden_layers)
    w.add_feed_forward_length(config.intermediate_size)
    w.add_head_count(config.num_attention_heads)
    if name == "gptneox":
        w.add_rope_dimension_count(int(0.5 * WIDTH // HEADS))
        w.add_parallel_residual(True)
        w.add_layer_norm_eps(config.layer_norm_eps)
        return
    if name == "bert":
        w.add_causal_attention(False)
        w.add_layer_norm_eps(config.layer_norm_eps)
        w.add_pooling_type(gguf.PoolingType.MEAN)
        return
    w.add_head_count_kv(config.num_key_value_heads)
    w.add_layer_norm_rms_eps(config.rms_norm_eps)
    parameters = config.rope_parameters
    if name == "gemma3":
        w.add_rope_freq_base(parameters["full_attention"]["rope_theta"])
        w.add_sliding_window(config.sliding_window)
    else:
        w.add_rope_freq_base(parameters["rope_theta"])
        if name == "llama":
            w.add_rope_dimension_count(config.head_dim)
    usual = WIDTH // config.num_attention_heads
    if getattr(config, "head_dim", usual) != usual:
        w.add_key_length(config.head_dim)
        w.add_value_length(config.head_dim)


def llama3_factors(config):
    base, width = config.rope_parameters["rope_theta"], config.head_dim
    frequencies = 1.0 / (base ** (np.arange(0, width, 2, dtype=np.float64) / width))
    factors = []
    for frequency in frequencies:
        wavelength = 2 * np.pi / frequency
        if wavelength < 8192 / 4:
            factors.append(1)
        elif wavelength > 8192 / 1:
            factors.append(8)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            factors.append(1 / ((1 - smooth) / 8 + smooth))
    return np.array(factors, dtype=np.float32)


def write(name):
    arch, add_tokenizer, model_class, config, table = case(name)
    path = FOLDER / f"{name}.gguf"
    w = gguf.GGUFWriter(path, arch)
    config.vocab_size = add_tokenizer(w)
    config.bos_token_id = config.eos_token_id = config.pad_token_id = None
    add_keys(w, arch, config)
    torch.manual_seed(len(name))
    options = {"add_pooling_layer": False} if name == "bert" else {}
    model = model_class(config, **options).eval().float()
    state = {}
    random = np.random.default_rng(len(name))
    for key, tensor in model.state_dict().items():
        if key.endswith((".attn.bias", ".masked_bias", "rotary_emb.inv_freq", "position_ids")):
            continue
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        value = tensor.numpy().copy()
        if value.ndim == 1:
            value = value + random.normal(0, 0.2, value.shape).astype(np.float32)
        changed = value
        if arch == "llama" and key.endswith(("q_proj.weight", "q_proj.bias")):
            changed = permute(value, config.num_attention_heads)
        elif arch == "llama" and key.endswith(("k_proj.weight", "k_proj.bias")):
            changed = permute(value, config.num_key_value_heads)
        elif arch == "gemma3" and key.endswith("norm.weight"):
            changed = value + np.float32(1)
        elif arch == "gptneox" and "query_key_value" in key:
            changed = kinds_first(value)
        elif arch == "gpt2" and value.ndim == 2 and "c_" in key:
            changed = value.T
        kind = gguf.GGMLQuantizationType.F32
        if value.ndim == 2:
            small = key.endswith(("k_proj.weight", "down_proj.weight", "dense_4h_to_h.weight"))
            kind = gguf.GGMLQuantizationType.Q5_0 if small else gguf.GGMLQuantizationType.Q8_0
            if "embed_tokens" in key:
                kind = gguf.GGMLQuantizationType.F16
            if "wpe" in key or "token_type" in key or "position" in key:
                kind = gguf.GGMLQuantizationType.F32
        data = gguf.quants.quantize(np.ascontiguousarray(changed), kind)
        w.add_tensor(gguf_name(key, table), data, raw_dtype=kind)
        # What the file holds, in the order of transformers.
        back = gguf.quants.dequantize(data, kind).reshape(changed.shape).astype(np.float32)
        if changed is value:
            state[key] = back
        elif arch == "llama":
            heads = config.num_attention_heads if "q_proj" in key else config.num_key_value_heads
            shape = back.shape
            state[key] = (
                back.reshape(heads, shape[0] // heads // 2, 2, *shape[1:])
                .swapaxes(1, 2)
                .reshape(shape)
            )
        elif arch == "gemma3":
            state[key] = back - np.float32(1)
        elif arch == "gptneox":
            shape = back.shape
            state[key] = (
                back.reshape(3, HEADS, WIDTH // HEADS, *shape[1:]).swapaxes(0, 1).reshape(shape)
            )
        else:
            state[key] = back.T
    if name == "llama3":
        w.add_tensor("rope_freqs.weight", llama3_factors(config))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    state = {key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in state.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and all("lm_head" in m or "inv_freq" in m or m.endswith(
        (".attn.bias", ".masked_bias", "position_ids")) for m in missing), (missing, unexpected)
    model.tie_weights()
    tokens = np.random.default_rng(3).integers(5, config.vocab_size - 8, (1, 40)).astype(np.int64)
    with torch.no_grad():
        out = model(torch.from_numpy(tokens))
        logits = (out.last_hidden_state if name == "bert" else out.logits).numpy()
    return path, model, tokens, logits


def server_of(path, embeddings=False):
    p = xllamacpp.CommonParams()
    p.model.path = str(path)
    p.n_ctx, p.n_parallel, p.warmup = CONTEXT, 1, False
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
    p.n_gpu_layers = 0
    if embeddings:
        p.embedding = True
    return xllamacpp.Server(p)


def ask(server, path, body):
    request = urllib.request.Request(
        server.listening_address + path,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read())


def check_by_llama_cpp(name, path, model, tokens, logits):
    """llama.cpp gives the next token the probabilities that transformers gives it."""
    server = server_of(path, name == "bert")
    if name == "bert":
        answer = ask(server, "/embedding", {"content": tokens[0].tolist()})
        got = np.array(answer[0]["embedding"]).reshape(-1)
        mean = logits[0].mean(axis=0)
        cosine = got @ mean / np.linalg.norm(got) / np.linalg.norm(mean)
        print(f"  bert: cosine of llama.cpp's vector {cosine:.6f}")
        assert cosine > 0.999
    else:
        compared = 0
        for length in range(3, 40, 4):
            given = tokens[0, :length].tolist()
            answer = ask(server, "/completion", {
                "prompt": given, "n_predict": 1, "temperature": 0, "n_probs": 4,
                "cache_prompt": False})
            row = torch.log_softmax(torch.from_numpy(logits[0, length - 1]), -1)
            # A token that is no whole character has no entry.
            for step in answer.get("completion_probabilities", [])[:1]:
                gaps = [abs(float(row[t["id"]]) - t["logprob"]) for t in step["top_logprobs"]]
                assert max(gaps) < 0.15, f"llama.cpp computes something else: {gaps}"
                compared += 1
        print(f"  {name}: llama.cpp has the same likeliest tokens at {compared} positions")
        assert compared > 2
    texts = []
    for text in TEXTS:
        answer = ask(server, "/tokenize", {
            "content": text, "add_special": True, "parse_special": True})
        texts.append({"text": text, "ids": answer["tokens"]})
    return texts


def pre_tokenized(pre):
    """What llama.cpp makes of the texts with the tokenizer of qwen2.gguf and another pattern."""
    path = FOLDER / "pre.gguf.tmp"
    w = gguf.GGUFWriter(path, "gpt2")
    vocabulary = add_bpe(w, pre)
    w.add_context_length(CONTEXT)
    w.add_embedding_length(32)
    w.add_block_count(1)
    w.add_feed_forward_length(32)
    w.add_head_count(2)
    w.add_layer_norm_eps(1e-5)
    shapes = {"token_embd.weight": (vocabulary, 32), "position_embd.weight": (CONTEXT, 32),
              "output_norm.weight": (32,), "output_norm.bias": (32,)}
    for name, rows in {"attn_norm": 0, "attn_qkv": 96, "attn_output": 32, "ffn_norm": 0,
                       "ffn_up": 32, "ffn_down": 32}.items():
        shapes[f"blk.0.{name}.weight"] = (rows, 32) if rows else (32,)
        shapes[f"blk.0.{name}.bias"] = (rows or 32,)
    for name, shape in shapes.items():
        w.add_tensor(name, np.zeros(shape, dtype=np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    tokens = [gguf.GGUFReader(p).fields["tokenizer.ggml.tokens"].contents()
              for p in (path, FOLDER / "qwen2.gguf")]
    assert tokens[0] == tokens[1]
    server = server_of(path)
    answers = [ask(server, "/tokenize", {"content": text, "add_special": True,
                                         "parse_special": True}) for text in TEXTS]
    path.unlink()
    return [{"text": t, "ids": a["tokens"]} for t, a in zip(TEXTS, answers)]


def published(models):
    """Some logits of gemma3-270m as transformers' own reader of GGUF files dequantises it."""
    folder = pathlib.Path(models) / "gemma3-270m"
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file="gemma-3-270m-q4_k_m.gguf", dtype=torch.float32
    ).eval()
    tokens = [2, 818, 5279, 529, 7001, 563, 506, 5279, 529, 506, 2891, 529, 7001, 236761]
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0].numpy()
    print([int(i) for i in logits.argmax(-1)])
    columns = np.sort(np.random.default_rng(5).choice(logits.shape[1], 512, replace=False))
    save_file(
        {
            "tokens": np.array(tokens, dtype=np.int32),
            "columns": columns.astype(np.int32),
            "logits": np.ascontiguousarray(logits[:, columns]),
            "likeliest": logits.argmax(-1).astype(np.int32),
        },
        FOLDER / "gemma3_270m_logits.safetensors",
    )


def main():
    FOLDER.mkdir(exist_ok=True)
    if sys.argv[1:2] == ["published"]:
        return published(sys.argv[2])
    names = ["llama", "llama3", "qwen2", "qwen3", "gemma3", "gpt2", "gptneox", "bert"]
    chosen = sys.argv[1:] or names
    logits_file, texts_file = FOLDER / "logits.safetensors", FOLDER / "texts.json"
    goldens = load_file(logits_file) if logits_file.exists() else {}
    texts = json.loads(texts_file.read_text()) if texts_file.exists() else {}
    for name in chosen:
        path, model, tokens, logits = write(name)
        goldens[f"{name}.tokens"] = tokens.astype(np.int32)
        goldens[f"{name}.logits"] = logits.astype(np.float32)
        texts[name] = check_by_llama_cpp(name, path, model, tokens, logits)
        print(name, path.stat().st_size, logits.shape)
    if not sys.argv[1:]:
        for pre in ["default", "gpt-2", "llama-bpe", "dbrx", "qwen2", "qwen35", "tekken", "gpt-4o",
                    "smollm", "deepseek-coder", "roberta-bpe"]:
            texts["pre:" + pre] = pre_tokenized(pre)
    save_file(goldens, logits_file)
    blocks = [
        f"{json.dumps(name)}: [\n" + ",\n".join(json.dumps(item) for item in items) + "\n]"
        for name, items in texts.items()
    ]
    texts_file.write_text("{\n" + ",\n".join(blocks) + "\n}\n")


if __name__ == "__main__":
    main()
