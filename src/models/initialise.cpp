#include "models/initialise.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "base/rng.h"
#include "base/threads/parallel.h"

namespace brrr::models {
namespace {

// FNV-1a: a stream number for each name.
uint32_t stream_of(std::string_view name) {
  uint32_t hash = 2166136261u;
  for (char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619u;
  return hash;
}

// Box and Muller: two normals from two uniforms.
void normal_pair(uint32_t a, uint32_t b, float scale, float* out) {
  const float u = (static_cast<float>(a >> 8) + 1.0f) * 0x1p-24f;  // (0, 1]
  const float r = scale * std::sqrt(-2.0f * std::log(u));
  const float angle = 6.28318530718f * uniform_from_bits(b);
  out[0] = r * std::cos(angle);
  out[1] = r * std::sin(angle);
}

void fill_normal(std::span<float> out, float scale, RngKey key, uint32_t stream) {
  const int64_t n = static_cast<int64_t>(out.size());
  parallel_for((n + 3) / 4, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const auto words = philox(key, stream, static_cast<uint64_t>(block));
      float four[4];
      normal_pair(words[0], words[1], scale, four);
      normal_pair(words[2], words[3], scale, four + 2);
      std::copy_n(four, std::min<int64_t>(4, n - 4 * block), out.data() + 4 * block);
    }
  });
}

void fill_uniform(std::span<float> out, float bound, RngKey key, uint32_t stream) {
  const int64_t n = static_cast<int64_t>(out.size());
  parallel_for((n + 3) / 4, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const auto words = philox(key, stream, static_cast<uint64_t>(block));
      float four[4];
      for (size_t i = 0; i < 4; ++i) four[i] = bound * (2 * uniform_from_bits(words[i]) - 1);
      std::copy_n(four, std::min<int64_t>(4, n - 4 * block), out.data() + 4 * block);
    }
  });
}

}  // namespace

void initialise(const ParameterInfo& parameter, uint32_t seed, std::span<float> out) {
  switch (parameter.fill.kind) {
    case Fill::Kind::zeros:
      std::fill(out.begin(), out.end(), 0.0f);
      break;
    case Fill::Kind::ones:
      std::fill(out.begin(), out.end(), 1.0f);
      break;
    case Fill::Kind::normal:
      // The key's second word keeps these streams apart from those of dropout, whose words are
      // steps.
      fill_normal(out, static_cast<float>(parameter.fill.deviation), {seed, 0xffffffffu},
                  stream_of(parameter.name));
      break;
    case Fill::Kind::uniform:
      fill_uniform(out, static_cast<float>(parameter.fill.deviation), {seed, 0xffffffffu},
                   stream_of(parameter.name));
  }
}

FloatWeights initial_weights(const Model& model, uint32_t seed) {
  std::map<std::string, ParameterInfo, std::less<>> by_name;
  for (const ParameterInfo& p : model.parameters()) by_name.emplace(p.name, p);
  return [by_name = std::move(by_name), seed](std::string_view name, std::span<float> out) {
    const auto at = by_name.find(name);
    BRRR_CHECK(at != by_name.end(), "the model has no parameter '{}'", name);
    initialise(at->second, seed, out);
  };
}

std::shared_ptr<const WeightList> made_weights(const Model& model, FloatWeights make,
                                               std::shared_ptr<const WeightSource> given) {
  // A tensor that `given` makes when it is read stays its own.
  const auto read = [given, make = std::move(make)](std::string_view name, std::span<float> to) {
    const TensorView* const tensor = given ? given->find(name) : nullptr;
    if (tensor == nullptr) return make(name, to);
    given->read(*tensor, std::as_writable_bytes(to));
  };
  const auto read_counter = [given](std::string_view name, std::span<std::byte> to) {
    const TensorView* const tensor = given ? given->find(name) : nullptr;
    if (tensor != nullptr) return given->read(*tensor, to);
    std::ranges::fill(to, std::byte{0});
  };
  const auto list = std::make_shared<WeightList>(given ? given->what() : "the initial weights",
                                                 given, read, read_counter);
  for (const ParameterInfo& p : model.parameters()) {
    const TensorView* const tensor = given ? given->find(p.name) : nullptr;
    list->add(tensor != nullptr ? *tensor : TensorView{p.name, p.dtype, p.shape, {}});
  }
  // Integers and scales that the source lists beside the floats.
  if (given)
    given->each([&](const TensorView& tensor) {
      if (is_part_of_integers(tensor.name)) list->add(tensor);
    });
  return list;
}

}  // namespace brrr::models
