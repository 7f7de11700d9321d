#pragma once
// Parameters are declared where a net uses them: a declaration puts the parameter into the graph
// and into the list of what the model has, so that shapes, initial values and what training does
// with a parameter stand in one place.

#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace brrr::models {

/// Initial values of a parameter.
struct Fill {
  enum class Kind { zeros, ones, normal, uniform };
  Kind kind = Kind::zeros;
  /// The standard deviation of normal, whose mean is 0; of uniform the bound of absolute values.
  double deviation = 0;
};

/// Which files hold a parameter.
enum class Part {
  trunk,   // every file
  pooler,  // files with the heads of some tasks: it stands before them
  head,    // files of one task: its head, for its labels
};

struct ParameterInfo {
  std::string name;  // in graphs, and in the files that Brrr writes
  Shape shape;
  Fill fill;
  /// Rows are looked up and never multiplied (positions, an input embedding apart from the head):
  /// such a parameter costs no FLOPs, and a token reads one row of it.
  bool is_table = false;
  /// Whether weight decay applies: it does to matrices and embeddings, not to biases and norms.
  bool decays = false;
  Part part = Part::trunk;
  /// The place in the model, for --freeze: "embed", "h.3", "norm", "head".
  std::string place = {};
  DType dtype = DType::f32;  // i64: a counter, which begins as 0 where files lack it
  /// A buffer: training graphs set its next value themselves, by no gradient. The running
  /// statistics of batch norm are buffers. They count as no parameters in reports.
  bool is_buffer = false;
  /// Training leaves it as it is: a weight below adapters.
  bool is_frozen = false;
};

/// What a graph with parameters is for.
enum class Purpose {
  training,  // its parameters say what the optimizer does with them
  inference,
};

/// What batch norm normalises by in training.
enum class Statistics {
  of_batch,  // those of the batch, which also update the running ones
  running,   // the running ones, which stay as they are; so does inference
};

/// Declares the parameters of one graph, in the order in which files list them.
class Parameters {
 public:
  Parameters(Graph& graph, Purpose purpose, Statistics statistics = Statistics::of_batch)
      : graph_(graph), purpose_(purpose), statistics_(statistics) {}

  /// Sets the standard deviation of weights that are declared without one of their own.
  void set_deviation(double deviation) { deviation_ = deviation; }
  double deviation() const { return deviation_; }
  /// Sets ParameterInfo::place of the declarations that follow.
  void set_place(std::string place) { place_ = std::move(place); }
  void set_part(Part part) { part_ = part; }

  Graph& graph() { return graph_; }
  Purpose purpose() const { return purpose_; }
  /// Whether batch norm updates its running statistics.
  bool updates_statistics() const {
    return purpose_ == Purpose::training && statistics_ == Statistics::of_batch;
  }
  const std::vector<ParameterInfo>& list() const { return list_; }

  /// Declares a matrix, or another weight that is multiplied: initially normal, decayed.
  Value weight(const std::string& name, Shape shape);
  Value weight(const std::string& name, Shape shape, double deviation);
  /// Declares a table whose rows tokens look up: initially normal, decayed. `is_multiplied`: a head
  /// multiplies by it, too.
  Value table(const std::string& name, Shape shape, bool is_multiplied = false);
  /// Declares a bias, or with ones the scale of a norm. Neither is decayed.
  Value bias(const std::string& name, int64_t width) {
    return vector(name, width, Fill::Kind::zeros);
  }
  Value vector(const std::string& name, int64_t width, Fill::Kind fill);
  /// Declares a weight, which decays, or a bias, which does not, with these initial values.
  Value filled_weight(const std::string& name, Shape shape, Fill fill);
  Value filled_bias(const std::string& name, int64_t width, Fill fill);
  /// Declares a buffer: a state that files hold and that no optimizer changes. A training graph
  /// sets its value for the next step with Graph::update().
  Value buffer(const std::string& name, Shape shape, Fill::Kind fill);
  /// Lists a parameter whose input somebody else declares.
  void list_only(ParameterInfo parameter) { list_.push_back(std::move(parameter)); }
  /// Declares a buffer i64[] that counts from 0. Only graphs that update statistics have it as
  /// an input.
  std::optional<Value> counter(const std::string& name);

 private:
  const ParameterInfo& add_to_list(ParameterInfo parameter);
  Value declare(ParameterInfo parameter);

  Graph& graph_;
  const Purpose purpose_;
  const Statistics statistics_;
  double deviation_ = 0.02;
  std::string place_;
  Part part_ = Part::trunk;
  std::vector<ParameterInfo> list_;
};

}  // namespace brrr::models
