#include "folders/gguf/gguf_names.h"

#include <algorithm>

namespace brrr::io {
namespace {

using enum GgufChange;

constexpr GgufName kLlamaNames[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
    {"blk.#.attn_norm", "model.layers.#.input_layernorm"},
    {"blk.#.attn_q", "model.layers.#.self_attn.q_proj", query_pairs, query_pairs},
    {"blk.#.attn_k", "model.layers.#.self_attn.k_proj", key_pairs, key_pairs},
    {"blk.#.attn_v", "model.layers.#.self_attn.v_proj"},
    {"blk.#.attn_output", "model.layers.#.self_attn.o_proj"},
    {"blk.#.ffn_norm", "model.layers.#.post_attention_layernorm"},
    {"blk.#.ffn_gate", "model.layers.#.mlp.gate_proj"},
    {"blk.#.ffn_up", "model.layers.#.mlp.up_proj"},
    {"blk.#.ffn_down", "model.layers.#.mlp.down_proj"},
};

// llama.cpp rotates the halves of the heads of these as transformers does.
constexpr GgufName kQwenNames[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
    {"blk.#.attn_norm", "model.layers.#.input_layernorm"},
    {"blk.#.attn_q", "model.layers.#.self_attn.q_proj"},
    {"blk.#.attn_k", "model.layers.#.self_attn.k_proj"},
    {"blk.#.attn_v", "model.layers.#.self_attn.v_proj"},
    {"blk.#.attn_q_norm", "model.layers.#.self_attn.q_norm"},
    {"blk.#.attn_k_norm", "model.layers.#.self_attn.k_norm"},
    {"blk.#.attn_output", "model.layers.#.self_attn.o_proj"},
    {"blk.#.ffn_norm", "model.layers.#.post_attention_layernorm"},
    {"blk.#.ffn_gate", "model.layers.#.mlp.gate_proj"},
    {"blk.#.ffn_up", "model.layers.#.mlp.up_proj"},
    {"blk.#.ffn_down", "model.layers.#.mlp.down_proj"},
};

constexpr GgufName kGemma3Names[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm", one_added},
    {"output", "lm_head"},
    {"blk.#.attn_norm", "model.layers.#.input_layernorm", one_added},
    {"blk.#.attn_q", "model.layers.#.self_attn.q_proj"},
    {"blk.#.attn_k", "model.layers.#.self_attn.k_proj"},
    {"blk.#.attn_v", "model.layers.#.self_attn.v_proj"},
    {"blk.#.attn_q_norm", "model.layers.#.self_attn.q_norm", one_added},
    {"blk.#.attn_k_norm", "model.layers.#.self_attn.k_norm", one_added},
    {"blk.#.attn_output", "model.layers.#.self_attn.o_proj"},
    {"blk.#.post_attention_norm", "model.layers.#.post_attention_layernorm", one_added},
    {"blk.#.ffn_norm", "model.layers.#.pre_feedforward_layernorm", one_added},
    {"blk.#.ffn_gate", "model.layers.#.mlp.gate_proj"},
    {"blk.#.ffn_up", "model.layers.#.mlp.up_proj"},
    {"blk.#.ffn_down", "model.layers.#.mlp.down_proj"},
    {"blk.#.post_ffw_norm", "model.layers.#.post_feedforward_layernorm", one_added},
};

// transformers keeps GPT-2's products as [in, out].
constexpr GgufName kGpt2Names[] = {
    {"token_embd", "transformer.wte"},
    {"position_embd", "transformer.wpe"},
    {"output_norm", "transformer.ln_f"},
    {"output", "lm_head"},
    {"blk.#.attn_norm", "transformer.h.#.ln_1"},
    {"blk.#.attn_qkv", "transformer.h.#.attn.c_attn", transposed},
    {"blk.#.attn_output", "transformer.h.#.attn.c_proj", transposed},
    {"blk.#.ffn_norm", "transformer.h.#.ln_2"},
    {"blk.#.ffn_up", "transformer.h.#.mlp.c_fc", transposed},
    {"blk.#.ffn_down", "transformer.h.#.mlp.c_proj", transposed},
};

constexpr GgufName kGptNeoxNames[] = {
    {"token_embd", "gpt_neox.embed_in"},
    {"output_norm", "gpt_neox.final_layer_norm"},
    {"output", "embed_out"},
    {"blk.#.attn_norm", "gpt_neox.layers.#.input_layernorm"},
    {"blk.#.attn_qkv", "gpt_neox.layers.#.attention.query_key_value", kinds_first, kinds_first},
    {"blk.#.attn_output", "gpt_neox.layers.#.attention.dense"},
    {"blk.#.ffn_norm", "gpt_neox.layers.#.post_attention_layernorm"},
    {"blk.#.ffn_up", "gpt_neox.layers.#.mlp.dense_h_to_4h"},
    {"blk.#.ffn_down", "gpt_neox.layers.#.mlp.dense_4h_to_h"},
};

constexpr GgufName kBertNames[] = {
    {"token_embd", "bert.embeddings.word_embeddings"},
    {"token_types", "bert.embeddings.token_type_embeddings"},
    {"position_embd", "bert.embeddings.position_embeddings"},
    {"token_embd_norm", "bert.embeddings.LayerNorm"},
    {"blk.#.attn_q", "bert.encoder.layer.#.attention.self.query"},
    {"blk.#.attn_k", "bert.encoder.layer.#.attention.self.key"},
    {"blk.#.attn_v", "bert.encoder.layer.#.attention.self.value"},
    {"blk.#.attn_output", "bert.encoder.layer.#.attention.output.dense"},
    {"blk.#.attn_output_norm", "bert.encoder.layer.#.attention.output.LayerNorm"},
    {"blk.#.ffn_up", "bert.encoder.layer.#.intermediate.dense"},
    {"blk.#.ffn_down", "bert.encoder.layer.#.output.dense"},
    {"blk.#.layer_output_norm", "bert.encoder.layer.#.output.LayerNorm"},
    {"cls", "bert.pooler.dense"},
    {"cls.output", "classifier"},
};

constexpr GgufArchitecture kArchitectures[] = {
    {"llama", kLlamaNames},   {"qwen2", kQwenNames}, {"qwen3", kQwenNames},
    {"gemma3", kGemma3Names}, {"gpt2", kGpt2Names},  {"gptneox", kGptNeoxNames},
    {"bert", kBertNames},
};

constexpr std::string_view kLayerStart = "blk.";

}  // namespace

const GgufArchitecture* find_gguf_architecture(std::string_view name) {
  const auto at = std::ranges::find(kArchitectures, name, &GgufArchitecture::name);
  return at == std::end(kArchitectures) ? nullptr : at;
}

std::string known_gguf_architectures() {
  std::string names;
  for (const GgufArchitecture& a : kArchitectures)
    names.append(names.empty() ? "" : ", ").append(a.name);
  return names;
}

TranslatedName translated(const GgufArchitecture& architecture, std::string_view gguf_name) {
  const size_t dot = gguf_name.rfind('.');
  if (dot == std::string_view::npos) return {};
  const std::string_view suffix = gguf_name.substr(dot);
  if (suffix != ".weight" && suffix != ".bias") return {};
  std::string stem(gguf_name.substr(0, dot));
  std::string_view layer;
  if (gguf_name.starts_with(kLayerStart)) {
    const size_t end = gguf_name.find_first_not_of("0123456789", kLayerStart.size());
    layer = gguf_name.substr(kLayerStart.size(), end - kLayerStart.size());
    if (!layer.empty()) stem.replace(kLayerStart.size(), layer.size(), "#");
  }
  const auto at = std::ranges::find(architecture.names, std::string_view(stem), &GgufName::gguf);
  if (at == architecture.names.end()) return {};
  std::string name(at->name);
  if (const size_t mark = name.find('#'); mark != std::string::npos) name.replace(mark, 1, layer);
  return {name.append(suffix), suffix == ".weight" ? at->weight : at->bias};
}

TranslatedName gguf_name_of(const GgufArchitecture& architecture, std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return {};
  const std::string_view stem = name.substr(0, dot), suffix = name.substr(dot);
  if (suffix != ".weight" && suffix != ".bias") return {};
  for (const GgufName& row : architecture.names) {
    const size_t mark = row.name.find('#');
    std::string found(row.gguf);
    if (mark == std::string_view::npos) {
      if (stem != row.name) continue;
    } else {
      const std::string_view before = row.name.substr(0, mark), behind = row.name.substr(mark + 1);
      if (!stem.starts_with(before) || !stem.ends_with(behind) ||
          stem.size() <= before.size() + behind.size())
        continue;
      const std::string_view layer = stem.substr(mark, stem.size() - before.size() - behind.size());
      if (layer.find_first_not_of("0123456789") != std::string_view::npos) continue;
      found.replace(found.find('#'), 1, layer);
    }
    return {found.append(suffix), suffix == ".weight" ? row.weight : row.bias};
  }
  return {};
}

int64_t gguf_row(GgufChange change, int64_t heads, int64_t row, int64_t rows) {
  switch (change) {
    case GgufChange::query_pairs:
    case GgufChange::key_pairs: {
      const int64_t width = rows / heads, half = width / 2;
      const int64_t head = row / width, at = row % width;
      return head * width + at % half * 2 + at / half;
    }
    case GgufChange::kinds_first: {
      const int64_t width = rows / (3 * heads);
      const int64_t head = row / (3 * width), kind = row / width % 3;
      return (kind * heads + head) * width + row % width;
    }
    default:
      return row;
  }
}

}  // namespace brrr::io
