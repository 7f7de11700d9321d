// Classical machine learning (ai.onnx.ml) on numbers, and counts of n-grams.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "modules/onnx/call.h"

namespace brrr::onnx {
namespace {

constexpr std::string_view kLearning = "ai.onnx.ml";

/// The tensor of an attribute, as a vector.
std::optional<Value> vector_of(Call& c, const std::string& name) {
  const TensorProto* t = c.tensor(name);
  if (t == nullptr) return std::nullopt;
  if (t->type == ElementType::string) c.refuse("{} of texts", name);
  const std::string own = c.names().qualified(c.node().outputs[0]) + "/" + name;
  return reshape(c.lowering().constant(*t, own).value, {t->elements()});
}

/// The same on the host.
std::vector<double> host_vector(Call& c, const char* name) {
  std::vector<double> values;
  const TensorProto* t = c.tensor(name);
  if (t == nullptr) return values;
  const auto dtype = dtype_of(t->type);
  if (!dtype) c.refuse("{} of {}", name, onnx::name_of(t->type));
  const RefTensor read = read_tensor({*dtype, Shape(t->dims)}, t->bytes.data());
  for (size_t i = 0; i < read.size(); ++i) values.push_back(read.number(i));
  return values;
}

void array_feature_extractor(Call& c) {
  const Value x = c.in(0), ids = c.in(1);
  const int rank = x.shape().rank();
  const Value y = gather(x, reshape(ids, {ids.shape().elements()}), rank - 1);
  c.out(rank == 1 ? reshape(y, {1, y.shape().size(0)}) : y);
}

void binarizer(Call& c) {
  const Value x = c.in(0);
  c.out(cast(greater(x, c.scalar_like(c.number("threshold", 0.0), x)), x.dtype()));
}

void scaler(Call& c) {
  Value x = c.in(0);
  if (!is_float(x.dtype())) x = cast(x, DType::f32);
  if (const auto offset = c.number_list("offset")) x = x - cast(c.vector(*offset), x.dtype());
  if (const auto scale = c.number_list("scale")) x = x * cast(c.vector(*scale), x.dtype());
  c.out(cast(x, DType::f32));
}

/// keys_* or values_* of LabelEncoder.
Value labels_of_encoder(Call& c, const std::string& which) {
  if (const auto tensor = vector_of(c, which + "_tensor")) return *tensor;
  if (const auto list = c.integer_list(which + "_int64s")) return c.vector(*list);
  if (const auto list = c.number_list(which + "_floats")) return c.vector(*list);
  c.refuse("{} of texts", which);
}

Value default_label(Call& c, DType dtype) {
  if (c.tensor("default_tensor") != nullptr)
    return cast(reshape(vector_of(c, "default_tensor").value(), {}), dtype);
  if (is_integer(dtype)) return c.scalar(c.integer("default_int64", -1), dtype);
  return c.scalar(c.number("default_float", -0.0), dtype);
}

void label_encoder(Call& c) {
  const Value x = c.in(0), keys = labels_of_encoder(c, "keys"),
              values = labels_of_encoder(c, "values");
  if (keys.shape() != values.shape())
    c.fail("{} keys for {} values", keys.shape().str(), values.shape().str());
  Shape column = x.shape();
  column.push_back(Dim(1));
  const Value of_x = reshape(x, column), own = cast(keys, x.dtype());
  Value hit = equal(of_x, own);
  // A key that is no number stands for every NaN.
  if (is_float(x.dtype()))
    hit = logical_or(hit, logical_and(not_equal(of_x, of_x), not_equal(own, own)));
  const int last = hit.shape().rank() - 1;
  const Value found = max(cast(hit, DType::i32), {last});
  const Value at = argmax(cast(hit, DType::i32), last);
  c.out(
      where(cast(found, DType::boolean), gather(values, at, 0), default_label(c, values.dtype())));
}

// -- trees
// ----------------------------------------------------------------------------------------

// Trees as arrays: a walk over them is a gather for each level, for all rows and trees at once.
struct Forest {
  std::vector<int64_t> feature, mode, yes, no;  // of nodes, leaves behind them
  std::vector<double> split;
  std::vector<std::vector<double>> members;  // of nodes that test a set
  std::vector<int64_t> roots;
  int64_t depth = 0;
};

enum Mode : int64_t { kLeq, kLess, kGeq, kGreater, kEqual, kNotEqual, kMember };

/// The depth of the deepest leaf; fails where the nodes make no tree.
int64_t depth_of(Call& c, const Forest& f, int64_t nodes) {
  int64_t deepest = 0;
  for (const int64_t root : f.roots) {
    std::vector<int64_t> level{root};
    for (int64_t depth = 0; !level.empty(); ++depth) {
      if (depth > nodes) c.fail("the nodes of a tree form a circle");
      deepest = std::max(deepest, depth);
      std::vector<int64_t> next;
      for (const int64_t n : level)
        if (n < nodes)
          next.insert(next.end(), {f.yes[static_cast<size_t>(n)], f.no[static_cast<size_t>(n)]});
      if (std::ssize(next) > 2 * nodes + 2) c.fail("a node of a tree has two parents");
      level = std::move(next);
    }
  }
  return deepest;
}

Forest forest_of(Call& c) {
  Forest f;
  const auto list = [&](const char* name) {
    return c.integer_list(name).value_or(std::vector<int64_t>{});
  };
  f.feature = list("nodes_featureids");
  f.yes = list("nodes_truenodeids");
  f.no = list("nodes_falsenodeids");
  f.roots = list("tree_roots");
  f.split = host_vector(c, "nodes_splits");
  for (const double mode : host_vector(c, "nodes_modes"))
    f.mode.push_back(static_cast<int64_t>(mode));
  const std::vector<int64_t> yes_leaf = list("nodes_trueleafs"), no_leaf = list("nodes_falseleafs");
  const size_t n = f.feature.size();
  const int64_t leaves = std::ssize(list("leaf_targetids"));
  for (const size_t size :
       {f.yes.size(), f.no.size(), f.split.size(), f.mode.size(), yes_leaf.size(), no_leaf.size()})
    if (size != n) c.fail("the lists of nodes differ in length");
  for (const int64_t missing : list("nodes_missing_value_tracks_true"))
    if (missing != 0) c.refuse("NaN that follows the true branch");
  const auto count = static_cast<int64_t>(n);
  const auto place = [&](int64_t id, int64_t is_leaf) {
    if (id < 0 || id >= (is_leaf != 0 ? leaves : count)) c.fail("there is no node {}", id);
    return is_leaf != 0 ? count + id : id;
  };
  for (size_t i = 0; i < n; ++i) {
    f.yes[i] = place(f.yes[i], yes_leaf[i]);
    f.no[i] = place(f.no[i], no_leaf[i]);
    if (f.mode[i] < kLeq || f.mode[i] > kMember) c.fail("a node has the mode {}", f.mode[i]);
  }
  // The sets follow one another, NaN between them.
  const std::vector<double> members = host_vector(c, "membership_values");
  size_t at = 0;
  f.members.resize(n);
  for (size_t i = 0; i < n; ++i) {
    if (f.mode[i] != kMember) continue;
    while (at < members.size() && !std::isnan(members[at])) f.members[i].push_back(members[at++]);
    ++at;
  }
  for (int64_t& root : f.roots) {
    // A tree that is one leaf is written as a node whose branches are the same leaf.
    if (root < 0 || root >= count) c.fail("there is no node {}", root);
  }
  f.depth = depth_of(c, f, count);
  for (int64_t leaf = 0; leaf < leaves; ++leaf) {
    f.feature.push_back(0);
    f.mode.push_back(kLeq);
    f.split.push_back(0);
    f.yes.push_back(count + leaf);
    f.no.push_back(count + leaf);
    f.members.emplace_back();
  }
  return f;
}

/// Where `mode` says that x and `split` are so; [N, trees].
Value decided(Call& c, const Forest& f, Value x, Value at) {
  std::vector<Number> splits;
  for (const double s : f.split) splits.emplace_back(s);
  const Value table = literal(c.graph(), {std::ssize(f.split)}, splits, x.dtype());
  const Value split = gather(table, at, 0), mode = gather(c.vector(f.mode), at, 0);
  using Test = Value (*)(Value, Value);
  constexpr Test kTests[] = {less_equal, less, greater_equal, greater, equal, not_equal};
  Value yes = full(c.graph(), x.shape(), 0, DType::boolean);
  for (int64_t m = kLeq; m < kMember; ++m) {
    if (std::ranges::find(f.mode, m) == f.mode.end()) continue;
    const Value is_mode = equal(mode, c.scalar(m, DType::i64));
    yes = logical_or(yes, logical_and(is_mode, kTests[m](x, split)));
  }
  size_t most = 0;
  for (const auto& set : f.members) most = std::max(most, set.size());
  if (most == 0) return yes;
  std::vector<Number> sets;
  for (const auto& set : f.members)
    for (size_t k = 0; k < most; ++k) sets.emplace_back(k < set.size() ? set[k] : NAN);
  const Value rows =
      literal(c.graph(), {std::ssize(f.members), static_cast<int64_t>(most)}, sets, x.dtype());
  Shape column = x.shape();
  column.push_back(Dim(1));
  const Value hits = cast(equal(reshape(x, column), gather(rows, at, 0)), DType::i32);
  const Value is_member = cast(max(hits, {2}), DType::boolean);
  return logical_or(yes,
                    logical_and(equal(mode, c.scalar(int64_t{kMember}, DType::i64)), is_member));
}

/// The leaf that each row [N, F] reaches in each tree: [N, trees], counted from 0.
Value leaves_of(Call& c, const Forest& f, Value x) {
  const int64_t n = x.shape().size(0), width = x.shape().size(1), trees = std::ssize(f.roots);
  for (const int64_t feature : f.feature)
    if (feature < 0 || feature >= width) c.fail("there is no feature {} of {}", feature, width);
  const Shape shape{n, trees};
  Value at = broadcast_to(c.vector(f.roots), shape);
  const Value first = iota(c.graph(), shape, 0, DType::i64) * c.scalar(width, DType::i64);
  const Value flat = reshape(x, {n * width});
  for (int64_t level = 0; level < f.depth; ++level) {
    const Value own = gather(flat, first + gather(c.vector(f.feature), at, 0), 0);
    at = where(decided(c, f, own, at), gather(c.vector(f.yes), at, 0),
               gather(c.vector(f.no), at, 0));
  }
  const auto nodes = std::ssize(f.feature) - std::ssize(c.integer_list("leaf_targetids").value());
  return at - c.scalar(nodes, DType::i64);
}

void tree_ensemble(Call& c) {
  const Value x = c.in(0);
  if (x.shape().rank() != 2) c.fail("expected [N, F]; got {}", x.type().str());
  const Forest f = forest_of(c);
  const Value leaf = leaves_of(c, f, x);
  const int64_t targets = c.integer("n_targets"), post = c.integer("post_transform", 0);
  const Value weight = gather(vector_of(c, "leaf_weights").value(), leaf, 0);  // [N, trees]
  const Value target = gather(c.vector(c.integer_list("leaf_targetids").value()), leaf, 0);
  const Shape three{x.shape()[0], Dim(targets), target.shape()[1]};
  const auto of_trees = [](Value v) { return reshape(v, {v.shape()[0], Dim(1), v.shape()[1]}); };
  const Value hit = equal(of_trees(target), iota(c.graph(), three, 1, DType::i64));
  const Value w = of_trees(cast(weight, x.dtype()));
  const auto reached = [&](Value v) {  // 0 for a target that no leaf names
    return where(cast(max(cast(hit, DType::i32), {2}), DType::boolean), v, c.scalar_like(0, x));
  };
  const auto masked = [&](double other) { return where(hit, w, c.scalar_like(other, x)); };
  Value y;
  switch (c.integer("aggregate_function", 1)) {
    case 0:
      y = sum(masked(0), {2}) / static_cast<double>(std::ssize(f.roots));
      break;
    case 1:
      y = sum(masked(0), {2});
      break;
    case 2:
      y = reached(min(masked(INFINITY), {2}));
      break;
    case 3:
      y = reached(max(masked(-INFINITY), {2}));
      break;
    default:
      c.fail("aggregate_function = {}", c.integer("aggregate_function"));
  }
  if (post == 1) y = softmax(y);
  if (post == 2) y = sigmoid(y);
  if (post > 2 || post < 0) c.refuse("post_transform = {}", post);
  c.out(y);
}

// -- n-grams
// --------------------------------------------------------------------------------------

/// The n-grams of one length: their words [G, n] and the columns of their counts.
struct Grams {
  int64_t length = 1;
  std::vector<int64_t> words, columns;
};

std::vector<Grams> grams_of(Call& c) {
  const auto pool = c.integer_list("pool_int64s");
  if (!pool || pool->empty()) c.refuse("a pool of texts");
  const std::vector<int64_t> starts =
                                 c.integer_list("ngram_counts").value_or(std::vector<int64_t>{}),
                             columns =
                                 c.integer_list("ngram_indexes").value_or(std::vector<int64_t>{});
  const int64_t all = std::ssize(*pool);
  std::vector<Grams> grams;
  size_t gram = 0;
  for (size_t i = 0; i < starts.size(); ++i) {
    Grams g;
    g.length = static_cast<int64_t>(i) + 1;
    const int64_t end = i + 1 < starts.size() ? starts[i + 1] : all;
    if (starts[i] < 0 || starts[i] > end || end > all || (end - starts[i]) % g.length != 0)
      c.fail("ngram_counts do not cut the pool of {}", all);
    g.words.assign(pool->begin() + starts[i], pool->begin() + end);
    for (int64_t k = 0; k < (end - starts[i]) / g.length; ++k) {
      if (gram >= columns.size()) c.fail("there are fewer indexes than n-grams");
      g.columns.push_back(columns[gram++]);
    }
    grams.push_back(std::move(g));
  }
  return grams;
}

/// How often each n-gram stands in the rows of x [B, L] with `step` between its words: [B, G].
Value counts_of(Call& c, Value x, const Grams& g, int64_t step) {
  const int64_t batch = x.shape().size(0), length = x.shape().size(1),
                count = std::ssize(g.columns), places = length - step * (g.length - 1);
  std::optional<Value> hit;  // [B, places, G]
  for (int64_t k = 0; k < g.length; ++k) {
    std::vector<Number> words;
    for (int64_t i = 0; i < count; ++i)
      words.emplace_back(g.words[static_cast<size_t>(i * g.length + k)]);
    const Value own = reshape(slice(x, 1, k * step, places), {batch, places, 1});
    const Value same = equal(own, literal(c.graph(), {count}, words, DType::i64));
    hit = hit ? logical_and(*hit, same) : same;
  }
  return sum(cast(*hit, DType::f32), {1});
}

void tf_idf_vectorizer(Call& c) {
  const Shape shape = c.in(0).shape();
  if (shape.rank() < 1 || shape.rank() > 2)
    c.fail("expected [L] or [B, L]; got {}", c.in(0).type().str());
  const int64_t batch = shape.rank() == 2 ? shape.size(0) : 1, length = shape.size(-1);
  const Value x = reshape(cast(c.in(0), DType::i64), {batch, length});
  const int64_t least = c.integer("min_gram_length"), most = c.integer("max_gram_length"),
                skips = c.integer("max_skip_count");
  const std::vector<int64_t> columns = c.integer_list("ngram_indexes").value();
  if (columns.empty()) c.fail("there are no indexes");
  const int64_t width = *std::ranges::max_element(columns) + 1;
  if (*std::ranges::min_element(columns) < 0) c.fail("an index is negative");
  Value y = full(c.graph(), {width, batch}, 0, DType::f32);
  for (const Grams& g : grams_of(c)) {
    if (g.length < least || g.length > most || g.columns.empty()) continue;
    // A single word has nothing to skip.
    for (int64_t step = 1; step <= (g.length == 1 ? 1 : skips + 1); ++step) {
      if (length - step * (g.length - 1) < 1) continue;
      const Value counts = transpose(counts_of(c, x, g, step), {1, 0});
      y = scatter(y, c.vector(g.columns), counts, ScatterMode::add);
    }
  }
  y = transpose(y, {1, 0});
  const std::string mode = c.text("mode");
  if (mode != "TF" && mode != "IDF" && mode != "TFIDF") c.fail("mode = {}", mode);
  if (mode == "IDF") y = cast(greater(y, c.scalar_like(0.0, y)), DType::f32);
  if (mode != "TF") {
    if (const auto weights = c.number_list("weights"); weights && !weights->empty()) {
      // Weights belong to n-grams, in the order of the pool.
      std::vector<float> of_column(static_cast<size_t>(width), 0);
      for (size_t i = 0; i < std::min(weights->size(), columns.size()); ++i)
        of_column[static_cast<size_t>(columns[i])] = (*weights)[i];
      y = y * c.vector(of_column);
    }
  }
  c.out(shape.rank() == 2 ? y : reshape(y, {width}));
}

const OperatorRow kLearningRows[] = {
    {"", "TfIdfVectorizer", tf_idf_vectorizer},
    {kLearning, "ArrayFeatureExtractor", array_feature_extractor},
    {kLearning, "Binarizer", binarizer},
    {kLearning, "Scaler", scaler},
    {kLearning, "LabelEncoder", label_encoder},
    {kLearning, "TreeEnsemble", tree_ensemble},
};

}  // namespace

std::span<const OperatorRow> learning_operators() { return kLearningRows; }

}  // namespace brrr::onnx
