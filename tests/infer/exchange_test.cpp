// Model::exchange, the graph for other runtimes: it is the model's forward pass, padding changes
// nothing, a cache stands for the tokens in it; and what is written as ONNX and read again is the
// same graph.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "base/errors.h"
#include "ir/text.h"
#include "models/model.h"
#include "modules/onnx/export/onnx_export.h"
#include "modules/onnx/onnx_module.h"
#include "ops/ops.h"
#include "passes/passes.h"
#include "support/tensors.h"

namespace brrr::test {
namespace {

using models::ModelPtr;

constexpr int64_t kVocabulary = 37, kContext = 24;

/// "gpt2_by_layer": a GPT-2 whose scores are divided by the layer's number alone, with a narrow
/// MLP.
ModelPtr decoder(const std::string& name) {
  models::Description d;
  d.settings = {{"n-layer", "2"}, {"n-head", "4"}, {"n-embd", "320"}};
  d.vocabulary = kVocabulary;
  d.context = kContext;
  if (name != "gpt2_by_layer") return models::find_architecture(name).describe(d);
  d.settings.insert(d.settings.end(), {{"n-inner", "384"},
                                       {"scale-attn-weights", "false"},
                                       {"scale-attn-by-inverse-layer-idx", "true"}});
  return models::find_architecture("gpt2").describe(d);
}

ModelPtr encoder(const std::string& type, models::Head head) {
  const std::string config = fmt::format(
      R"({{"model_type":"{}","vocab_size":{},"hidden_size":320,"intermediate_size":384,
          "num_hidden_layers":2,"num_attention_heads":16,"max_position_embeddings":{},
          "type_vocab_size":{},"pad_token_id":{},"local_attention":4,"dim":320,"hidden_dim":384,"n_layers":2,"n_heads":4}})",
      type, kVocabulary, kContext + 2, type == "bert" ? 2 : 1, type == "bert" ? 0 : 1);
  models::Task task;
  task.head = head;
  if (head == models::Head::classes || head == models::Head::token_classes)
    task.labels = {"a", "b", "c"};
  return models::parse_config(config, "config.json")->with_task(task);
}

/// The parameters of a graph, drawn by their names, so that two graphs have the same.
reference::Tensors parameters_of(const Graph& graph) {
  reference::Tensors values;
  for (const NodeId id : graph.inputs(InputKind::parameter)) {
    const std::string& name = graph.input_name(id);
    Random random(static_cast<uint32_t>(std::hash<std::string>()(name)));
    values[name] = random_tensor(graph.type({id, 0}), -0.4, 0.4, random);
  }
  return values;
}

RefTensor integers(DType dtype, const Shape& shape, const std::function<int64_t(int64_t)>& f) {
  RefTensor t(Type{dtype, shape});
  for (size_t i = 0; i < t.size(); ++i)
    t.set_bits(i, static_cast<uint64_t>(f(static_cast<int64_t>(i))));
  return t;
}

int64_t token(int64_t i) { return 2 + i * 7 % (kVocabulary - 2); }

double largest_difference(const RefTensor& a, const RefTensor& b) {
  EXPECT_EQ(a.type, b.type);
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a.data[i] - b.data[i]));
  return most;
}

/// Inputs of `length` tokens behind `pads` of padding.
reference::Tensors padded_text(const Graph& graph, int64_t length, int64_t pads) {
  reference::Tensors in = parameters_of(graph);
  const Shape row{1, pads + length};
  in["input_ids"] =
      integers(DType::i64, row, [&](int64_t i) { return i < pads ? 1 : token(i - pads); });
  in["attention_mask"] = integers(DType::i64, row, [&](int64_t i) { return i >= pads; });
  if (graph.find_input("position_ids") != kNoNode)
    in["position_ids"] =
        integers(DType::i64, row, [&](int64_t i) { return std::max<int64_t>(i - pads, 0); });
  if (graph.find_input("token_type_ids") != kNoNode)
    in["token_type_ids"] = integers(DType::i64, row, [](int64_t) { return 0; });
  return in;
}

class Decoders : public ::testing::TestWithParam<const char*> {};

TEST_P(Decoders, ExchangeIsTheForwardPass) {
  const ModelPtr model = decoder(GetParam());
  constexpr int64_t kLength = 7;
  const Graph forward = model->forward(Dim(1), Dim(kLength)),
              exchange = model->exchange({1, kLength, std::nullopt});
  reference::Tensors in = parameters_of(forward);
  in["tokens"] = integers(DType::i32, {1, kLength}, token);
  const RefTensor expected = reference::evaluate(forward, in)["logits"];
  const RefTensor given =
      reference::evaluate(exchange, padded_text(exchange, kLength, 0))["logits"];
  EXPECT_LT(largest_difference(expected, given), 1e-12);
}

TEST_P(Decoders, PaddingInFrontChangesNothing) {
  const ModelPtr model = decoder(GetParam());
  constexpr int64_t kLength = 6, kPads = 4;
  const Graph plain = model->exchange({1, kLength, std::nullopt}),
              padded = model->exchange({1, kPads + kLength, std::nullopt});
  const RefTensor expected = reference::evaluate(plain, padded_text(plain, kLength, 0))["logits"];
  const RefTensor given =
      reference::evaluate(padded, padded_text(padded, kLength, kPads))["logits"];
  for (const double x : given.data) ASSERT_TRUE(std::isfinite(x));
  double most = 0;
  const size_t first = static_cast<size_t>(kPads * kVocabulary);
  for (size_t i = 0; i < expected.size(); ++i)
    most = std::max(most, std::abs(expected.data[i] - given.data[first + i]));
  EXPECT_LT(most, 1e-9);
}

// The last tokens with what the cache holds of the first give what all of them give.
TEST_P(Decoders, TheCacheStandsForEarlierTokens) {
  const ModelPtr model = decoder(GetParam());
  constexpr int64_t kPast = 5, kLength = 3;
  const Graph whole = model->exchange({1, kPast + kLength, 0}),
              first = model->exchange({1, kPast, 0}), rest = model->exchange({1, kLength, kPast});
  const auto with_empty = [&](const Graph& g, reference::Tensors in) {
    for (const NodeId id : g.inputs(InputKind::data))
      if (g.input_name(id).starts_with("past")) in[g.input_name(id)] = RefTensor(g.type({id, 0}));
    return in;
  };
  const reference::Tensors all =
      reference::evaluate(whole, with_empty(whole, padded_text(whole, kPast + kLength, 0)));
  reference::Tensors kept =
      reference::evaluate(first, with_empty(first, padded_text(first, kPast, 0)));
  reference::Tensors in = parameters_of(rest);
  in["input_ids"] = integers(DType::i64, {1, kLength}, [](int64_t i) { return token(kPast + i); });
  in["position_ids"] = integers(DType::i64, {1, kLength}, [](int64_t i) { return kPast + i; });
  in["attention_mask"] = integers(DType::i64, {1, kPast + kLength}, [](int64_t) { return 1; });
  for (const auto& [name, tensor] : kept)
    if (name.starts_with("present.")) in["past_key_values." + name.substr(8)] = tensor;
  const reference::Tensors given = reference::evaluate(rest, in);
  const RefTensor &expected = all.at("logits"), &logits = given.at("logits");
  const size_t skipped = expected.size() - logits.size();
  for (size_t i = 0; i < logits.size(); ++i)
    ASSERT_NEAR(logits.data[i], expected.data[skipped + i], 1e-9);
  for (const auto& [name, tensor] : all)
    EXPECT_TRUE(name == "logits" || largest_difference(tensor, given.at(name)) < 1e-9) << name;
}

INSTANTIATE_TEST_SUITE_P(Architectures, Decoders,
                         ::testing::Values("gpt2", "gpt2_by_layer", "llama", "gpt_neox"));

TEST(Encoders, ExchangeIsTheForwardPass) {
  constexpr int64_t kLength = 6;
  for (const std::string type : {"bert", "roberta", "distilbert", "mpnet", "modernbert"})
    for (const models::Head head : {models::Head::masked_token, models::Head::classes,
                                    models::Head::token_classes, models::Head::embedding}) {
      SCOPED_TRACE(type + ", " + models::description(head));
      const ModelPtr model = encoder(type, head);
      const Graph forward = model->forward(Dim(1), Dim(kLength)),
                  exchange = model->exchange({1, kLength, std::nullopt});
      reference::Tensors in = parameters_of(forward);
      in["tokens"] = integers(DType::i32, {1, kLength}, token);
      in["lengths"] = integers(DType::i32, {1}, [](int64_t) { return kLength; });
      if (model->has_token_types())
        in["types"] = integers(DType::i32, {1, kLength}, [](int64_t) { return 0; });
      const bool embeds = head == models::Head::embedding;
      const RefTensor expected = reference::evaluate(forward, in)[embeds ? "embedding" : "logits"];
      const RefTensor given = reference::evaluate(
          exchange, padded_text(exchange, kLength, 0))[embeds ? "sentence_embedding" : "logits"];
      EXPECT_LT(largest_difference(expected, given), 1e-12);
    }
}

TEST(Encoders, PoolingCountsRealTokensAlone) {
  constexpr int64_t kLength = 5, kPads = 3;
  for (const auto& [name, pooling] : models::poolings())
    for (const std::string type : {"roberta", "modernbert"}) {
      if (pooling == models::Pooling::cls || pooling == models::Pooling::weighted_mean) continue;
      SCOPED_TRACE(type + ", " + name);
      models::Task task;
      task.head = models::Head::embedding;
      task.pooling = {pooling};
      const ModelPtr model = encoder(type, models::Head::embedding)->with_task(task);
      const Graph plain = model->exchange({1, kLength, std::nullopt}),
                  padded = model->exchange({1, kPads + kLength, std::nullopt});
      const RefTensor expected =
          reference::evaluate(plain, padded_text(plain, kLength, 0))["sentence_embedding"];
      const RefTensor given =
          reference::evaluate(padded, padded_text(padded, kLength, kPads))["sentence_embedding"];
      EXPECT_LT(largest_difference(expected, given), 1e-9);
    }
}

// -- written and read again
// ------------------------------------------------------------------------

/// Whether the outputs of both are the same expressions of inputs with the same names; in `b` a
/// small parameter may be a constant with the same numbers.
class SameGraph {
 public:
  SameGraph(const Graph& a, const Graph& b, const reference::Tensors& parameters)
      : a_(a), b_(b), parameters_(parameters), partner_(a.size(), kNoNode) {}
  /// "": they are; else what differs.
  std::string difference() {
    if (a_.outputs().size() != b_.outputs().size()) return "the number of outputs";
    for (const Output& output : a_.outputs()) {
      const Output* other = b_.find_output(output.name);
      if (other == nullptr) return "no output " + output.name;
      if (!match(output.value, other->value)) return what_;
    }
    return "";
  }

 private:
  bool match(ValueId x, ValueId y) {
    if (x.port != y.port) return differ(x, y);
    if (partner_[x.node] != kNoNode) return partner_[x.node] == y.node || differ(x, y);
    partner_[x.node] = y.node;
    const Node &n = a_.node(x.node), &m = b_.node(y.node);
    if (a_.is_input(x.node) && a_.role(x.node) == Role::parameter && is(m, Op::literal))
      return has_numbers(m, parameters_.at(a_.input_name(x.node))) || differ(x, y);
    if (n.op != m.op || n.results != m.results || n.operands.size() != m.operands.size())
      return differ(x, y);
    if (a_.is_input(x.node)) return a_.input_name(x.node) == b_.input_name(y.node) || differ(x, y);
    if (n.attrs != m.attrs) return differ(x, y);
    for (size_t i = 0; i < n.operands.size(); ++i)
      if (!match(n.operands[i], m.operands[i])) return false;
    return true;
  }
  static bool has_numbers(const Node& literal, const RefTensor& tensor) {
    if (literal.results[0] != tensor.type) return false;
    for (size_t i = 0; i < tensor.size(); ++i) {
      float number = 0;
      store_constant(literal, i, &number);
      if (number != static_cast<float>(tensor.data[i])) return false;
    }
    return true;
  }
  bool differ(ValueId x, ValueId y) {
    what_ = print_node(a_, x.node) + " against " + print_node(b_, y.node);
    return false;
  }
  const Graph &a_, &b_;
  const reference::Tensors& parameters_;
  std::vector<NodeId> partner_;
  std::string what_ = "";
};

std::string difference_when_read_again(const ModelPtr& model, int64_t opset, bool with_cache) {
  onnx::ExportSource source;
  source.name = "model";
  source.sizes = {"batch_size", "sequence_length"};
  source.examples = {{2, 5, 7}, {3, 5, 8}, {4, 3, 9}, {5, 7, 4}, {7, 6, 5}, {2, 9, 3}};
  if (with_cache)
    source.sizes.emplace_back("past_sequence_length");
  else
    for (auto& sizes : source.examples) sizes.pop_back();
  source.graph = [&](const std::vector<int64_t>& s) {
    return model->exchange({s[0], s[1], with_cache ? std::optional(s[2]) : std::nullopt});
  };
  const reference::Tensors weights = parameters_of(source.graph(source.examples[0]));
  std::map<std::string, std::vector<std::byte>, std::less<>> bytes;
  for (const auto& [name, tensor] : weights) {
    bytes[name].resize(static_cast<size_t>(tensor.type.bytes()));
    write_tensor(tensor, bytes[name].data());
  }
  source.weight = [&](std::string_view name) {
    return std::span<const std::byte>(bytes.find(name)->second);
  };
  const std::string file = onnx::model_bytes(onnx::export_model(source, {.opset = opset})->model());
  const auto module = onnx::open_module(onnx::File::parse(file, "again.onnx"));
  const Graph graph = model->exchange({3, 4, with_cache ? std::optional(6) : std::nullopt});
  GraphRequest request;
  for (const NodeId id : graph.inputs(InputKind::data))
    request.data.emplace(graph.input_name(id), graph.type({id, 0}));
  for (const Port& port : module->outputs()) request.wanted.push_back(port.name);
  const Graph again = module->lower(request).graph;
  const Graph a = onnx::onnx_form(simplify(graph), opset),
              b = onnx::onnx_form(simplify(again), opset);
  return SameGraph(a, b, weights).difference();
}

TEST(Exchange, TheSameGraphIsReadAgain) {
  for (const int64_t opset : {17, 18, 21, 23}) {
    for (const char* name : {"gpt2", "gpt2_by_layer", "llama", "gpt_neox"})
      for (const bool with_cache : {false, true}) {
        SCOPED_TRACE(fmt::format("{}, opset {}, cache {}", name, opset, with_cache));
        EXPECT_EQ(difference_when_read_again(decoder(name), opset, with_cache), "");
      }
    for (const std::string type : {"bert", "roberta", "distilbert", "mpnet"})
      for (const models::Head head : {models::Head::masked_token, models::Head::classes,
                                      models::Head::token_classes, models::Head::embedding}) {
        SCOPED_TRACE(fmt::format("{}, {}, opset {}", type, models::description(head), opset));
        EXPECT_EQ(difference_when_read_again(encoder(type, head), opset, false), "");
      }
  }
}

}  // namespace
}  // namespace brrr::test
