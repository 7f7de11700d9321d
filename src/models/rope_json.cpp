#include "models/rope_json.h"

#include "base/errors.h"

namespace brrr::models {

using io::Json;

namespace {

RopeConfig::Kind kind_of(const ConfigReader& scaling) {
  const std::string name = scaling.text("rope_type", scaling.text("type", "default").c_str());
  using Kind = RopeConfig::Kind;
  for (const Kind kind : {Kind::plain, Kind::linear, Kind::dynamic, Kind::llama3, Kind::yarn})
    if (name_of(kind) == name) return kind;
  user_error("{}: rope_type must be default, linear, dynamic, llama3 or yarn; found {}",
             scaling.what(), io::in_quotes(name));
}

}  // namespace

void read_rope_object(RopeConfig& rope, const ConfigReader& scaling, int64_t context) {
  rope.kind = kind_of(scaling);
  using Kind = RopeConfig::Kind;
  rope.theta = scaling.number("rope_theta", rope.theta);
  rope.partial_rotary_factor = scaling.number("partial_rotary_factor", rope.partial_rotary_factor);
  if (rope.kind == Kind::plain) return;
  rope.factor = scaling.required_number("factor");
  if (rope.kind == Kind::dynamic)
    rope.original_context = scaling.integer("original_max_position_embeddings", 0);
  if (rope.kind == Kind::llama3) {
    rope.low_freq_factor = scaling.required_number("low_freq_factor");
    rope.high_freq_factor = scaling.required_number("high_freq_factor");
    rope.original_context = scaling.required_integer("original_max_position_embeddings");
  }
  if (rope.kind == Kind::yarn) {
    rope.original_context = scaling.integer("original_max_position_embeddings", context);
    rope.attention_factor = scaling.number("attention_factor", 0);
    rope.beta_fast = scaling.number("beta_fast", 32);
    rope.beta_slow = scaling.number("beta_slow", 1);
    rope.mscale = scaling.number("mscale", 0);
    rope.mscale_all_dim = scaling.number("mscale_all_dim", 0);
    rope.truncate = scaling.flag("truncate", true);
  }
}

void read_rope(RopeConfig& rope, const ConfigReader& keys, int64_t context) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!keys.has(key)) continue;
    const ConfigReader scaling(keys, key);
    for (const auto& [name, value] : keys.find(key)->items())
      if (value.is_object())
        user_error("{}: settings of its own for a kind of layer ({}) are not supported",
                   scaling.what(), io::in_quotes(name));
    read_rope_object(rope, scaling, context);
  }
}

Json written_rope(const RopeConfig& c) {
  using Kind = RopeConfig::Kind;
  if (c.kind == Kind::plain) return Json();
  Json out = {{"rope_type", name_of(c.kind)}, {"factor", c.factor}};
  if (c.original_context > 0) out["original_max_position_embeddings"] = c.original_context;
  if (c.kind == Kind::llama3) {
    out["low_freq_factor"] = c.low_freq_factor;
    out["high_freq_factor"] = c.high_freq_factor;
  }
  if (c.kind == Kind::yarn) {
    out["beta_fast"] = c.beta_fast;
    out["beta_slow"] = c.beta_slow;
    if (c.attention_factor != 0) out["attention_factor"] = c.attention_factor;
    if (c.mscale != 0) out["mscale"] = c.mscale;
    if (c.mscale_all_dim != 0) out["mscale_all_dim"] = c.mscale_all_dim;
    if (!c.truncate) out["truncate"] = false;
  }
  return out;
}

}  // namespace brrr::models
